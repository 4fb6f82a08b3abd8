"""Frozen backbones: their files and other image sizes."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from eulerlora.checkpoint.config import Provenance
from eulerlora.checkpoint.safetensor_files import read_metadata, read_tensors, write_tensors
from eulerlora.errors import CheckpointError
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import BackboneSettings, Preprocessing
from eulerlora_client.settings import validated

POSITIONS = "encoder.pos_embedding"


def with_weights(settings: BackboneSettings, state: Mapping[str, Tensor]) -> VisionTransformer:
    """Returns a backbone with these tensors as its parameters; it allocates nothing."""
    with torch.device("meta"):
        backbone = VisionTransformer(settings)
    backbone.load_state_dict(state, assign=True)
    return backbone


def at_image_size(backbone: VisionTransformer, image_size: int) -> VisionTransformer:
    """Returns a backbone with the same weights for another image size.

    The position embeddings are interpolated. Raises SettingsError for a size that is not a multiple
    of the patch size.
    """
    old = backbone.settings
    settings = validated(BackboneSettings, old.model_dump() | {"image_size": image_size})
    state = backbone.state_dict()
    return with_weights(
        settings, state | {POSITIONS: resized_positions(state[POSITIONS], settings)}
    )


def resized_positions(positions: Tensor, settings: BackboneSettings) -> Tensor:
    """Returns position embeddings, interpolated to the image size of `settings`.

    positions: (1, 1 + side * side, width), the class token's first.
    """
    side = settings.image_size // settings.patch_size
    own_side = math.isqrt(positions.shape[1] - 1)
    if side == own_side:
        return positions
    grid = positions[:, 1:].mT.unflatten(-1, (own_side, own_side))
    resized = F.interpolate(
        grid,
        size=(side, side),
        mode="bicubic",
        align_corners=settings.positions == "corners",
        antialias=settings.positions == "cells-antialias",
    )
    return torch.cat([positions[:, :1], resized.flatten(2).mT], dim=1)


@dataclass(frozen=True)
class BackboneFile:
    """The content of a `backbone.safetensors`: the weights, their provenance and their input."""

    backbone: VisionTransformer
    provenance: Provenance
    preprocessing: Preprocessing


def save_backbone(
    path: Path,
    backbone: VisionTransformer,
    provenance: Provenance,
    dtype: torch.dtype,
    preprocessing: Preprocessing | None = None,
) -> None:
    """Writes a backbone; its shape, provenance and preprocessing are metadata of the file.

    preprocessing: None for that of torchvision's backbones in the paper, a resize alone.
    """
    shape = backbone.settings
    preprocessing = preprocessing or Preprocessing(size=shape.image_size)
    metadata = {
        "settings": shape.model_dump_json(),
        "provenance": json.dumps(provenance),
        "preprocessing": preprocessing.model_dump_json(),
    }
    write_tensors(path, backbone.state_dict(), dtype, metadata)


def load_backbone(path: Path) -> BackboneFile:
    """Reads a file of `save_backbone`. Raises CheckpointError for any other or damaged file."""
    metadata = read_metadata(path)
    try:
        settings = BackboneSettings.model_validate_json(metadata["settings"])
        provenance = json.loads(metadata["provenance"])
        preprocessing = Preprocessing(size=settings.image_size)
        if "preprocessing" in metadata:  # absent from files of version 0.1
            preprocessing = Preprocessing.model_validate_json(metadata["preprocessing"])
    except (KeyError, ValueError, ValidationError) as error:
        raise CheckpointError(path, "expected metadata of a backbone") from error
    return BackboneFile(read_backbone_weights(path, settings), provenance, preprocessing)


def read_backbone_weights(path: Path, settings: BackboneSettings) -> VisionTransformer:
    """Returns a backbone of this shape with the weights of a file. Raises CheckpointError."""
    with torch.device("meta"):  # the numbers in the settings allocate nothing
        expected = VisionTransformer(settings).state_dict()
    return with_weights(settings, read_tensors(path, expected))
