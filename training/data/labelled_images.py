"""Labelled images, their parts, and sets of out-of-distribution images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from eulerlora.checkpoint.config import ClassName
from training.augmentation.views import Transform
from training.data.sources import Source, read_image
from training.recipe.schema import OodGroup

OUTSIDE = -1
"""Label of images that belong to none of the classes."""

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)  # comparing tensors gives no single truth value
class LabelledImage:
    """An image with its name, source and class index.

    cluster: identifier of the subject that several images share, such as a lesion, if known.
    groups: the image's group by attribute, such as "female" by "sex".
    """

    name: str
    source: Source
    label: int
    cluster: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageParts:
    """A labelled data set, split.

    name: title in reports, with the split. parts: images of train, validation and calibration (not
    in every split) and test. skipped: reasons by name for skipped images or rows. target: classes
    whose joint sensitivity matters most, if the data set has any. notes: remarks for the user.
    """

    name: str
    classes: tuple[ClassName, ...]
    parts: Mapping[str, Sequence[LabelledImage]]
    skipped: Mapping[str, str] = field(default_factory=dict)
    target: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OodSet:
    """Images that differ from the data set; `name` and `skipped` as in ImageParts.

    Images of none of the classes are labelled OUTSIDE. group: how they differ (`OodSettings`).
    generated: True for pictures of `training.ood`, False for those of a folder or archive.
    """

    name: str
    images: Sequence[LabelledImage]
    skipped: Mapping[str, str] = field(default_factory=dict)
    group: OodGroup = "far"
    generated: bool = False


class ImageDataset(Dataset[tuple[Tensor, int]]):
    """A torch data set of transformed images and their labels."""

    def __init__(self, images: Sequence[LabelledImage], transform: Transform) -> None:
        self.images = images
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        return self.transform(index, read_image(image.name, image.source)), image.label


def class_counts(images: Sequence[LabelledImage], classes: int) -> Tensor:
    """Returns (classes,) int64, the number of images per class."""
    return torch.bincount(torch.tensor([image.label for image in images]), minlength=classes)


def evenly_spaced(items: Sequence[Item], count: int | None) -> Sequence[Item]:
    """Returns `count` items at equal distances, beginning with the first; all if fewer or None."""
    if count is None or count >= len(items):
        return items
    return [items[index * len(items) // count] for index in range(count)]
