"""Labelled images in named parts: train, calibration, test; and images without a label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import torch
from torch import Tensor
from torch.utils.data import Dataset

from eulerlora.config import ClassName
from eulerlora.errors import DataError
from training.data.augmentation import Transform
from training.data.bad_images import OnBad, refuse
from training.data.cache import decoded_images
from training.data.ham10000 import MALIGNANT, read_ham10000
from training.data.image_folder import class_folders
from training.data.image_sources import Source, read_image
from training.data.splits import evenly_spaced, stratified_halves, three_parts
from training.data.tiny_imagenet import read_tiny_imagenet
from training.data.torchvision_sets import PARTS, Kind, read_torchvision_part
from training.recipe.schema import DataSettings, OodSettings, OutlierSettings, Part, Split

TITLES = {
    "ham10000": "HAM10000",
    "tiny-imagenet": "Tiny ImageNet",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
}

OUTSIDE = -1
"""The label of images that belong to none of the classes."""


@dataclass(frozen=True, eq=False)  # pixels have no one truth value
class LabelledImage:
    """One image: its name, where it is, and its class index.

    cluster: what it shares with other images of the same thing, such as a lesion, if known.
    groups: which group it is in, such as "female", by what the groups are of, such as "sex".
    """

    name: str
    source: Source
    label: int
    cluster: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageParts:
    """A labelled data set, split.

    name: what reports call it, with its split. parts: images of train, calibration (not in every
    split) and test. skipped: why images or rows were left out, by name. target: classes that
    together must not be missed, where the data set has such.
    """

    name: str
    classes: tuple[ClassName, ...]
    parts: Mapping[str, Sequence[LabelledImage]]
    skipped: Mapping[str, str] = field(default_factory=dict)
    target: tuple[str, ...] = ()


@dataclass(frozen=True)
class OodSet:
    """Images of none of the classes, labelled OUTSIDE; `name` and `skipped` as in ImageParts."""

    name: str
    images: Sequence[LabelledImage]
    skipped: Mapping[str, str]


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


def read_dataset(settings: DataSettings, directory: Path, skip_bad: bool = False) -> ImageParts:
    """The data set of a recipe inside a data directory; every image of it opens.

    skip_bad: bad images are left out and listed in `skipped`, instead of a DataError.
    """
    skipped: dict[str, str] = {}
    on_bad = skipped.__setitem__ if skip_bad else refuse
    place = directory / settings.path
    if settings.kind == "imagefolder":
        found = _read_image_folder(settings, place, on_bad)
    elif settings.kind == "ham10000":
        found = _read_ham10000(settings, place, on_bad)
    elif settings.kind == "tiny-imagenet":
        found = _read_tiny_imagenet(settings.split, place, on_bad)
    else:  # torchvision checks the digests of its files: no image of theirs is bad
        found = _read_torchvision_set(settings.kind, place, settings.split)
    return replace(_at_most(found, settings.at_most), skipped=skipped)


def _at_most(images: ImageParts, limits: Mapping[Part, int]) -> ImageParts:
    """The same data set with no more than so many images of a part; its name tells of it."""
    name, parts = images.name, dict(images.parts)
    for part, limit in limits.items():
        whole = images.parts.get(part, [])
        if limit < len(whole):
            parts[part] = stratified_halves(whole, limit)[1]
            name += f", {limit:,} of {len(whole):,} {part} images"
    return replace(images, name=name, parts=parts)


def read_ood_set(settings: OodSettings, directory: Path, skip_bad: bool = False) -> OodSet:
    """Out-of-distribution images inside a data directory.

    Of kind `images`, all below a folder or in an archive, or only those of `test/` where it has
    one; of a data set, the test part. Raises DataError where there are none.
    """
    if settings.kind == "images":
        return _read_images(settings.path, "test", directory, skip_bad)
    data = DataSettings(kind=settings.kind, path=settings.path, split="paper")
    known = read_dataset(data, directory, skip_bad)
    images = [replace(each, label=OUTSIDE) for each in known.parts["test"]]
    return OodSet(TITLES[settings.kind], images, known.skipped)


def read_outliers(settings: OutlierSettings, directory: Path, skip_bad: bool = False) -> OodSet:
    """Images of something else to train with. Raises DataError where there are none."""
    found = _read_images(settings.path, "train", directory, skip_bad)
    return OodSet(settings.path, evenly_spaced(found.images, settings.images), found.skipped)


def _read_images(path: str, part: Part, directory: Path, skip_bad: bool) -> OodSet:
    """All images of a place, or those of its folder `part` where it has one."""
    place = directory / path
    found = decoded_images(place)
    names = sorted({*found.sources, *found.bad})
    names = [name for name in names if name.startswith(f"{part}/")] or names
    skipped = {_in_place(path, n): found.bad[n] for n in names if n in found.bad}
    if not skip_bad:
        for name, reason in skipped.items():
            refuse(name, reason)
    images = [LabelledImage(n, found.sources[n], OUTSIDE) for n in names if n in found.sources]
    if not images:
        raise DataError(f"{place}: none of its images opens")
    return OodSet(place.resolve().name, images, skipped)


def _read_ham10000(settings: DataSettings, place: Path, on_bad: OnBad) -> ImageParts:
    ham = read_ham10000(place, settings.split, on_bad)
    parts = {
        part: [
            LabelledImage(
                row.image_id, ham.sources[row.image_id], row.label, row.lesion_id, row.groups
            )
            for row in rows
        ]
        for part, rows in ham.parts.items()
    }
    name = f"{TITLES['ham10000']}, {settings.split} split"
    known = [each.name for each in ham.classes]
    target = tuple(each for each in MALIGNANT if each in known)
    return ImageParts(name, ham.classes, parts, target=target)


def _read_tiny_imagenet(split: Split, place: Path, on_bad: OnBad) -> ImageParts:
    tiny = read_tiny_imagenet(place, on_bad)
    labelled = {
        part: [LabelledImage(each.name, each.source, each.label) for each in images]
        for part, images in tiny.parts.items()
    }
    name = f"{TITLES['tiny-imagenet']}{_suffix(split)}"
    return ImageParts(name, tiny.classes, three_parts(labelled, split))


def _read_torchvision_set(kind: Kind, place: Path, split: Split) -> ImageParts:
    given = {part: read_torchvision_part(kind, part, place) for part in PARTS}
    labelled: dict[str, list[LabelledImage]] = {
        part: [
            LabelledImage(f"{part}/{index:05}", pixels, label)
            for index, (pixels, label) in enumerate(zip(each.pixels, each.labels, strict=True))
        ]
        for part, each in given.items()
    }
    classes = tuple(ClassName(name=name, description=name) for name in given["train"].classes)
    parts = three_parts(labelled, split)
    return ImageParts(f"{TITLES[kind]}{_suffix(split)}", classes, parts)


def _read_image_folder(settings: DataSettings, place: Path, on_bad: OnBad) -> ImageParts:
    """A bad image changes nothing for the others: parts are made first, then it is left out."""
    found = decoded_images(place)
    folders = class_folders(place, sorted({*found.sources, *found.bad}), settings.classes.keys())
    parts = {}
    for part, images in three_parts(folders.parts, settings.split).items():
        for image in images:
            if image.name in found.bad:
                on_bad(_in_place(settings.path, image.name), found.bad[image.name])
        parts[part] = [
            LabelledImage(image.name, found.sources[image.name], image.label)
            for image in images
            if image.name in found.sources
        ]
    trained = {image.label for image in parts["train"]}
    for label, name in enumerate(folders.classes):
        if label not in trained:
            raise DataError(f"{place}: no training image of the class {name} opens")
    classes = tuple(
        ClassName(name=name, description=settings.classes.get(name, name))
        for name in folders.classes
    )
    return ImageParts(f"{place.name}, image folder{_suffix(settings.split)}", classes, parts)


def _suffix(split: Split) -> str:
    return "" if split == "lesion" else f", {split} split"


def _in_place(path: str, name: str) -> str:
    """An image's name relative to the data directory."""
    return (PurePath(path) / name).as_posix()
