"""The optimisation loop that pretraining and adapter training share."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader
from tqdm import tqdm

from eulerlora.errors import NonFiniteError
from eulerlora.settings import Settings
from training.augment import Transform
from training.batches import Share, batches_of_epoch, epoch_batches
from training.datasets import LabelledImage
from training.interruption import deferred_interruption
from training.objective import Objective
from training.recipe import OptimisationSettings
from training.run_state import Progress, load_state, save_state
from training.schedule import warmup_cosine


@dataclass(frozen=True)
class Run:
    """Where and how a fit runs.

    seed: of the data's order and augmentation. recipe: all that the run depends on; its state is
    good for no other. state: the file that keeps its state while it is unfinished. resume:
    continue from that file where there is one; otherwise the run starts anew.
    """

    accelerator: Accelerator
    seed: int
    recipe: Settings
    state: Path
    resume: bool = False

    @property
    def share(self) -> Share:
        """Which of the processes this one is."""
        return Share(self.accelerator.process_index, self.accelerator.num_processes)


@dataclass(frozen=True)
class Fitted:
    """What a run was.

    images_per_second: over all processes. waiting_share: part of the time spent waiting for data.
    final_loss: the last epoch's mean.
    """

    steps: int
    seconds: float
    images_per_second: float
    waiting_share: float
    final_loss: float


def fit(
    objective: Objective,
    images: Sequence[LabelledImage],
    view: Callable[[int], Transform],
    settings: OptimisationSettings,
    run: Run,
) -> Fitted:
    """Trains the objective's parameters for all epochs, one optimiser step a batch.

    view: the transform of each epoch's images. The state is kept every few minutes and, after
    the step under way, on Ctrl-C, which is then raised as KeyboardInterrupt. Raises
    NonFiniteError, naming step and quantity, at the first loss or gradient norm that is not
    finite; the step is not taken.
    """
    return _Fit(objective, images, view, settings, run).to_the_end()


class _Fit:
    """One call of `fit`: what it was given, and how far it came."""

    def __init__(
        self,
        objective: Objective,
        images: Sequence[LabelledImage],
        view: Callable[[int], Transform],
        settings: OptimisationSettings,
        run: Run,
    ) -> None:
        self.objective, self.images, self.view = objective, images, view
        self.settings, self.run = settings, run
        self.per_epoch = batches_of_epoch(len(images), settings.batch_size)
        self.peak_share = warmup_cosine(settings.epochs * self.per_epoch, settings.warmup_steps)
        self.parameters = [each for each in objective.parameters() if each.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, weight_decay=settings.weight_decay)
        self.progress = Progress()
        if run.resume and run.state.exists():
            self.progress = load_state(run.state, objective, self.optimiser, run.recipe)
            print(f"continuing after step {self.progress.step} of {run.state}", flush=True)
        self.saved_at_s = self.progress.seconds
        self.module: nn.Module = run.accelerator.prepare_model(objective)

    def to_the_end(self) -> Fitted:
        steps = self.settings.epochs * self.per_epoch
        with deferred_interruption() as interruption:
            while self.progress.step < steps:
                epoch = self.progress.step // self.per_epoch
                for pixels, labels in self._rest_of(epoch):
                    self._step(pixels, labels)
                    if self._any_process(interruption.asked):
                        self._save()
                        raise KeyboardInterrupt
                    if self.progress.seconds - self.saved_at_s > self.settings.state_every_s:
                        self._save()
                self._tell(f"epoch {epoch + 1}/{self.settings.epochs}: {self._mean_loss():.4f}")
        self._save()
        images = len(self.images) * self.settings.epochs
        return Fitted(
            steps=steps,
            seconds=self.progress.seconds,
            images_per_second=images / self.progress.seconds,
            waiting_share=self.progress.waited_s / self.progress.seconds,
            final_loss=self._mean_loss(),
        )

    def _rest_of(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The epoch's batches that no step has seen yet; what they are waited for is counted."""
        seen = self.progress.step - epoch * self.per_epoch
        if seen == 0:
            self.progress = replace(self.progress, epoch_loss=0.0, epoch_steps=0)
        batches = epoch_batches(
            self.images, self.view(epoch), self.settings, self.run.seed, epoch, seen, self.run.share
        )
        asked = time.monotonic()
        for batch in progress(batches, f"epoch {epoch + 1}/{self.settings.epochs}"):
            came = time.monotonic()
            yield batch
            done = time.monotonic()
            self.progress = replace(
                self.progress,
                seconds=self.progress.seconds + done - asked,
                waited_s=self.progress.waited_s + came - asked,
            )
            asked = done

    def _step(self, pixels: Tensor, labels: Tensor) -> None:
        step = self.progress.step
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate * self.peak_share(step)
        self.optimiser.zero_grad(set_to_none=True)
        loss = _finite("loss", self._backward(pixels, labels, step), step)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)
        _finite("gradient norm", norm, step)
        self.optimiser.step()
        self.progress = replace(
            self.progress,
            step=step + 1,
            epoch_loss=self.progress.epoch_loss + loss,
            epoch_steps=self.progress.epoch_steps + 1,
        )

    def _backward(self, pixels: Tensor, labels: Tensor, step: int) -> Tensor:
        """Gradients of the whole batch's loss, micro-batch by micro-batch; returns the loss.

        Processes average their gradients, so each scales its part by their number.
        """
        accelerator, device = self.run.accelerator, self.run.accelerator.device
        pixels, labels = pixels.to(device), labels.to(device)
        weight = accelerator.reduce(self.objective.weight(labels), "sum")
        size = self._micro_batch_size()
        parts = list(zip(pixels.split(size), labels.split(size), strict=True))
        total = torch.zeros((), device=device)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            with nullcontext() if last else accelerator.no_sync(self.module):
                with self._autocast(), attention_kernels(device):
                    loss = self.module(*part, step) / weight
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
        return torch.autocast(self.run.accelerator.device.type, torch.bfloat16, enabled=enabled)

    def _save(self) -> None:
        if self.run.accelerator.is_main_process:
            save_state(
                self.run.state, self.objective, self.optimiser, self.progress, self.run.recipe
            )
        self.saved_at_s = self.progress.seconds

    def _any_process(self, asked: bool) -> bool:
        """Whether any process was asked to stop: all must leave the loop at the same step."""
        accelerator = self.run.accelerator
        if accelerator.num_processes == 1:
            return asked
        return bool(accelerator.reduce(torch.tensor(asked, device=accelerator.device).int(), "sum"))

    def _mean_loss(self) -> float:
        return self.progress.epoch_loss / self.progress.epoch_steps

    def _tell(self, line: str) -> None:
        if self.run.accelerator.is_main_process:
            print(line, flush=True)


def attention_kernels(device: torch.device) -> AbstractContextManager[object]:
    """The attention kernels to train with: on a CPU the plain products, elsewhere torch's choice.

    The fused CPU kernel's backward pass is slower on short sequences: with it a training step of
    the compact backbone took 1.4 (65 tokens) to 1.6 times (17 tokens) as long.
    """
    return sdpa_kernel([SDPBackend.MATH]) if device.type == "cpu" else nullcontext()


def progress(
    batches: DataLoader[tuple[Tensor, int]], label: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches, with a progress bar where stderr is a terminal."""
    yield from tqdm(batches, label, leave=False, disable=not sys.stderr.isatty())


def _finite(quantity: str, value: Tensor, step: int) -> float:
    number = float(value.detach())
    if not torch.isfinite(value):
        raise NonFiniteError(f"the {quantity} at step {step} is {number}; training stopped")
    return number
