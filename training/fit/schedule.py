"""The learning rate over a run, as a share of its peak."""

import math
from collections.abc import Callable

from eulerlora.errors import SettingsError


def warmup_cosine(steps: int, warmup_steps: int) -> Callable[[int], float]:
    """step/warmup_steps up to the peak, then a half cosine down to 0 at `steps`.

    The first update of a run with a warm-up has the share 0 (method, "Training protocol").
    Raises SettingsError for a run that would end inside its warm-up.
    """
    if steps <= warmup_steps:
        raise SettingsError(f"a run of {steps} steps ends within its {warmup_steps} warm-up steps")

    def share(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        passed = (step - warmup_steps) / (steps - warmup_steps)
        return max(0.0, (1 + math.cos(math.pi * passed)) / 2)

    return share
