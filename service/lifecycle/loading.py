"""A checkpoint's model that has given its known answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from eulerlora.checkpoint import CONFIG, load_checkpoint, stored_revision
from eulerlora.errors import CheckpointError
from eulerlora.known_answer import ANSWERS, KnownAnswer, answers_now, read_known_answer
from eulerlora.model import EulerLoRA
from eulerlora.runtime import Runtime
from eulerlora.settings import Precision, RuntimeSettings


@dataclass(frozen=True)
class CheckedModel:
    """A model, where it came from, and what it must answer in its precision."""

    folder: Path
    model: EulerLoRA
    known: KnownAnswer
    precision: Precision

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.model.config.name


Load = Callable[[Path, Iterable[EulerLoRA]], CheckedModel]


def load_checked(
    folder: Path, others: Iterable[EulerLoRA], device: torch.device, runtime: RuntimeSettings
) -> CheckedModel:
    """The model in a checkpoint folder; it has been asked in each mode.

    It is asked without compilation, which belongs to the thread that will run the model: CUDA
    graphs cannot be captured while another thread uses the device.
    others: models that run in the same way; the backbone of one is shared where it is the same.
    Raises CheckpointError for anything but an intact checkpoint that gives its known answer.
    """
    checkpoint = load_checkpoint(folder)
    known = read_known_answer(folder, checkpoint.config)
    model = EulerLoRA(checkpoint, device, runtime)
    share_backbone(model, others)
    plain = Runtime(model.network, device, RuntimeSettings(precision=runtime.precision))
    given = answers_now(plain, known.pixels.to(device))
    fault = known.fault(given, runtime.precision)
    if fault is not None:
        raise CheckpointError(folder / ANSWERS, fault)
    return CheckedModel(folder, model, known, runtime.precision)


def share_backbone(model: EulerLoRA, others: Iterable[EulerLoRA]) -> None:
    """Lets a model use the frozen weights of another one, if they are the same, for its own.

    Both are on their device and in their precision already: nothing is moved or rounded again.
    """
    digest = model.config.backbone.sha256
    for other in others:
        if other.config.backbone.sha256 == digest:
            theirs = dict(other.network.backbone.named_parameters())
            for name, parameter in model.network.backbone.named_parameters():
                parameter.data = theirs[name].data
            return


def newer_revision(
    current: CheckedModel, load: Load, others: Iterable[EulerLoRA]
) -> CheckedModel | None:
    """What is now in the folder that a model came from; None where its revision is the same.

    Raises CheckpointError for a folder that cannot take the model's place.
    """
    if stored_revision(current.folder) == current.model.revision:
        return None
    loaded = load(current.folder, others)
    if loaded.name != current.name:
        raise CheckpointError(
            current.folder / CONFIG,
            f"the model is now called {loaded.name}; wanted {current.name}, as it is served",
        )
    return loaded
