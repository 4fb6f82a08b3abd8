"""Modes, numbers of samples and seeds that the service accepts. Importing this module is fast."""

from typing import Literal, get_args

Mode = Literal["det", "stoch", "adaptive"]
MODES: tuple[Mode, ...] = get_args(Mode)
Auto = Literal["auto"]
AUTO: Auto = "auto"
"""In place of a number of samples: the service draws rounds until the result has converged."""

MAX_SAMPLES = 64
DEFAULT_SAMPLES = 4
MAX_SEED = 2**32 - 1
