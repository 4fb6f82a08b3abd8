"""Prerequisites of runs: pretrained weights and images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eulerlora.checkpoint.published_weights import absent_weights
from eulerlora.images.files import image_files
from eulerlora.settings import AUTO
from training.adaptation.network import EMBEDDED, read_backbone
from training.data.datasets import read_dataset, read_ood_set, read_outliers
from training.data.ham10000 import ARCHIVES, FOLDERS, METADATA, image_paths
from training.data.labels import LABELS, folder_labels
from training.data.public_sets import PUBLISHED_PARTS, WORDS, download_advice
from training.data.splits import CALIBRATION_SHARE, TEST_SHARE, VALIDATION_SHARE
from training.recipe.schema import AdapterRecipe, BackboneSource, DataSettings, OodSettings

PUBLISHED_IMAGES = {
    "ham10000": (8_012, 2_003),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "svhn": (73_257, 26_032),
    "tiny-imagenet": (100_000, 10_000),
}
"""Training and test images of the data sets as published."""


@dataclass(frozen=True)
class ImageCounts:
    """The number of images of a data set by part, up to rounding."""

    train: int
    calibration: int
    test: int


def image_counts(settings: DataSettings, data: Path) -> ImageCounts | None:
    """Returns the size of a data set without opening an image.

    None for a user's archive, or a folder that is missing or has the labels of a table.
    """
    folder = data / settings.path
    if settings.kind in PUBLISHED_IMAGES:
        train, test = PUBLISHED_IMAGES[settings.kind]
    elif folder.is_dir() and not (folder / LABELS).exists():
        names = [path.relative_to(folder).as_posix() for path in image_files(folder)]
        labels = folder_labels(names).labels
        stated = sum(row.part == "test" for row in labels)
        test = stated or round(len(labels) * TEST_SHARE)
        train = len(labels) - test
    elif {"train", "test"} <= settings.at_most.keys():
        train, test = settings.at_most["train"] * 2, settings.at_most["test"]
    else:
        return None
    calibration = 0 if settings.split == "paper" else round(train * CALIBRATION_SHARE)
    validation = 0
    if settings.split in ("lesion-validation", "lesion-best-epoch"):
        validation = round((train - calibration) * VALIDATION_SHARE)
    parts = {
        "train": train - calibration - validation,
        "calibration": calibration,
        "test": validation if settings.split == "lesion-validation" else test,
    }
    limits = {str(part): limit for part, limit in settings.at_most.items()}
    return ImageCounts(**{part: min(n, limits.get(part, n)) for part, n in parts.items()})


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
    if source.weights in (AUTO, EMBEDDED):
        return
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
