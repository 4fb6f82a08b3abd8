"""The frozen backbone of an adapter recipe."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from eulerlora.checkpoint.backbone import at_image_size, load_backbone
from eulerlora.checkpoint.config import Provenance
from eulerlora.checkpoint.files import BACKBONE, DEFAULT_CHECKPOINT
from eulerlora.checkpoint.published_weights import published_backbone
from eulerlora.errors import SettingsError
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import AUTO, Preprocessing
from training.fit.run_state import round_parameters
from training.recipe.schema import BackboneSource


@dataclass(frozen=True)
class FrozenBackbone:
    """A frozen backbone, its provenance and its input.

    published: name of its published weights, if any.
    """

    backbone: VisionTransformer
    published: str | None
    provenance: Provenance
    preprocessing: Preprocessing


EMBEDDED = "embedded"
DOWNLOADED = "ViT_B_32_Weights.IMAGENET1K_V1"
"""What `auto` selects where the weights are stored or can be downloaded."""
DOWNLOAD_TIMEOUT_S = 30.0


def available_source(source: BackboneSource) -> BackboneSource:
    """Returns the source with `auto` replaced by published weights or by the embedded backbone.

    Prints why it selects the embedded one. Another source is returned unchanged.
    """
    if source.weights != AUTO:
        return source
    reason = f"{DOWNLOADED} have another image size"
    if source.image_size is None:
        try:
            with _connection_timeout(DOWNLOAD_TIMEOUT_S):
                published_backbone(DOWNLOADED)
            return source.model_copy(update={"weights": DOWNLOADED})
        except SettingsError as error:
            reason = str(error)
    print(
        f"note: using the embedded backbone, which is small and made for a CPU ({reason})",
        file=sys.stderr,
    )
    return source.model_copy(update={"weights": EMBEDDED})


@contextmanager
def _connection_timeout(seconds: float) -> Iterator[None]:
    """Limits how long a connection waits; torch.hub sets no limit."""
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(previous)


def read_backbone(
    source: BackboneSource, recipe_folder: Path, dtype: torch.dtype
) -> FrozenBackbone:
    """Returns the backbone of a recipe: a file, relative to the recipe, the embedded backbone, or
    published weights.

    The weights of a file are rounded to `dtype`, the type that the checkpoint stores. Raises
    SettingsError for published weights that are unavailable or combined with an image size.
    """
    source = available_source(source)
    if source.weights == EMBEDDED or source.weights.endswith(".safetensors"):
        if source.file is not None:
            raise SettingsError(
                "expected backbone.file only with published weights, got backbone.weights="
                f"{source.weights}"
            )
        packaged = DEFAULT_CHECKPOINT / BACKBONE
        file = load_backbone(
            packaged if source.weights == EMBEDDED else recipe_folder / source.weights
        )
        size = source.image_size or file.preprocessing.size
        backbone = at_image_size(file.backbone, size)
        round_parameters(backbone.named_parameters(), dtype)
        return FrozenBackbone(backbone, None, file.provenance, file.preprocessing.at_size(size))
    if source.image_size is not None:
        raise SettingsError(
            f"expected backbone.image_size={source.image_size} with a backbone file, got the "
            f"published weights {source.weights}, whose size is fixed"
        )
    file_path = None if source.file is None else recipe_folder / source.file
    backbone = published_backbone(source.weights, file_path)
    preprocessing = Preprocessing(size=backbone.settings.image_size)
    return FrozenBackbone(backbone, source.weights, {}, preprocessing)
