"""How a prediction is computed: mode, number of samples, sampler, views, precision and seed.

Importing this module is fast.
"""

from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["det", "stoch"]
MODES: tuple[Mode, ...] = ("det", "stoch")
"""det: one pass per adapter without sampling; stoch: sampled passes."""

Auto = Literal["auto"]
AUTO: Auto = "auto"
"""In place of a number of samples: rounds of 1, 2 and 4 samples until the decisions are settled."""

MAX_SAMPLES = 64
SAMPLES_PATTERN = r"^(auto|[1-9]|[1-5][0-9]|6[0-4])$"
"""A number of samples, or AUTO, as text."""
DEFAULT_SAMPLES = 4
AUTO_ROUNDS = (1, 2, DEFAULT_SAMPLES)
"""Samples per adapter after each round of `auto`."""
MAX_AUTO_SAMPLES = AUTO_ROUNDS[-1]
MAX_SEED = 2**32 - 1

Sampler = Literal["independent", "balanced"]
SAMPLERS: tuple[Sampler, ...] = ("independent", "balanced")

Views = Literal[1, 2, 4, 8]
VIEWS: tuple[Views, ...] = (1, 2, 4, 8)
"""Number of views of an image that its trajectories share between them: the image alone; also its
mirror image; all flips; all flips and quarter turns (`eulerlora.nn.rows`)."""

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
PrecisionChoice = Precision | Auto
"""A precision, or `auto`: bfloat16 where `eulerlora.precision` chooses it."""


@dataclass(frozen=True)
class Options:
    """The options of a prediction, and of predictions that something was fitted to.

    Attributes:
        samples: Per adapter; 1 in mode det.
        precision: Of the matrix products.
    """

    mode: Mode = "det"
    samples: int | Auto = 1
    sampler: Sampler = "independent"
    views: Views = 1
    precision: Precision = "float32"

    def holds_for(self, others: "Options") -> bool:
        """True if what was fitted to these options holds for others, up to their precision."""
        if self.mode == "det":
            return (others.mode, others.views) == ("det", self.views)
        return replace(self, precision=others.precision) == others

    def __str__(self) -> str:
        sampled = f", {self.samples} samples, {self.sampler}" if self.mode == "stoch" else ""
        views = f", {self.views} views" if self.views > 1 else ""
        return f"{self.mode}{sampled}{views}, {self.precision}"
