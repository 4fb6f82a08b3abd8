"""The model on its device, answering batches of questions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.predict import predict_rows
from eulerlora.settings import Draw
from service.inference.device_errors import with_device_errors

MOST_LANES = 4  # they share one interpreter


@dataclass(frozen=True)
class Question:
    """One image and how it is to be answered.

    pixels: (3, size, size) float32 in [0, 1], the network's input.
    """

    pixels: Tensor
    draw: Draw


class Engine:
    """Runs one model; called from as many threads at a time as it has lanes."""

    def __init__(self, model: EulerLoRA) -> None:
        self.model = model

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.config.name

    @property
    def rows_at_once(self) -> int:
        """Rows that one pass takes; more are passed in parts."""
        return self.model.runtime.rows_at_once

    @property
    def lanes(self) -> int:
        """How many passes are to run at the same time.

        On a CPU a pass of one core gets more from it than one of many, whose cores wait for each
        other after every operation. A compiled network is made for a number of cores.
        """
        if self.model.device.type != "cpu" or self.model.runtime.compiled:
            return 1
        return min(torch.get_num_threads(), MOST_LANES)

    def rows(self, samples: int) -> int:
        """How many rows of a forward pass a question of so many samples per adapter takes."""
        return self.model.network.settings.adapters * samples

    def answer(self, questions: Sequence[Question]) -> list[Tensor]:
        """Log-probabilities (trajectories, classes) of each question, all in one forward pass.

        Questions of any mode and number of samples share the pass. float64 on the CPU; a
        trajectory whose logits are not finite is all NaN. Raises OutOfMemory, and DeviceFailed
        where the device is lost.
        """
        return with_device_errors(lambda: self._answer(questions))

    def _answer(self, questions: Sequence[Question]) -> list[Tensor]:
        pixels = torch.stack([question.pixels for question in questions])
        draws = [question.draw for question in questions]
        return predict_rows(self.model.runtime, pixels.to(self.model.device), draws)
