"""EulerLoRA on a Vision Transformer in one's own training loop: `adapt` and the paper's loss.

model = adapt(vit, classes=["cat", "dog"], preprocessing=transforms)  # of the library of `vit`
logits = model(images, mode="stoch", samples=4)  # (n, adapters * 4, classes)
trajectory_loss(logits, labels).backward()
model.save("checkpoint", check=(images, pictures))  # `eulerlora serve checkpoint`
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.checkpoint.weights import at_image_size
from eulerlora.exchange.modules import backbone_of_module, preprocessing_of_module
from eulerlora.exchange.preprocessing import (
    NORMALISATIONS,
    UNNORMALISED,
    Colours,
    preprocessing_of,
)
from eulerlora.methods.registry import build_network
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import INIT_GAIN, AdapterSettings
from eulerlora.sampling.recomputation import PassRecord, drawn_number, in_backward
from eulerlora.scores.uncertainty import kind_of, shape_of
from eulerlora.settings import Preprocessing
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import ImageError, SettingsError
from eulerlora_contract.sampling import DEFAULT_SAMPLES, Mode
from eulerlora_contract.settings import validated

if TYPE_CHECKING:
    from eulerlora.images.files import Images

_SIDE = 64
"""Pixels of an image's side whose values are counted, at least."""
_OVERSHOOT = 0.05
"""How far, of black to white, a resize without clipping takes a value beyond them."""
_OUTSIDE_SHARE = 0.02
"""Of a channel's values: more are not in the range of the preprocessing only by another one. Noise
for erased parts takes up to 1.5% out of it."""
_SHARE = 1e-4
"""Of a channel's values: fewer are accidents."""
_END_WIDTH, _END_SHARE = 0.008, 1e-3
"""Clipped pixels: this share of a channel's values, this close to an end, and few beyond it."""
_FEW = 16
"""Images; from fewer, nothing follows from values that do not occur."""


class AdaptedClassifier(nn.Module):
    """A frozen Vision Transformer with EulerLoRA adapters and a head for each of them.

    Only the parameters of adapters and heads have `requires_grad`. `classes` are in the order of
    the logits; `library` is that of the original, for the provenance of a checkpoint, and
    `preprocessing` that of the images, None if it is not known; `stated` is False if it is the
    network's own configuration, which a loop may not follow.
    """

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        classes: Sequence[str],
        library: str,
        preprocessing: Preprocessing | None = None,
        stated: bool = True,
    ) -> None:
        super().__init__()
        self.network, self.classes, self.library = network, tuple(classes), library
        self.preprocessing, self._stated = preprocessing, stated
        self._seeds = PassRecord[int]()
        self._fed = torch.zeros(3, len(_limits()), dtype=torch.int64)  # of values below each
        self._ends = torch.tensor([torch.inf, -torch.inf])  # least and greatest of them

    def forward(
        self,
        images: Tensor,
        mode: Mode = "det",
        samples: int | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Logits (n, trajectories, classes) of every trajectory, adapter by adapter.

        Args:
            images: (n, 3, size, size), prepared and normalised as for the original network; of
                float32.
            mode: `det`, one trajectory for each adapter; or `stoch`, `samples` for each.
            samples: Of each adapter in `stoch`, 4 by default; None in `det`.
            generator: Of the draws, which all images share, on the CPU; None for torch's default
                generator. `torch.utils.checkpoint` repeats the draws of either; for it, a call
                that may be trained draws one number from the default generator.

        Raises:
            ImageError: For images of another shape or type.
            SettingsError: For an unknown mode, samples below 1, or samples in `det`; and in the
                backward pass of `torch.utils.checkpoint` with `preserve_rng_state=False`.
        """
        self._check_type()
        size = self.network.backbone.settings.image_size
        shape = shape_of(images)
        if shape[1:] != (3, size, size) or not shape[0] or images.dtype != torch.float32:
            raise ImageError(
                f"expected images (n, 3, {size}, {size}) of torch.float32, n at least 1, got "
                f"{kind_of(images)}"
            )
        self._count_values(images)
        method, count = self.network.method, len(images)
        if mode == "det":
            if samples is not None:
                raise SettingsError(f"samples: expected none in mode det, got {samples}")
            samples, draws = 1, method.det()
        elif mode == "stoch":
            samples = DEFAULT_SAMPLES if samples is None else samples
            if samples < 1:
                raise SettingsError(f"samples: expected at least 1, got {samples}")
            draws = method.sample(samples, Generator().manual_seed(self._seed(generator)))
        else:
            raise SettingsError(f"mode: expected det or stoch, got {mode}")
        rows = Rows.of([samples] * count, self.network.settings.adapters).to(images.device)
        logits: Tensor = self.network(images, rows, draws.to(images).repeated(count))
        return logits.view(count, -1, len(self.classes))

    def _check_type(self) -> None:
        for parameter in self.parameters():
            if parameter.dtype != torch.float32:
                raise SettingsError(
                    f"model: expected float32 parameters, got {parameter.dtype}; call float(), and "
                    "train in torch.autocast for half precision"
                )

    def _seed(self, generator: Generator | None) -> int:
        """Draws the seed of a pass, or repeats it if activation checkpointing runs it again."""
        if not (self.training or torch.is_grad_enabled()):  # no backward pass can follow
            return drawn_number(generator or torch.default_generator)
        number = drawn_number(torch.default_generator)
        if in_backward():
            return self._seeds.again(number)
        seed = number if generator is None else drawn_number(generator)
        self._seeds.add(seed, number)
        return seed

    def _count_values(self, images: Tensor) -> None:
        """Adds the images of a call to what `save` knows of the loop; a GPU is not waited for."""
        if torch.is_inference_mode_enabled():
            return
        with torch.no_grad():
            step = _step(images.shape[-1])
            values = images[..., ::step, ::step].transpose(0, 1).flatten(1).sort().values
            counts = torch.searchsorted(values, _limits(images.device).repeat(3, 1))
            self._fed = self._fed.to(counts) + counts
            least, greatest = self._ends.to(values)
            self._ends = torch.stack([least.minimum(values.min()), greatest.maximum(values.max())])

    def save(
        self,
        folder: str | Path,
        preprocessing: object = None,
        name: str = "adapted",
        check: "tuple[Tensor, Images] | None" = None,
    ) -> None:
        """Writes a checkpoint for `EulerLoRA.load` and `eulerlora serve` to a new folder.

        It has no thresholds until `eulerlora calibrate`, and no record of the images of your loop:
        `eulerlora evaluate` cannot tell whether test images are among them.

        Without `check`, the values that the loop fed are compared with those that the preprocessing
        gives. They do not show resize, crop and filter: a warning says what will be served if no
        preprocessing was stated, no images were fed or their values leave a doubt.

        Args:
            folder: Missing or empty.
            preprocessing: How your loop prepared images, as in `adapt`; None for that of the model.
            name: Of the checkpoint.
            check: A batch of the loop without random augmentation, its tensors (n, 3, size, size)
                as the model got them and the pictures that they were made of, as in
                `EulerLoRA.predict`. The service's input is computed from the pictures and compared
                with the tensors.

        Raises:
            SettingsError: If the preprocessing is not known, does not fit the images of the loop,
                or gives other tensors than `check` has; for a name or classes that a checkpoint
                does not accept.
            ImageError: For an unusable picture of `check`.
            CheckpointError: If the folder is not empty.
            StorageError: For a full disk.
        """
        from eulerlora.checkpoint.trained import check_input, save_trained  # noqa: PLC0415 - images

        self._check_type()
        size = self.network.backbone.settings.image_size
        prepared = self.preprocessing
        if preprocessing is not None:
            prepared = _stated(preprocessing, size, self.library)
        if prepared is None:
            raise SettingsError(
                "preprocessing: expected how your loop prepared its images, which the network does "
                "not state: an image processor of transformers, timm's resolve_model_data_config, "
                "the transforms of torchvision's weights, or eulerlora.Preprocessing"
                f"(size={size}) for a resize and values in [0, 1]"
            )
        if check is None:
            self._check_values(prepared, self._stated or preprocessing is not None)
        else:
            check_input(check, prepared)
        save_trained(Path(folder), self.network, prepared, self.classes, name, self.library)

    def _check_values(self, prepared: Preprocessing, stated: bool) -> None:
        """Compares the values that the loop fed with those of the preprocessing."""
        fed = self._fed.cpu()
        images = int(fed[0, -1]) // len(range(0, prepared.size, _step(prepared.size))) ** 2
        served = {"mean": prepared.mean, "std": prepared.std}
        reason = _contradiction(fed, served, images) if images else None
        ends = (_levels(served, 0).min(), _levels(served, 1).max())
        expected, found = ("{:.2f} to {:.2f}".format(*of) for of in (ends, self._ends.tolist()))
        if reason is not None:
            raise SettingsError(
                f"preprocessing: expected images with values {expected}, got a loop with values "
                f"{found}, {reason}; state preprocessing= as in the loop, or prove it by "
                "check=(images, pictures)"
            )
        reached = (_beyond(fed, served, -_OVERSHOOT) > _SHARE).any(dim=1)  # black, white
        if not (images and stated) or (images >= _FEW and not reached.any()):
            source = "as stated" if stated else "by the network's own configuration"
            got = f"values {found}" if images else "no images"
            doubt = f"the loop's do not confirm it, got {got}"
            if reached.all():
                doubt = f"so do the loop's ({got}), which do not show resize, crop and filter"
            warnings.warn(
                f"preprocessing: {source}, the service will prepare pictures as {prepared}, which "
                f"gives values {expected}; {doubt}; state preprocessing= as in the loop, or prove "
                "it by check=(images, pictures)",
                stacklevel=3,
            )


def _step(size: int) -> int:
    return max(1, size // _SIDE)


def _limits(device: torch.device | None = None) -> Tensor:
    """Rising values, -548 to 548 and infinity, with steps of 0.005 to 0.015 from -2.7 to 2.7."""
    return F.pad(torch.linspace(-7, 7, 2801, device=device).sinh(), (0, 1), value=torch.inf)


def _levels(colours: Colours, level: float) -> Tensor:
    """(3,), what a normalisation makes of a level, where 0 is black and 1 is white."""
    mean, std = (torch.tensor(colours[key]) for key in ("mean", "std"))
    return (level - mean) / std


def _below(fed: Tensor, values: Tensor) -> Tensor:
    """(3,), the share of a channel's values that are below one value each."""
    limits = _limits()
    nearest = torch.searchsorted((limits[1:] + limits[:-1]) / 2, values)
    return fed.gather(1, nearest[:, None])[:, 0] / fed[:, -1]


def _beyond(fed: Tensor, colours: Colours, margin: float) -> Tensor:
    """(2, 3), the share of values darker than black, and brighter than white, by a margin."""
    dark, bright = _levels(colours, -margin), _levels(colours, 1 + margin)
    return torch.stack([_below(fed, dark), 1 - _below(fed, bright)])


def _contradiction(fed: Tensor, served: Colours, images: int) -> str | None:
    """Why images with these values were prepared in another way; None if they may not be."""
    outside = _beyond(fed, served, _OVERSHOOT).sum(dim=0).max()
    if outside > _OUTSIDE_SHARE:
        return f"{outside:.1%} of a channel's outside that range"
    matched: list[tuple[int, float, Colours]] = []  # by ends with clipped pixels, then by range
    for other in NORMALISATIONS:
        beyond = _beyond(fed, other, _END_WIDTH)
        at_end = _beyond(fed, other, -_END_WIDTH) - beyond
        clipped = (at_end > _END_SHARE) & (beyond < at_end / 10)  # (2, 3), black and white
        apart = torch.stack([_levels(other, end) - _levels(served, end) for end in (0, 1)])
        differs = apart.abs() * torch.tensor(served["std"]) > _OVERSHOOT
        if (clipped & differs).all(dim=1).any():
            ends = int(clipped.all(dim=1).sum())
            matched.append((ends, -float(beyond.sum(dim=0).max()), other))
    if matched:
        *_, best = max(matched, key=lambda one: one[:2])
        return f"whose clipped pixels are those of mean {best['mean']} and std {best['std']}"
    in_unit = (_beyond(fed, UNNORMALISED, _OVERSHOOT) < _SHARE).all()
    if images >= _FEW and in_unit and _levels(served, 0).min() < -2 * _OVERSHOOT:
        return "none below 0"
    return None


def _stated(given: object, size: int, library: str) -> Preprocessing:
    """That of a loop, for this input size, which timm's configuration of a network may not have."""
    if library == "timm" and isinstance(given, Mapping) and "input_size" in given:
        given = {**given, "input_size": (3, size, size)}
    preprocessing = preprocessing_of(given, size)
    if preprocessing.size != size:
        raise SettingsError(
            f"preprocessing: expected size {size}, that of the network's input, got "
            f"{preprocessing.size}; image_size= of adapt changes the network's"
        )
    return preprocessing


def adapt(
    vit: nn.Module,
    rank: int = 20,
    adapters: int = 2,
    min_rank: int | None = None,
    steps: int = 2,
    scale: float = 1.0,
    init_gain: float = INIT_GAIN,
    *,
    classes: int | Sequence[str],
    preprocessing: object = None,
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
        min_rank: As in `eulerlora.sampling.masks.AdapterSettings`; None for its default.
        steps: As in `eulerlora.sampling.masks.AdapterSettings`.
        scale: As in `eulerlora.sampling.masks.AdapterSettings`.
        init_gain: As in `eulerlora.sampling.masks.AdapterSettings`.
        classes: Their names or number, at least 2.
        preprocessing: How your loop prepares images: an image processor of transformers, timm's
            `resolve_model_data_config(vit)`, the transforms of torchvision's weights, a `Compose`
            of a resize, a central crop and a normalisation, or a `Preprocessing`. None for the
            `pretrained_cfg` of timm's network, or for the image processor in the folder from which
            transformers loaded `vit`; if there is none, `save` requires it.
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
    values = {"rank": rank, "adapters": adapters, "steps": steps, "scale": scale}
    least = {} if min_rank is None else {"min_rank": min_rank}
    settings = validated(AdapterSettings, values | least | {"init_gain": init_gain})
    backbone, library = backbone_of_module(vit)
    device = backbone.class_token.device
    if image_size is not None:
        backbone = at_image_size(backbone, image_size)
    size = backbone.settings.image_size
    if preprocessing is None:
        prepared = preprocessing_of_module(vit, library, size)
    else:
        prepared = _stated(preprocessing, size, library)
    network = build_network(backbone, settings, len(names))
    network.initialise(generator or torch.default_generator)
    stated = preprocessing is not None
    return AdaptedClassifier(network.to(device), names, library, prepared, stated)


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
