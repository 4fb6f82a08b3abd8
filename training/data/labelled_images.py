"""Labelled images and their parts: train, calibration and test, stratified by class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Dataset

from eulerlora.config import ClassName
from eulerlora.errors import DataError
from training.augmentation.views import Transform
from training.data.sources import Source, read_image
from training.recipe.schema import OodGroup, Split

OUTSIDE = -1
"""Label of images that belong to none of the classes."""

CALIBRATION_SHARE = 0.1
VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2
SPLIT_SEED = 42


class Labelled(Protocol):
    """An object with a class index."""

    @property
    def label(self) -> int: ...


Item = TypeVar("Item")
LabelledItem = TypeVar("LabelledItem", bound=Labelled)


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
    whose joint sensitivity matters most, if the data set has any.
    """

    name: str
    classes: tuple[ClassName, ...]
    parts: Mapping[str, Sequence[LabelledImage]]
    skipped: Mapping[str, str] = field(default_factory=dict)
    target: tuple[str, ...] = ()


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


def three_parts(
    published: Mapping[str, Sequence[LabelledItem]], split: Split
) -> dict[str, Sequence[LabelledItem]]:
    """Returns train, calibration and test; the same parts every time.

    published: the data set's `train` and `test`, or `all`, of which a fifth becomes the test
    part. The calibration part is a tenth of the training images; `paper` has none.
    `lesion-validation` drops the test part and tests on a tenth of the train part, which is the
    part `validation` of `lesion-best-epoch`.
    """
    if "all" in published:
        train, test = stratified_split(published["all"], TEST_SHARE)
    else:
        train, test = published["train"], published["test"]
    if split == "paper":
        return {"train": train, "test": test}
    train, calibration = stratified_split(train, CALIBRATION_SHARE)
    if split == "lesion":
        return {"train": train, "calibration": calibration, "test": test}
    train, validation = stratified_split(train, VALIDATION_SHARE)
    if split == "lesion-validation":
        return {"train": train, "calibration": calibration, "test": validation}
    return {"train": train, "validation": validation, "calibration": calibration, "test": test}


def stratified_split(
    items: Sequence[LabelledItem], second: float, seed: int = SPLIT_SEED
) -> tuple[Sequence[LabelledItem], Sequence[LabelledItem]]:
    """Returns the items in two parts, stratified by class; the same parts for the same seed.

    second: size of the second part, a fraction of all items, or as an int a count. Raises
    DataError if a class has too few items.
    """
    labels = [item.label for item in items]
    try:
        first_part, second_part = train_test_split(
            list(items), test_size=second, stratify=labels, random_state=seed
        )
    except ValueError as error:
        raise DataError(
            f"expected enough images of every class for a stratified split, got {len(items):,} "
            f"images of {len(set(labels))} classes, the smallest with "
            f"{min(map(labels.count, set(labels)), default=0)}"
        ) from error
    return first_part, second_part
