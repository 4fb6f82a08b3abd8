"""The optimisation loop that pretraining and adapter training share."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from tqdm import tqdm

from eulerlora.errors import NonFiniteError
from training.augment import Transform
from training.datasets import LabelledImage, Pictures
from training.recipe import OptimisationSettings
from training.schedule import warmup_cosine


@dataclass(frozen=True)
class Fitted:
    """What a run was: its optimiser steps, wall time, and the last epoch's mean loss."""

    steps: int
    seconds: float
    final_loss: float


def fit(
    parameters: Sequence[nn.Parameter],
    loss: Callable[[Tensor, Tensor], Tensor],
    images: Sequence[LabelledImage],
    view: Callable[[int], Transform],
    settings: OptimisationSettings,
    seed: int,
    device: torch.device,
) -> Fitted:
    """Trains `parameters` for all epochs, one optimiser step a batch.

    loss: (images (n, 3, size, size), labels (n,)) -> scalar, run under the recipe's precision.
    view: the transform of each epoch's images.
    Raises NonFiniteError, naming step and quantity, at the first loss or gradient norm that is
    not finite; the step is not taken.
    """
    per_epoch = -(-len(images) // settings.batch_size)
    share = warmup_cosine(settings.epochs * per_epoch, settings.warmup_steps)
    optimiser = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    schedule = LambdaLR(optimiser, share)
    autocast = partial(
        torch.autocast, device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"
    )
    started, step, losses = time.monotonic(), 0, [0.0]
    for epoch in range(settings.epochs):
        losses = []
        batches = epoch_batches(images, view(epoch), settings, seed, epoch)
        for pixels, labels in progress(batches, f"epoch {epoch + 1}/{settings.epochs}"):
            with autocast(), attention_kernels(device):
                value = loss(pixels.to(device), labels.to(device))
            losses.append(_finite("loss", value, step))
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            norm = nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
            _finite("gradient norm", norm, step)
            optimiser.step()
            schedule.step()
            step += 1
        print(f"epoch {epoch + 1}/{settings.epochs}: mean loss {np.mean(losses):.4f}", flush=True)
    return Fitted(step, time.monotonic() - started, float(np.mean(losses)))


def attention_kernels(device: torch.device) -> AbstractContextManager[object]:
    """The attention kernels to train with: on a CPU the plain products, elsewhere torch's choice.

    The fused CPU kernel's backward pass is slower on short sequences: with it a training step of
    the compact backbone took 1.4 (65 tokens) to 1.6 times (17 tokens) as long.
    """
    return sdpa_kernel([SDPBackend.MATH]) if device.type == "cpu" else nullcontext()


def epoch_batches(
    images: Sequence[LabelledImage],
    transform: Transform,
    settings: OptimisationSettings,
    seed: int,
    epoch: int,
) -> DataLoader[tuple[Tensor, int]]:
    """One epoch's batches, the last incomplete one kept; the order is the epoch's own."""
    order = np.arange(len(images))
    if settings.shuffle:
        order = np.random.default_rng((seed, epoch)).permutation(len(images))
    return DataLoader(
        Pictures(images, transform),
        batch_size=settings.batch_size,
        sampler=order.tolist(),
        num_workers=settings.workers,
    )


def progress(
    batches: DataLoader[tuple[Tensor, int]], label: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches, with a progress bar where stderr is a terminal."""
    yield from tqdm(batches, label, leave=False, disable=not sys.stderr.isatty())


def _finite(quantity: str, value: Tensor, step: int) -> float:
    number = float(value.detach())
    if not np.isfinite(number):
        raise NonFiniteError(f"the {quantity} at step {step} is {number}; training stopped")
    return number
