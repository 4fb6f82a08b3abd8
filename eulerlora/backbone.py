"""Frozen backbones: torchvision's published Vision Transformers and others of the same class."""

import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError

import torch
from pydantic import ValidationError
from torch import nn
from torchvision import models
from torchvision.models import VisionTransformer, WeightsEnum
from torchvision.models.vision_transformer import ConvStemConfig, interpolate_embeddings

from eulerlora.config import Provenance
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.safetensor_files import read_metadata, read_tensors, write_tensors
from eulerlora.settings import BackboneSettings
from eulerlora.validation import validated

Builder = Callable[..., VisionTransformer]

PUBLISHED: dict[str, tuple[Builder, WeightsEnum]] = {
    f"{family.__name__}.{weights.name}": (builder, weights)
    for builder, family in (
        (models.vit_b_16, models.ViT_B_16_Weights),
        (models.vit_b_32, models.ViT_B_32_Weights),
        (models.vit_l_16, models.ViT_L_16_Weights),
        (models.vit_l_32, models.ViT_L_32_Weights),
        (models.vit_h_14, models.ViT_H_14_Weights),
    )
    for weights in family
}


def build_backbone(
    settings: BackboneSettings, stem_norm: type[nn.Module] | None = None
) -> VisionTransformer:
    """Returns a backbone of this shape with new weights, without a classification head.

    stem_norm: normalisation after each convolution of a convolutional stem. A stored backbone has
    none: pretraining folds batch normalisation into the convolutions.
    """
    backbone = VisionTransformer(
        image_size=settings.image_size,
        patch_size=settings.patch_size,
        num_layers=settings.layers,
        num_heads=settings.heads,
        hidden_dim=settings.width,
        mlp_dim=settings.mlp_width,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
        conv_stem_configs=_stem(settings, stem_norm),
    )
    return without_head(backbone)


def _stem(settings: BackboneSettings, norm: type[nn.Module] | None) -> list[ConvStemConfig] | None:
    """Returns the convolutions of the stem; None for a patch embedding.

    Their channels double up to `width`; torchvision adds a 1x1 convolution.
    """
    if settings.stem == "patch":
        return None
    widths = [settings.width >> left for left in reversed(range(settings.stem_layers))]
    return [ConvStemConfig(max(8, channels), 3, 2, norm_layer=norm) for channels in widths]


def published_backbone(name: str, file: Path | None = None) -> VisionTransformer:
    """Returns a backbone with one of torchvision's published weights.

    The weights come from torch's hub cache. If the cache does not have them, `file` is copied to
    it, or they are downloaded. The hash of the file is verified and only tensors are read from it.
    name: such as `ViT_B_32_Weights.IMAGENET1K_V1`. Raises SettingsError for an unknown name, a file
    with another hash and a file that is not available.
    """
    builder, weights = _published(name)
    backbone = builder(image_size=weights.meta["min_size"][0])
    cached = _cached(weights.url)
    if file is not None:
        _check_hash(file, weights.url)
        _copy(file, cached)
    elif not cached.exists():
        _download(name, weights.url, cached)
    _check_hash(cached, weights.url)
    try:
        state = torch.load(cached, map_location="cpu", weights_only=True)
        backbone.load_state_dict(state)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise SettingsError(f"{cached}: does not contain the weights {name}") from error
    return without_head(backbone)


def absent_weights(name: str) -> str | None:
    """Returns how to get published weights; None if they are in torch's hub cache.

    Raises SettingsError for an unknown name.
    """
    url = _published(name)[1].url
    return None if _cached(url).exists() else f"{name}: {_advice(url)}"


def _published(name: str) -> tuple[Builder, WeightsEnum]:
    if name not in PUBLISHED:
        raise SettingsError(
            f"expected published weights among {', '.join(PUBLISHED)}, got {name!r}"
        )
    return PUBLISHED[name]


def _cached(url: str) -> Path:
    """Returns the path of a published file in torch's hub cache."""
    return Path(torch.hub.get_dir(), "checkpoints", Path(url).name)


def _advice(url: str) -> str:
    return (
        f"fetch {url}, whose SHA-256 begins {_hash_prefix(url)}, and put it at {_cached(url)}, "
        "or train with --set backbone.file=PATH"
    )


def _copy(file: Path, cached: Path) -> None:
    """Copies a file to torch's hub cache in one step, unless the cache has it."""
    if cached.exists():
        return
    partial = cached.with_name(f".{cached.name}.{os.getpid()}.partial")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, partial)
        partial.replace(cached)
    except OSError as error:
        raise SettingsError(f"{file} cannot be copied to {cached} ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)


def _download(name: str, url: str, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(file), _hash_prefix(url), sys.stderr.isatty())
    except RuntimeError as error:  # torch.hub: the hash differs
        raise SettingsError(
            f"{name}: the downloaded file has another hash; {_advice(url)}"
        ) from error
    except (OSError, HTTPException) as error:
        reason = _system_reason(error)
        raise SettingsError(f"{name} cannot be downloaded{reason}; {_advice(url)}") from error


def _system_reason(error: Exception) -> str:
    """Returns " (REASON)" with the reason of the system, such as a full disk, if there is one."""
    cause = error.reason if isinstance(error, URLError) else error
    return f" ({cause.strerror})" if isinstance(cause, OSError) and cause.strerror else ""


def _check_hash(file: Path, url: str) -> None:
    """Verifies the hash in a file's name; torch.hub does so only after a download.

    Raises SettingsError.
    """
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read ({error.strerror})") from error
    prefix = _hash_prefix(url)
    if not digest.startswith(prefix):
        raise SettingsError(
            f"{file}: expected a SHA-256 that begins {prefix}, got {digest[: len(prefix)]}; "
            "replace the file"
        )


def _hash_prefix(url: str) -> str:
    """Returns the first digits of a published file's SHA-256, which are part of its name."""
    return Path(url).stem.rpartition("-")[2]


def without_head(backbone: VisionTransformer) -> VisionTransformer:
    """Removes the classification head of a backbone, in place, and returns the backbone."""
    backbone.heads = nn.Sequential()
    return backbone


def at_image_size(backbone: VisionTransformer, image_size: int) -> VisionTransformer:
    """Returns a backbone with the same weights for another image size.

    The position embeddings are interpolated. Raises SettingsError for a size that is not a multiple
    of the patch size.
    """
    tables = settings_of(backbone).model_dump() | {"image_size": image_size}
    settings = validated(BackboneSettings, tables)
    state = interpolate_embeddings(image_size, backbone.patch_size, backbone.state_dict())
    resized = build_backbone(settings)
    resized.load_state_dict(state)
    return resized


def settings_of(backbone: VisionTransformer) -> BackboneSettings:
    """Returns the shape of a backbone."""
    return BackboneSettings(
        image_size=backbone.image_size,
        patch_size=backbone.patch_size,
        layers=len(backbone.encoder.layers),
        heads=backbone.encoder.layers[0].num_heads,
        width=backbone.hidden_dim,
        mlp_width=backbone.mlp_dim,
        stem="convolution" if isinstance(backbone.conv_proj, nn.Sequential) else "patch",
    )


@dataclass(frozen=True)
class BackboneFile:
    """The content of a `backbone.safetensors`: the weights and their provenance."""

    backbone: VisionTransformer
    provenance: Provenance


def save_backbone(
    path: Path, backbone: VisionTransformer, provenance: Provenance, dtype: torch.dtype
) -> None:
    """Writes a backbone, with its shape and provenance as metadata of the file."""
    metadata = {
        "settings": settings_of(backbone).model_dump_json(),
        "provenance": json.dumps(provenance),
    }
    write_tensors(path, backbone.state_dict(), dtype, metadata)


def load_backbone(path: Path) -> BackboneFile:
    """Reads a file of `save_backbone`. Raises CheckpointError for any other or damaged file."""
    metadata = read_metadata(path)
    try:
        settings = BackboneSettings.model_validate_json(metadata["settings"])
        provenance = json.loads(metadata["provenance"])
    except (KeyError, ValueError, ValidationError) as error:
        raise CheckpointError(path, "expected metadata of a backbone") from error
    with torch.device("meta"):  # the numbers in the metadata allocate nothing
        backbone = build_backbone(settings)
    backbone.load_state_dict(read_tensors(path, backbone.state_dict()), assign=True)
    return BackboneFile(backbone, provenance)
