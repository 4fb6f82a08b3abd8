"""How a prediction is computed: mode, number of samples, sampler, views, precision and seed.

Importing this module is fast.
"""

from typing import Literal

Mode = Literal["det", "stoch"]
MODES: tuple[Mode, ...] = ("det", "stoch")
"""det: one pass per adapter without sampling; stoch: sampled passes."""

Auto = Literal["auto"]
AUTO: Auto = "auto"
"""In place of a number of samples: rounds of 1, 2 and 4 samples until the decisions are settled."""

MAX_SAMPLES = 64
DEFAULT_SAMPLES = 4
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
"""A precision, or `auto`: bfloat16 where `eulerlora.model` allows it."""
