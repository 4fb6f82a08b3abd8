"""An optimiser step on the adapters: all rows in one batch, or one pass for each trajectory.

The naive loop runs a forward pass for each trajectory, sums the losses and runs one backward pass.
Both sides use the attention kernels that are faster in training.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.method import RowDraws
from eulerlora.sampling.masks import draw_trajectories
from eulerlora_lab.benchmarks.baselines.naive import ordinary_members
from eulerlora_lab.benchmarks.results import Result, Side, Target, at_most, comparison
from eulerlora_lab.benchmarks.timing import alternating_seconds, in_new_process, peak_growth
from eulerlora_lab.benchmarks.workload import NetworkSizes, Plan, Workload
from training.optimisation.step import attention_kernels

StepVariant = Literal["one-batch", "micro-batches", "naive"]


class _TrainingStep(ABC):
    """A step on a fixed batch; every call draws new coefficients.

    As in training, the images of the batch share one draw for each trajectory.
    """

    def __init__(self, load: Workload, parameters: Iterable[nn.Parameter]) -> None:
        self.network, self.images = load.network, load.images
        self.rows, self.trajectories = load.rows, len(load.coefficients)
        self.generator = Generator().manual_seed(0)
        classes = load.network.heads.bias.shape[1]
        self.labels = torch.arange(len(load.images), device=load.images.device) % classes
        self.optimiser = torch.optim.AdamW(parameters, lr=1e-4)

    def __call__(self) -> None:
        coefficients = draw_trajectories(
            self.trajectories, len(self.network.blocks), self.network.settings, self.generator
        )
        self.optimiser.zero_grad(set_to_none=True)
        with attention_kernels(self.images.device):
            self.backward(coefficients)
        self.optimiser.step()

    @abstractmethod
    def backward(self, coefficients: Tensor) -> None:
        """Computes gradients of the mean cross-entropy of all rows.

        coefficients: (trajectories, blocks, 4, rank).
        """


class _OneBatchStep(_TrainingStep):
    """Our step with the rows of `micro_batch` images at a time, None for all."""

    def __init__(self, load: Workload, micro_batch: int | None) -> None:
        super().__init__(load, [parameter for _, parameter in load.network.adapter_parameters()])
        self._rows = sys.maxsize if micro_batch is None else micro_batch * self.trajectories

    def backward(self, coefficients: Tensor) -> None:
        shared = RowDraws.of_coefficients(coefficients.to(self.images.device))
        for part in self.rows.split(self._rows):
            images, labels = self.images[part.images], self.labels[part.images]
            logits = self.network(images, part.renumbered, shared.repeated(len(images)))
            targets = labels.repeat_interleave(self.trajectories)
            loss = F.cross_entropy(logits, targets, reduction="sum") / len(self.rows)
            loss.backward()


class _NaiveStep(_TrainingStep):
    """A step on ordinary LoRA modules, with one forward pass for each trajectory."""

    def __init__(self, load: Workload) -> None:
        self.members = ordinary_members(load.network)
        trained = [p for member in self.members for p in member.parameters() if p.requires_grad]
        super().__init__(load, trained)

    def backward(self, coefficients: Tensor) -> None:
        samples = self.trajectories // len(self.members)
        total = torch.zeros((), device=self.images.device)
        for index, of_trajectory in enumerate(coefficients.to(self.images.device)):
            logits = self.members[index // samples](self.images, of_trajectory[None])
            total = total + F.cross_entropy(logits, self.labels)
        (total / self.trajectories).backward()


_DESCRIPTIONS: dict[StepVariant, str] = {
    "one-batch": "all rows in one batch, float32",
    "micro-batches": "micro-batches of two images' rows, float32",
    "naive": "ordinary LoRA modules, one forward pass a trajectory, summed losses, float32",
}
_TIME_TARGET = at_most(0.90)
"""Ratio of the arithmetic: 1,026 GFLOP a step through the frozen weights, and 1,140 in the loop."""

_MEMORY_TARGETS: dict[StepVariant, Target | None] = {
    "one-batch": None,  # a row saves the same activations on both sides
    "micro-batches": at_most(0.40),  # a quarter of the rows at a time
}
_MEASURED_STEPS = 2  # the optimiser allocates its state in the first


def _training_step(method: StepVariant, load: Workload) -> _TrainingStep:
    """Micro-batches have the same gradient as one batch."""
    if method == "naive":
        return _NaiveStep(load)
    return _OneBatchStep(load, 2 if method == "micro-batches" else None)


def step_time(plan: Plan, method: StepVariant) -> Result:
    """Compares the time of forward, backward and AdamW with the naive loop."""
    sizes, images = plan.sizes.large, plan.sizes.images
    methods: tuple[StepVariant, StepVariant] = (method, "naive")
    steps = [_training_step(name, Workload.random(sizes, images, plan.device)) for name in methods]
    times = alternating_seconds(steps, plan.sizes.step_repeats, 1, plan.device)
    ours, naive = (
        Side(_DESCRIPTIONS[name], side) for name, side in zip(methods, times, strict=True)
    )
    return comparison(
        f"training step, {_name(plan, method)} / naive loop", ours, naive, _TIME_TARGET
    )


def step_memory(plan: Plan, method: StepVariant) -> Result:
    """Compares the peak memory of a step, in addition to model and images, with the naive loop."""
    sizes, images = plan.sizes.large, plan.sizes.images
    methods: tuple[StepVariant, StepVariant] = (method, "naive")
    ours, naive = (
        Side(
            _DESCRIPTIONS[name],
            [_peak_bytes(name, sizes, images, plan.device) for _ in range(plan.sizes.processes)],
        )
        for name in methods
    )
    name = f"training step, {_name(plan, method)}, peak memory / naive loop"
    return comparison(name, ours, naive, _MEMORY_TARGETS[method], "bytes")


def _name(plan: Plan, method: StepVariant) -> str:
    workload = f"{plan.sizes.images} images x {plan.sizes.large.trajectories} trajectories"
    return f"{method}, {workload}"


def _peak_bytes(method: StepVariant, sizes: NetworkSizes, images: int, device: torch.device) -> int:
    """Peak memory of two steps, in addition to model and images; on a CPU in a new process."""
    if device.type != "cuda":
        return in_new_process(_peak_in_this_process, method, sizes, images)
    step = _training_step(method, Workload.random(sizes, images, device))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    for _ in range(_MEASURED_STEPS):
        step()
    return torch.cuda.max_memory_allocated(device) - before


def _peak_in_this_process(method: StepVariant, sizes: NetworkSizes, images: int) -> int:
    step = _training_step(method, Workload.random(sizes, images, torch.device("cpu")))

    def steps() -> None:
        for _ in range(_MEASURED_STEPS):
            step()

    return peak_growth(steps)
