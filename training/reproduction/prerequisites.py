"""What runs need before their first step: pretrained weights and images."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from eulerlora.backbone import absent_weights
from training.adaptation.train import read_backbone
from training.data.datasets import read_dataset, read_ood_set, read_outliers
from training.data.ham10000 import ARCHIVES, FOLDERS, METADATA, image_places
from training.data.tiny_imagenet import WORDS
from training.data.torchvision_sets import PARTS, absent_part
from training.recipe.schema import AdapterRecipe, BackboneSource, DataSettings, OodSettings


def missing(recipe: AdapterRecipe, recipe_folder: Path, data: Path) -> list[str]:
    """A line about each thing that is not there: what it is and where it belongs.

    What torchvision can download is named with its address: where there is a network, a run
    fetches it by itself.
    """
    found = [*_backbone(recipe.backbone, recipe_folder), *_images(recipe.data, data)]
    if recipe.outliers is not None:
        found += _images(OodSettings(kind="images", path=recipe.outliers.path), data)
    for each in recipe.evaluation.ood:
        found += _images(each, data)
    return list(dict.fromkeys(found))


def prepare(runs: Sequence[tuple[AdapterRecipe, Path]], data: Path) -> None:
    """Reads the weights and images of all runs once, so that what is missing is downloaded, or
    told in one line, before many processes would find out.

    runs: recipes with the folders that their backbone files are relative to. Raises DataError,
    SettingsError or CheckpointError.
    """
    for recipe, folder in {(run.backbone, folder): (run, folder) for run, folder in runs}.values():
        read_backbone(recipe.backbone, folder, torch.float32)
    for settings in dict.fromkeys(recipe.data.model_dump_json() for recipe, _ in runs):
        read_dataset(DataSettings.model_validate_json(settings), data)
    for outliers in dict.fromkeys(recipe.outliers for recipe, _ in runs):
        if outliers is not None:
            read_outliers(outliers, data)
    for outside in dict.fromkeys(each for recipe, _ in runs for each in recipe.evaluation.ood):
        read_ood_set(outside, data)


def _backbone(source: BackboneSource, recipe_folder: Path) -> Iterator[str]:
    if source.weights.endswith(".safetensors") or source.file is not None:
        file = recipe_folder / (source.file or source.weights)
        if not file.exists():
            yield f"the backbone {file}"
    elif (absent := absent_weights(source.weights)) is not None:
        yield absent


def _images(settings: DataSettings | OodSettings, data: Path) -> Iterator[str]:
    place = data / settings.path
    if settings.kind == "imagefolder" or settings.kind == "images":  # noqa: PLR1714 - mypy narrows
        if not place.exists():
            yield f"the images {place}"
    elif settings.kind == "ham10000":
        if not (place / METADATA).exists():
            yield f"HAM10000: {place / METADATA}"
        if not image_places(place):
            yield f"HAM10000: {place} with {', '.join(FOLDERS)} or {ARCHIVES}"
    elif settings.kind == "tiny-imagenet":
        if not (place / WORDS).exists():
            yield f"Tiny ImageNet: {place / WORDS}"
    else:
        for part in PARTS:
            absent = absent_part(settings.kind, part, place)
            if absent is not None:
                yield absent
