"""One optimiser step: a batch's gradients, cut into micro-batches, clipped and applied."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from eulerlora.errors import NonFiniteError
from training.fit.objective import Objective
from training.fit.schedule import warmup_cosine
from training.recipe.schema import AdamWSettings


@dataclass(frozen=True)
class Step:
    """What one optimiser step was; loss and gradient norm are the whole batch's, before it."""

    loss: float
    learning_rate: float
    gradient_norm: float


class Optimisation:
    """AdamW on the objective's parameters, with the settings' learning rate and clipping.

    module: the objective as it is called, which in a run of several processes averages their
    gradients. Raises SettingsError for a run that ends within its warm-up.
    """

    def __init__(
        self,
        objective: Objective,
        settings: AdamWSettings,
        steps: int,
        accelerator: Accelerator,
    ) -> None:
        self.objective, self.settings, self.accelerator = objective, settings, accelerator
        self.peak_share = warmup_cosine(steps, settings.warmup_steps)
        self.parameters = [each for each in objective.parameters() if each.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, weight_decay=settings.weight_decay)
        self.module: nn.Module = objective

    def prepare(self) -> None:
        """Makes the processes one run; all of them take the first one's parameters."""
        self.module = self.accelerator.prepare_model(self.objective)

    def step(self, index: int, pixels: Tensor, labels: Tensor) -> Step:
        """Takes step `index`, counted from 0, on this process's share of a batch.

        pixels: (n, 3, size, size). labels: (n, ...). Raises NonFiniteError, naming step and
        quantity, for a loss or gradient norm that is not finite; the step is then not taken.
        """
        learning_rate = self.settings.learning_rate * self.peak_share(index)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.zero_grad(set_to_none=True)
        loss = _finite("loss", self._backward(pixels, labels, index), index)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)
        gradient_norm = _finite("gradient norm", norm, index)
        self.optimiser.step()
        self.objective.stepped()
        return Step(loss, learning_rate, gradient_norm)

    def _backward(self, pixels: Tensor, labels: Tensor, index: int) -> Tensor:
        """Gradients of the whole batch's loss, micro-batch by micro-batch; returns the loss.

        Processes average their gradients, so each scales its part by their number.
        """
        accelerator, device = self.accelerator, self.accelerator.device
        pixels, labels = pixels.to(device), labels.to(device)
        weight = accelerator.reduce(self.objective.weight(labels), "sum")
        size = self._micro_batch_size()
        parts = list(zip(pixels.split(size), labels.split(size), strict=True))
        total = torch.zeros((), device=device)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            together = nullcontext() if last else accelerator.no_sync(self.module)
            with together, attention_kernels(device):
                with self._autocast():
                    loss = self.module(*part, index) / weight
                (loss * accelerator.num_processes).backward()
            total += loss.detach()
        summed: Tensor = accelerator.reduce(total, "sum")
        return summed

    def _micro_batch_size(self) -> int:
        rows = self.settings.micro_batch_rows
        if rows is None:
            return self.settings.batch_size
        return max(1, rows // self.objective.rows_per_image())

    def _autocast(self) -> AbstractContextManager[object]:
        enabled = self.settings.precision == "bfloat16"
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=enabled)


def attention_kernels(device: torch.device) -> AbstractContextManager[object]:
    """The attention kernels to train with: on a CPU the plain products, elsewhere torch's choice.

    The fused CPU kernel's backward pass is slower on short sequences: with it a training step of
    the compact backbone took 1.4 (65 tokens) to 1.6 times (17 tokens) as long. The backward pass
    belongs inside too: what is recomputed there must use the same kernels.
    """
    return sdpa_kernel([SDPBackend.MATH]) if device.type == "cpu" else nullcontext()


def _finite(quantity: str, value: Tensor, step: int) -> float:
    number = float(value.detach())
    if not torch.isfinite(value):
        raise NonFiniteError(f"the {quantity} at step {step} is {number}; training stopped")
    return number
