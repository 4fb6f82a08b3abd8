"""One optimiser step on the adapters: all rows in one batch, or one pass a trajectory.

The naive loop is what an ordinary script writes: a forward pass for each trajectory, their losses
summed, one backward pass. Both sides use the same attention kernels, those that are faster in
training, although an ordinary script might not choose them.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from benchmarks.baselines.engine import training_logits
from benchmarks.baselines.naive import ordinary_members
from benchmarks.measurement.workload import Workload
from eulerlora.coefficients import draw_trajectories, on_stacked_ranks
from training.fit.optimisation import attention_kernels

Side = Literal["ours", "cut", "naive"]


class TrainingStep(ABC):
    """A step on one batch, of which only the coefficients are drawn anew each time.

    As in training, the images of the batch share a draw for each trajectory.
    """

    def __init__(self, load: Workload, parameters: Iterable[nn.Parameter]) -> None:
        self.network, self.images = load.network, load.images
        self.rows, self.trajectories = load.rows, len(load.own)
        self.generator = Generator().manual_seed(0)
        classes = load.network.heads.bias.shape[1]
        self.labels = torch.arange(len(load.images), device=load.images.device) % classes
        self.optimiser = torch.optim.AdamW(parameters, lr=1e-4)

    def __call__(self) -> None:
        own = draw_trajectories(
            self.trajectories, len(self.network.blocks), self.network.settings, self.generator
        )
        self.optimiser.zero_grad(set_to_none=True)
        with attention_kernels(self.images.device):
            self.backward(own)
        self.optimiser.step()

    @abstractmethod
    def backward(self, own: Tensor) -> None:
        """Gradients of the mean cross-entropy of all rows. own: (trajectories, blocks, 4, rank)."""


class OurStep(TrainingStep):
    """`micro_batch_rows` rows at a time, as the recipe's setting of that name: here all of them."""

    micro_batch_rows = sys.maxsize

    def __init__(self, load: Workload) -> None:
        super().__init__(load, [parameter for _, parameter in load.network.adapter_parameters()])

    def backward(self, own: Tensor) -> None:
        drawn = on_stacked_ranks(own, self.network.settings.adapters).to(self.images.device)
        for part in self.rows.parts(self.micro_batch_rows):
            images, labels = self.images[part.images], self.labels[part.images]
            coefficients = drawn.repeat(len(images), 1, 1, 1)
            logits = training_logits(self.network, images, part.own, coefficients)
            targets = labels.repeat_interleave(self.trajectories)
            loss = F.cross_entropy(logits, targets, reduction="sum") / len(self.rows)
            loss.backward()


class OurCutStep(OurStep):
    """The same gradient from micro-batches of the rows of two images."""

    def __init__(self, load: Workload) -> None:
        super().__init__(load)
        self.micro_batch_rows = 2 * self.trajectories


class NaiveStep(TrainingStep):
    """Ordinary LoRA modules, one forward pass for each trajectory."""

    def __init__(self, load: Workload) -> None:
        self.members = ordinary_members(load.network)
        trained = [p for each in self.members for p in each.parameters() if p.requires_grad]
        super().__init__(load, trained)

    def backward(self, own: Tensor) -> None:
        samples = self.trajectories // len(self.members)
        total = torch.zeros((), device=self.images.device)
        for index, each in enumerate(own.to(self.images.device)):
            logits = self.members[index // samples](self.images, each[None])
            total = total + F.cross_entropy(logits, self.labels)
        (total / self.trajectories).backward()


STEPS: dict[Side, type[OurStep] | type[NaiveStep]] = {
    "ours": OurStep,
    "cut": OurCutStep,
    "naive": NaiveStep,
}
