"""Frozen backbones: torchvision's published Vision Transformers, and any other of that class."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


def published_backbone(name: str) -> VisionTransformer:
    """A backbone with one of torchvision's published weights, such as
    `ViT_B_32_Weights.IMAGENET1K_V1`, from torch's hub cache or, if not there, downloaded.

    The file's hash is checked and only tensors are read from it. Raises SettingsError for an
    unknown name.
    """
    if name not in PUBLISHED:
        raise SettingsError(f"unknown published weights {name!r}; known: {', '.join(PUBLISHED)}")
    builder, weights = PUBLISHED[name]
    backbone = builder(image_size=weights.meta["min_size"][0])
    _check_cached(weights.url)
    try:
        state = weights.get_state_dict(check_hash=True, weights_only=True)
    except RuntimeError as error:  # torch.hub: the download's hash is not the published one
        raise SettingsError(f"{name}: {' '.join(str(error).split())}") from error
    backbone.load_state_dict(state)
    return without_head(backbone)


def _check_cached(url: str) -> None:
    """torch.hub checks the hash in a file's name at the download only, not in its cache."""
    file = Path(torch.hub.get_dir(), "checkpoints", Path(url).name)
    if not file.exists():
        return
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    wanted = file.stem.rpartition("-")[2]
    if not found.startswith(wanted):
        raise SettingsError(f"{file}: its SHA-256 begins {found[:8]}, wanted {wanted}; remove it")


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
