"""The draws of a forward pass that activation checkpointing runs again in the backward pass.

The second run has to draw what the first one drew. `torch.utils.checkpoint` restores the state of
torch's default generator for it, but neither that of other generators nor what a context manager
set. So a pass is recorded under a number from the default generator, which both runs draw.
"""

from typing import Generic, TypeVar

import torch
from torch import Generator

from eulerlora_contract.errors import SettingsError

_MAX_PASSES = 256
"""Recorded passes of a module, which may wait for their backward pass at the same time."""
Value = TypeVar("Value")


def in_backward() -> bool:
    """True in a backward pass, where activation checkpointing runs forward passes again."""
    return torch._C._current_graph_task_id() >= 0


def drawn_number(generator: Generator) -> int:
    """A number below 2**63 - 1 from a generator on the CPU."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device="cpu"))


class PassRecord(Generic[Value]):
    """What the latest passes of a module drew, by a number that their second run draws too."""

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}

    def add(self, value: Value, number: int | None = None) -> None:
        """Records a pass; `number` is drawn if None."""
        if number is None:
            number = drawn_number(torch.default_generator)
        self._values[number] = value
        if len(self._values) > _MAX_PASSES:
            del self._values[next(iter(self._values))]

    def again(self, number: int | None = None) -> Value:
        """The value of the pass that runs again.

        Raises:
            SettingsError: If its number is not recorded; the default generator is then as before.
        """
        before = torch.get_rng_state()
        if number is None:
            number = drawn_number(torch.default_generator)
        if number not in self._values:
            torch.set_rng_state(before)
            raise SettingsError(
                "torch.utils.checkpoint: expected the draws of the forward pass; use "
                f"preserve_rng_state=True, and at most {_MAX_PASSES} passes before the backward "
                "pass"
            )
        return self._values[number]
