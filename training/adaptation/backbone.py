"""The frozen backbone of an adapter recipe."""

from dataclasses import dataclass
from pathlib import Path

import torch

from eulerlora.backbone import at_image_size, load_backbone, published_backbone
from eulerlora.backbone_network import VisionTransformer
from eulerlora.config import Provenance
from eulerlora.errors import SettingsError
from eulerlora.settings import Preprocessing
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


def read_backbone(
    source: BackboneSource, recipe_folder: Path, dtype: torch.dtype
) -> FrozenBackbone:
    """Returns the backbone of a recipe: a file, relative to the recipe, or published weights.

    The weights of a file are rounded to `dtype`, the type that the checkpoint stores. Raises
    SettingsError for published weights that are unavailable or combined with an image size.
    """
    if source.weights.endswith(".safetensors"):
        if source.file is not None:
            raise SettingsError(
                "expected backbone.file only with published weights, got backbone.weights="
                f"{source.weights}"
            )
        file = load_backbone(recipe_folder / source.weights)
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
