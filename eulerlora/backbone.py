"""Frozen backbones: torchvision's published Vision Transformers, and any other of that class."""

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

import torch
from pydantic import ValidationError
from torch import nn
from torchvision import models
from torchvision.models import VisionTransformer, WeightsEnum
from torchvision.models.vision_transformer import interpolate_embeddings

from eulerlora.config import Provenance
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.safetensor_files import read_metadata, read_tensors, write_tensors
from eulerlora.settings import BackboneSettings, validated

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


def build_backbone(settings: BackboneSettings) -> VisionTransformer:
    """A backbone of this shape with fresh weights and no classification head."""
    backbone = VisionTransformer(
        image_size=settings.image_size,
        patch_size=settings.patch_size,
        num_layers=settings.layers,
        num_heads=settings.heads,
        hidden_dim=settings.width,
        mlp_dim=settings.mlp_width,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    return without_head(backbone)


def published_backbone(name: str, file: Path | None = None) -> VisionTransformer:
    """A backbone with one of torchvision's published weights, such as
    `ViT_B_32_Weights.IMAGENET1K_V1`, from torch's hub cache. If they are not there, `file` is
    copied to it, for all that will load them later, or they are downloaded.

    The file's hash is checked and only tensors are read from it. Raises SettingsError for an
    unknown name, a file with another hash, or where the file cannot be had.
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
        raise SettingsError(f"{cached}: not the weights {name} ({_one_line(error)})") from error
    return without_head(backbone)


def absent_weights(name: str) -> str | None:
    """How to get published weights that are not in torch's hub cache; None if they are there.

    Raises SettingsError for an unknown name.
    """
    url = _published(name)[1].url
    return None if _cached(url).exists() else f"{name}: {_advice(url)}"


def _published(name: str) -> tuple[Builder, WeightsEnum]:
    if name not in PUBLISHED:
        raise SettingsError(f"unknown published weights {name!r}; known: {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def _cached(url: str) -> Path:
    """Where torch's hub cache keeps a published file."""
    return Path(torch.hub.get_dir(), "checkpoints", Path(url).name)


def _advice(url: str) -> str:
    return (
        f"fetch {url}, whose SHA-256 begins {_wanted_hash(url)}, and put it at {_cached(url)}, "
        "or train with --set backbone.file=PATH"
    )


def _copy(file: Path, cached: Path) -> None:
    """Puts a file into torch's hub cache in one step, unless it has one of that name."""
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
        torch.hub.download_url_to_file(url, str(file), _wanted_hash(url), sys.stderr.isatty())
    except (OSError, RuntimeError, HTTPException) as error:
        raise SettingsError(
            f"{name} cannot be downloaded ({_one_line(error)}); {_advice(url)}"
        ) from error


def _check_hash(file: Path, url: str) -> None:
    """torch.hub checks the hash in a file's name at the download only, not in its cache."""
    try:
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read ({error.strerror})") from error
    wanted = _wanted_hash(url)
    if not found.startswith(wanted):
        raise SettingsError(
            f"{file}: its SHA-256 begins {found[: len(wanted)]}, wanted {wanted}; remove it"
        )


def _wanted_hash(url: str) -> str:
    """The first digits of a published file's SHA-256, which stand in its name."""
    return Path(url).stem.rpartition("-")[2]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def without_head(backbone: VisionTransformer) -> VisionTransformer:
    """The same backbone; its own classification head, which no adapter uses, is dropped."""
    backbone.heads = nn.Sequential()
    return backbone


def at_image_size(backbone: VisionTransformer, image_size: int) -> VisionTransformer:
    """A backbone with the same weights for another image size, its positions interpolated.

    Raises SettingsError for a size that is no multiple of the patch size.
    """
    tables = settings_of(backbone).model_dump() | {"image_size": image_size}
    settings = validated(BackboneSettings, tables)
    state = interpolate_embeddings(image_size, backbone.patch_size, backbone.state_dict())
    resized = build_backbone(settings)
    resized.load_state_dict(state)
    return resized


def settings_of(backbone: VisionTransformer) -> BackboneSettings:
    """The shape of an existing backbone."""
    return BackboneSettings(
        image_size=backbone.image_size,
        patch_size=backbone.patch_size,
        layers=len(backbone.encoder.layers),
        heads=backbone.encoder.layers[0].num_heads,
        width=backbone.hidden_dim,
        mlp_width=backbone.mlp_dim,
    )


@dataclass(frozen=True)
class BackboneFile:
    """What a `backbone.safetensors` holds: the weights, and how they came about."""

    backbone: VisionTransformer
    provenance: Provenance


def save_backbone(
    path: Path, backbone: VisionTransformer, provenance: Provenance, dtype: torch.dtype
) -> None:
    """Writes a backbone with its shape and provenance in the file's metadata."""
    metadata = {
        "settings": settings_of(backbone).model_dump_json(),
        "provenance": json.dumps(provenance),
    }
    write_tensors(path, backbone.state_dict(), dtype, metadata)


def load_backbone(path: Path) -> BackboneFile:
    """The backbone in a file that `save_backbone` wrote. Raises CheckpointError otherwise."""
    metadata = read_metadata(path)
    try:
        settings = BackboneSettings.model_validate_json(metadata["settings"])
        provenance = json.loads(metadata["provenance"])
    except (KeyError, ValueError, ValidationError) as error:
        raise CheckpointError(path, "its metadata does not describe a backbone") from error
    backbone = build_backbone(settings)
    backbone.load_state_dict(read_tensors(path, backbone.state_dict()))
    return BackboneFile(backbone, provenance)
