"""The training objective, and one optimiser step: schedule, micro-batches, clipping, update."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from eulerlora.precision import training_precision
from eulerlora_contract.errors import NonFiniteError, SettingsError
from eulerlora_contract.sampling import AUTO, Auto, Precision
from training.optimisation.batches import RunLength
from training.recipe.schema import OptimisationSettings

_StepDraw = TypeVar("_StepDraw")
"""The random input of a step."""


class Objective(ABC, Generic[_StepDraw]):
    """The loss of a network whose trainable parameters a run optimises.

    A batch's loss is the sum of its parts' losses divided by the sum of their weights, so that it
    does not depend on micro-batches and processes. Padding has loss and weight 0. An image has
    `rows_per_image` rows in the network.
    """

    def __init__(self, network: nn.Module, rows_per_image: int = 1) -> None:
        self.network, self.rows_per_image = network, rows_per_image

    @abstractmethod
    def draw(self, seed: int, step: int, process: int) -> _StepDraw:
        """The random input of a step; it is the same for all micro-batches."""

    @abstractmethod
    def loss(
        self, network: Callable[..., Any], images: Tensor, labels: Tensor, draw: _StepDraw
    ) -> Tensor:
        """The summed, weighted loss of a part of a batch: a scalar.

        `network` is `self.network`, possibly wrapped for several processes. Images are (n, 3, size,
        size), labels (n,) or (n, classes) target probabilities.
        """

    @abstractmethod
    def weight(self, labels: Tensor) -> Tensor:
        """The summed weight of a part of a batch: a scalar."""

    def optimiser(
        self, parameters: Mapping[str, nn.Parameter], weight_decay: float
    ) -> torch.optim.Optimizer | None:
        """An optimiser of the objective's own (`Method.optimiser`), or None."""
        return None

    def lr_scale(self, name: str) -> float:
        """Factor of the recipe's learning rate for a parameter of the network."""
        del name
        return 1.0

    def after_step(self) -> None:
        """Runs after each optimiser step."""

    def after_epoch(self) -> None:
        """Runs after the last step of each epoch."""

    def epoch_metrics(self) -> Mapping[str, float]:
        """Metrics of the last epoch besides its loss, such as `validation_nll`."""
        return {}

    def extra_state(self) -> Mapping[str, Tensor]:
        """The tensors besides the network's that `after_step` and `after_epoch` change.

        A run stores them, and copies the stored values into them when it continues.
        """
        return {}


_OPTIMISER_TYPES: Mapping[str, type[torch.optim.Adam]] = {
    "adamw": torch.optim.AdamW,
    "adam-l2": torch.optim.Adam,
}


@dataclass(frozen=True)
class Step:
    """The outcome of an optimiser step; loss and gradient norm are of the whole batch."""

    loss: float
    learning_rate: float
    gradient_norm: float


class Optimisation:
    """Adam, AdamW or the method's own optimiser, on the trainable parameters of a network.

    clip_norm limits the gradient of all parameters, or of the first group of a method's own
    optimiser. The seed is that of the objective's draws.

    Raises:
        SettingsError: If the run has no step after its warm-up.
    """

    def __init__(
        self,
        objective: Objective[Any],
        settings: OptimisationSettings,
        length: RunLength,
        accelerator: Accelerator,
        seed: int,
    ) -> None:
        self.objective, self.settings, self.accelerator = objective, settings, accelerator
        self.seed = seed
        precision = [training_precision(settings.precision, objective.network, accelerator.device)]
        self.precision: Precision = broadcast_object_list(precision)[0]
        self.schedule = warmup_cosine(length.steps, settings.warmup_steps)
        trained = {n: p for n, p in objective.network.named_parameters() if p.requires_grad}
        own = objective.optimiser(trained, settings.weight_decay)
        self.optimiser = self._adam(trained) if own is None else own
        groups = self.optimiser.param_groups
        clipped = groups if own is None else groups[:1]
        self.clipped: list[nn.Parameter] = [p for group in clipped for p in group["params"]]
        self.network: nn.Module = objective.network

    def prepare(self) -> None:
        """Connects the processes of the run; all take the first one's parameters."""
        self.network = self.accelerator.prepare_model(self.objective.network)

    def step(self, index: int, pixels: Tensor, labels: Tensor) -> Step:
        """Takes a step on this process's shard of a batch.

        The index, from 0, gives the learning rate and the draws. Pixels are (n, 3, size, size).

        Raises:
            NonFiniteError: With step and quantity, for a loss or gradient norm that is not finite,
                before the parameters change.
        """
        learning_rate = self.settings.learning_rate * self.schedule(index)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate * group.get("lr_scale", 1.0)
        self.optimiser.zero_grad(set_to_none=True)
        loss = _finite("loss", self._backward(pixels, labels, index), index)
        norm = nn.utils.clip_grad_norm_(self.clipped, self.settings.clip_norm)
        gradient_norm = _finite("gradient norm", norm, index)
        self.optimiser.step()
        self.objective.after_step()
        return Step(loss, learning_rate, gradient_norm)

    def _adam(self, trained: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        by_scale: dict[float, list[nn.Parameter]] = {}
        for name, parameter in trained.items():
            by_scale.setdefault(self.objective.lr_scale(name), []).append(parameter)
        groups = [{"params": part, "lr_scale": scale} for scale, part in by_scale.items()]
        optimiser = _OPTIMISER_TYPES[self.settings.optimiser]
        return optimiser(groups, weight_decay=self.settings.weight_decay)

    def _backward(self, pixels: Tensor, labels: Tensor, index: int) -> Tensor:
        """Accumulates the gradient of the whole batch's loss and returns the loss.

        Processes average their gradients, so each scales its part by their number.
        """
        accelerator, device = self.accelerator, self.accelerator.device
        pixels, labels = pixels.to(device), labels.to(device)
        weight = accelerator.reduce(self.objective.weight(labels), "sum")
        draw = self.objective.draw(self.seed, index, accelerator.process_index)
        rows = self.settings.micro_batch_rows
        size = len(pixels) if rows is None else max(1, rows // self.objective.rows_per_image)
        parts = list(zip(pixels.split(size), labels.split(size), strict=True))
        total, rounded = torch.zeros((), device=device), self.precision == "bfloat16"
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            synchronisation = nullcontext() if last else accelerator.no_sync(self.network)
            with synchronisation, attention_kernels(device):
                with torch.autocast(device.type, torch.bfloat16, enabled=rounded):
                    loss = self.objective.loss(self.network, *part, draw) / weight
                (loss * accelerator.num_processes).backward()
            total += loss.detach()
        batch_loss: Tensor = accelerator.reduce(total, "sum")
        return batch_loss


def warmup_steps(steps: int, setting: int | Auto) -> int:
    """`auto` is a tenth of the run, at most 500 steps, as in the paper."""
    return min(500, steps // 10) if setting == AUTO else setting


def warmup_cosine(steps: int, setting: int | Auto) -> Callable[[int], float]:
    """The learning rate of a step as a fraction of its peak.

    Linear warm-up from 0, so that the first update has learning rate 0, then half a cosine to 0 at
    the end of the run, as in the paper. Without warm-up the first update has the peak rate.

    Raises:
        SettingsError: If the warm-up does not end before the run.
    """
    warmup = warmup_steps(steps, setting)
    if steps <= warmup:
        raise SettingsError(
            f"expected warmup_steps below the run's {steps} steps, got {warmup}; set fewer "
            f"warmup_steps or more epochs, such as --set training.warmup_steps={AUTO}"
        )

    def fraction(step: int) -> float:
        if step < warmup:
            return step / warmup
        decayed = (step - warmup) / (steps - warmup)
        return max(0.0, (1 + math.cos(math.pi * decayed)) / 2)

    return fraction


def attention_kernels(device: torch.device) -> AbstractContextManager[object]:
    """The attention kernels for training: unfused on a CPU.

    The backward pass of the fused CPU kernel is slower on short sequences: a training step of the
    compact backbone took 1.4 (65 tokens) to 1.6 times (17 tokens) as long.
    """
    return sdpa_kernel([SDPBackend.MATH]) if device.type == "cpu" else nullcontext()


def _finite(quantity: str, value: Tensor, step: int) -> float:
    number = float(value.detach())
    if not torch.isfinite(value):
        raise NonFiniteError(f"the {quantity} at step {step} is {number}; training stopped")
    return number
