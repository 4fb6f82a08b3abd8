"""How a prediction is computed: mode, number of samples, sampler, views, precision and seed.

Importing this module is fast.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar

from annotated_types import Ge

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

RuntimeName = Literal["torch", "openvino"]
RUNTIMES: tuple[RuntimeName, ...] = ("torch", "openvino")
RuntimeChoice = RuntimeName | Auto
"""A runtime of networks, or `auto`: the faster one (`eulerlora.precision`)."""


@dataclass(frozen=True)
class Options:
    """The options of a prediction, stored whole with all that was fitted to or measured on it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "use_attribute_docstrings": True,
    }

    mode: Mode
    samples: Annotated[int, Ge(1)] | Auto
    """Per adapter; 1 in mode det."""
    sampler: Sampler
    """Mode det draws nothing and has `independent`."""
    views: Views
    precision: Precision
    """Of the matrix products."""

    def in_precision(self, precision: Precision) -> "Options":
        return self if precision == self.precision else replace(self, precision=precision)

    def holds_for(self, others: "Options") -> bool:
        """True if what was fitted to these options holds for others, up to their precision."""
        return self.in_precision(others.precision) == others

    @property
    def title(self) -> str:
        """All but the precision, such as "stoch, 4 balanced samples, 8 views"."""
        views = f", {self.views} views" if self.views > 1 else ""
        if self.mode == "det":
            return f"det{views}"
        samples = f"sample{'' if self.samples == 1 else 's'}"
        balanced = "balanced " if self.sampler == "balanced" else ""
        return f"stoch, {self.samples} {balanced}{samples}{views}"

    def __str__(self) -> str:
        return f"{self.title}, {self.precision}"


class _Fitted(Protocol):
    @property
    def options(self) -> Options: ...


_AnyFitted = TypeVar("_AnyFitted", bound=_Fitted)


def applying(entries: Iterable[_AnyFitted], options: Options) -> list[_AnyFitted]:
    """The entries that hold for predictions with these options, best ones first.

    An entry of another precision stands in for a missing one.
    """
    fitting = [entry for entry in entries if entry.options.holds_for(options)]
    return sorted(fitting, key=lambda entry: entry.options != options)
