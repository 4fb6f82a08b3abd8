"""Prerequisites of runs: pretrained weights and images."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from eulerlora.backbone import absent_weights
from training.adaptation.backbone import read_backbone
from training.data.datasets import read_dataset, read_ood_set, read_outliers
from training.data.ham10000 import ARCHIVES, FOLDERS, METADATA, image_paths
from training.data.public_sets import PUBLISHED_PARTS, WORDS, download_advice
from training.recipe.schema import AdapterRecipe, BackboneSource, DataSettings, OodSettings


def missing_inputs(recipe: AdapterRecipe, recipe_folder: Path, data: Path) -> list[str]:
    """Returns one line for each missing input, with the path where a run expects it.

    The line about an input that torchvision can download has its URL; a run with network access
    downloads it.
    """
    lines = [*_backbone(recipe.backbone, recipe_folder), *_images(recipe.data, data)]
    if recipe.outliers is not None:
        lines += _images(OodSettings(kind="images", path=recipe.outliers.path), data)
    for settings in recipe.evaluation.ood:
        lines += _images(settings, data)
    return list(dict.fromkeys(lines))


def read_inputs(runs: Sequence[tuple[AdapterRecipe, Path]], data: Path) -> None:
    """Reads the weights and images of all runs once; downloads missing ones.

    An invalid input is then one error instead of one for each process. runs: recipes with the
    folders that their backbone files are relative to. Raises DataError, SettingsError or
    CheckpointError.
    """
    for recipe, folder in {(run.backbone, folder): (run, folder) for run, folder in runs}.values():
        read_backbone(recipe.backbone, folder, torch.float32)
    for settings in dict.fromkeys(recipe.data.model_dump_json() for recipe, _ in runs):
        read_dataset(DataSettings.model_validate_json(settings), data)
    for outliers in dict.fromkeys(recipe.outliers for recipe, _ in runs):
        if outliers is not None:
            read_outliers(outliers, data)
    for ood in dict.fromkeys(ood for recipe, _ in runs for ood in recipe.evaluation.ood):
        read_ood_set(ood, data)


def _backbone(source: BackboneSource, recipe_folder: Path) -> Iterator[str]:
    if source.weights.endswith(".safetensors") or source.file is not None:
        file = recipe_folder / (source.file or source.weights)
        if not file.exists():
            yield f"the backbone {file}"
    elif (absent := absent_weights(source.weights)) is not None:
        yield absent


def _images(settings: DataSettings | OodSettings, data: Path) -> Iterator[str]:
    path = data / settings.path
    if settings.kind == "imagefolder" or settings.kind == "images":  # noqa: PLR1714 - mypy narrows
        if not path.exists():
            yield f"the images {path}"
    elif settings.kind == "ham10000":
        if not (path / METADATA).exists():
            yield f"HAM10000: {path / METADATA}"
        if not image_paths(path):
            yield f"HAM10000: {path} with {', '.join(FOLDERS)} or {ARCHIVES}"
    elif settings.kind == "tiny-imagenet":
        if not (path / WORDS).exists():
            yield f"Tiny ImageNet: {path / WORDS}"
    else:
        for part in PUBLISHED_PARTS:
            absent = download_advice(settings.kind, part, path)
            if absent is not None:
                yield absent
