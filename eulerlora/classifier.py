"""EulerLoRA on a Vision Transformer in one's own training loop: `adapt` and the paper's loss.

model = adapt(vit, classes=["cat", "dog"])  # of torchvision, timm or transformers
logits = model(images, mode="stoch", samples=4)  # (n, adapters * 4, classes)
trajectory_loss(logits, labels).backward()
model.save("checkpoint")  # `eulerlora serve checkpoint`
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.checkpoint.files import UNKNOWN_TRAINING, config_of, save_checkpoint
from eulerlora.checkpoint.weights import at_image_size, tensors_sha256
from eulerlora.exchange.importing import backbone_of_module
from eulerlora.methods.registry import build_network
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import INIT_GAIN, AdapterSettings
from eulerlora.scores.uncertainty import kind_of, shape_of
from eulerlora.settings import Preprocessing
from eulerlora_contract.answers import ClassName
from eulerlora_contract.errors import ImageError, SettingsError
from eulerlora_contract.sampling import DEFAULT_SAMPLES, Mode
from eulerlora_contract.settings import validated


class AdaptedClassifier(nn.Module):
    """A frozen Vision Transformer with EulerLoRA adapters and a head for each of them.

    Only the parameters of adapters and heads have `requires_grad`. `classes` are in the order of
    the logits; `library` is that of the original, for the provenance of a checkpoint.
    """

    def __init__(
        self, network: AdaptedVisionTransformer, classes: Sequence[str], library: str
    ) -> None:
        super().__init__()
        self.network, self.classes, self.library = network, tuple(classes), library

    def forward(
        self,
        images: Tensor,
        mode: Mode = "det",
        samples: int | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Logits (n, trajectories, classes) of every trajectory, adapter by adapter.

        Args:
            images: (n, 3, size, size), prepared as for the original network, whose range of values
                is not known here and not checked; of the parameters' type, float32.
            mode: `det`, one trajectory for each adapter; or `stoch`, `samples` for each.
            samples: Of each adapter in `stoch`, 4 by default; None in `det`.
            generator: Of the draws, which all images share, on the CPU; None for torch's default
                generator.

        Raises:
            ImageError: For images of another shape or type.
            SettingsError: For an unknown mode, samples below 1, or samples in `det`.
        """
        backbone = self.network.backbone
        size, dtype = backbone.settings.image_size, backbone.class_token.dtype
        shape = shape_of(images)
        if shape[1:] != (3, size, size) or not shape[0] or images.dtype != dtype:
            raise ImageError(
                f"expected images (n, 3, {size}, {size}) of {dtype}, n at least 1, got "
                f"{kind_of(images)}"
            )
        method, count = self.network.method, len(images)
        if mode == "det":
            if samples is not None:
                raise SettingsError(f"samples: expected none in mode det, got {samples}")
            samples, draws = 1, method.det()
        elif mode == "stoch":
            samples = DEFAULT_SAMPLES if samples is None else samples
            if samples < 1:
                raise SettingsError(f"samples: expected at least 1, got {samples}")
            draws = method.sample(samples, generator or torch.default_generator)
        else:
            raise SettingsError(f"mode: expected det or stoch, got {mode}")
        rows = Rows.of([samples] * count, self.network.settings.adapters).to(images.device)
        logits: Tensor = self.network(images, rows, draws.to(images).repeated(count))
        return logits.view(count, -1, len(self.classes))

    def save(
        self, folder: str | Path, preprocessing: Preprocessing | None = None, name: str = "adapted"
    ) -> None:
        """Writes a checkpoint for `EulerLoRA.load` and `eulerlora serve` to a new folder.

        It has no thresholds until `eulerlora calibrate`, and no record of the images of your loop:
        `eulerlora evaluate` cannot tell whether test images are among them.

        Args:
            folder: Missing or empty.
            preprocessing: How your loop prepared images (`eulerlora.settings.Preprocessing`); None
                if it resized them and scaled them to [0, 1].
            name: Of the checkpoint.

        Raises:
            SettingsError: For a name or classes that a checkpoint does not accept.
            CheckpointError: If the folder is not empty.
            StorageError: For a full disk.
        """
        prepared = preprocessing or self.network.preprocessing
        origin = {
            "source": self.library,
            "revision": None,
            "architecture": self.library,
            "licence": None,
            "sha256": tensors_sha256(self.network.backbone.state_dict()),
        }
        config = config_of(
            self.network, prepared, self.classes, name, {"imported": origin}, {"format": "adapt"}
        )
        card = (
            f"# {name}\n\nTrained in a loop of its own on a backbone of {self.library}. It is not "
            f"calibrated: it has no thresholds. {UNKNOWN_TRAINING}\n"
        )
        save_checkpoint(Path(folder), self.network, config, card)


def adapt(
    vit: nn.Module,
    rank: int = 20,
    adapters: int = 2,
    min_rank: int = 10,
    steps: int = 2,
    scale: float = 1.0,
    init_gain: float = INIT_GAIN,
    *,
    classes: int | Sequence[str],
    image_size: int | None = None,
    generator: Generator | None = None,
) -> AdaptedClassifier:
    """Puts new adapters on a copy of a Vision Transformer's weights.

    The features of the copy are compared with those of `vit` on two random images of its own size.

    Args:
        vit: Torchvision's or timm's `VisionTransformer`, or a ViT, DINOv2 or CLIP of transformers,
            float32; its head is not used, and it does not change.
        rank: As in `eulerlora.sampling.masks.AdapterSettings`.
        adapters: As in `eulerlora.sampling.masks.AdapterSettings`.
        min_rank: As in `eulerlora.sampling.masks.AdapterSettings`.
        steps: As in `eulerlora.sampling.masks.AdapterSettings`.
        scale: As in `eulerlora.sampling.masks.AdapterSettings`.
        init_gain: As in `eulerlora.sampling.masks.AdapterSettings`.
        classes: Their names or number, at least 2.
        image_size: In pixels, a multiple of the patch size; None for that of `vit`. Position
            embeddings are interpolated as by its library.
        generator: Draws the adapters and heads; None for torch's default generator.

    Raises:
        SettingsError: If the features differ, for another kind of network, and for a value out of
            range.
    """
    if isinstance(classes, str):
        raise SettingsError(f"classes: expected names or their number, got the text {classes!r}")
    if isinstance(classes, int | np.integer):
        classes = [f"class_{i}" for i in range(classes)]
    names = [validated(ClassName, {"name": name, "description": name}).name for name in classes]
    if len(names) < 2 or len(set(names)) != len(names):
        raise SettingsError(f"classes: expected at least 2 different classes, got {classes}")
    values = {"rank": rank, "adapters": adapters, "min_rank": min_rank, "steps": steps}
    settings = validated(AdapterSettings, values | {"scale": scale, "init_gain": init_gain})
    device = next(vit.parameters()).device
    if any(parameter.dtype != torch.float32 for parameter in vit.parameters()):
        raise SettingsError("vit: expected float32 parameters")
    backbone, library = backbone_of_module(vit)
    if image_size is not None:
        backbone = at_image_size(backbone, image_size)
    network = build_network(backbone, settings, len(names))
    network.initialise(generator or torch.default_generator)
    return AdaptedClassifier(network.to(device), names, library)


def trajectory_loss(
    logits: Tensor, targets: Tensor, reduction: Literal["mean", "none"] = "mean"
) -> Tensor:
    """Mean cross-entropy of an image's trajectories, the paper's objective.

    Each trajectory learns from its own loss; it is not the loss of the mean probability.

    Args:
        logits: (n, trajectories, classes), none of them 0.
        targets: (n,) integer labels, or (n, classes) probabilities.
        reduction: `mean` over the images, or `none`, which returns (n,).

    Raises:
        SettingsError: For other shapes or types, and for labels out of range.
    """
    shape = shape_of(logits)
    if len(shape) != 3 or not all(shape):
        raise SettingsError(
            f"logits: expected a tensor (n, trajectories, classes), got {kind_of(logits)}"
        )
    count, _, classes = shape
    if shape_of(targets) not in ((count,), (count, classes)):
        raise SettingsError(
            f"targets: expected a tensor of labels ({count},) or probabilities ({count}, "
            f"{classes}), got {kind_of(targets)}"
        )
    if targets.ndim == 1:
        # On a GPU, one_hot would not see it, and the failed kernel would end all use of the device.
        if targets.dtype != torch.int64 or not ((targets >= 0) & (targets < classes)).all():
            low, high = targets.min().item(), targets.max().item()
            raise SettingsError(
                f"targets: expected labels 0 to {classes - 1} of torch.int64, got {low} to {high} "
                f"of {targets.dtype}"
            )
        targets = F.one_hot(targets, classes)
    losses = -(targets * logits.log_softmax(dim=-1).mean(dim=1)).sum(dim=-1)
    return losses.mean() if reduction == "mean" else losses
