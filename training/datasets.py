"""Labelled images in named parts: train, calibration, test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Dataset

from eulerlora.config import ClassName
from eulerlora.errors import DataError
from training.augment import Transform
from training.ham10000 import read_ham10000
from training.image_sources import Source, list_images, read_image
from training.recipe import DataSettings

CALIBRATION_SHARE = 0.1
TEST_SHARE = 0.2
SPLIT_SEED = 42


@dataclass(frozen=True)
class LabelledImage:
    """One image: its name, where it is, and its class index."""

    name: str
    source: Source
    label: int


@dataclass(frozen=True)
class ImageParts:
    """A labelled data set, split.

    name: what reports call it, with its split. parts: images of train, calibration and test.
    """

    name: str
    classes: tuple[ClassName, ...]
    parts: Mapping[str, Sequence[LabelledImage]]


class Pictures(Dataset[tuple[Tensor, int]]):
    """A torch dataset of transformed pictures and their labels."""

    def __init__(self, images: Sequence[LabelledImage], transform: Transform) -> None:
        self.images = images
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        return self.transform(index, read_image(image.name, image.source)), image.label


def class_counts(images: Sequence[LabelledImage], classes: int) -> Tensor:
    """(classes,) int64, how many images each class has."""
    return torch.bincount(torch.tensor([each.label for each in images]), minlength=classes)


def read_dataset(settings: DataSettings, directory: Path) -> ImageParts:
    """The data set of a recipe inside a data directory. Raises DataError."""
    whole = _read_whole(settings, directory / settings.path)
    parts = {
        part: _subset(images, settings.at_most.get(part)) for part, images in whole.parts.items()
    }
    changed = [
        f"{len(images):,} of its {len(whole.parts[part]):,} {part} images"
        for part, images in parts.items()
        if len(images) < len(whole.parts[part])
    ]
    return replace(whole, name=", ".join([whole.name, *changed]), parts=parts)


def _subset(images: Sequence[LabelledImage], at_most: int | None) -> Sequence[LabelledImage]:
    if at_most is None or len(images) <= at_most:
        return images
    return stratified_halves(images, at_most)[1]


def _read_whole(settings: DataSettings, place: Path) -> ImageParts:
    if settings.kind == "imagefolder":
        return _read_image_folder(settings, place)
    ham = read_ham10000(place, settings.split)
    parts = {
        part: [LabelledImage(row.image_id, ham.sources[row.image_id], row.label) for row in rows]
        for part, rows in ham.parts.items()
    }
    return ImageParts(f"HAM10000, {settings.split} split", ham.classes, parts)


def _read_image_folder(settings: DataSettings, place: Path) -> ImageParts:
    """`train/<class>/` and `test/<class>/`, or `<class>/` alone, which is then split 80/20.

    The calibration part is a stratified tenth of the training images.
    """
    found = list_images(place)
    folders = {Path(name).parts[-2] for name in found if len(Path(name).parts) > 1}
    if len(folders) < 2:
        raise DataError(f"{place}: wanted a folder of images for each of two classes or more")
    names = sorted(folders)
    labels = {name: index for index, name in enumerate(names)}
    images = [
        LabelledImage(name, source, labels[Path(name).parts[-2]])
        for name, source in found.items()
        if len(Path(name).parts) > 1
    ]
    given = {
        part: [each for each in images if Path(each.name).parts[0] == part]
        for part in ("train", "test")
    }
    if not all(given.values()):
        given["train"], given["test"] = stratified_halves(images, TEST_SHARE)
    train, calibration = stratified_halves(given["train"], CALIBRATION_SHARE)
    classes = tuple(ClassName(name=n, description=settings.classes.get(n, n)) for n in names)
    parts = {"train": train, "calibration": calibration, "test": given["test"]}
    return ImageParts(f"{place.name}, image folder", classes, parts)


def stratified_halves(
    images: Sequence[LabelledImage], share: float
) -> tuple[list[LabelledImage], list[LabelledImage]]:
    """The images in two parts, stratified by class, the same each time.

    share: of the second part: a share of all images, or how many images as an int.
    """
    labels = [each.label for each in images]
    try:
        first, second = train_test_split(
            list(images), test_size=share, stratify=labels, random_state=SPLIT_SEED
        )
    except ValueError as error:
        raise DataError(f"the images cannot be split by class: {error}") from error
    return first, second
