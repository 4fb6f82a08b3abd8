"""Tiny ImageNet in its published layout; CIFAR-10, CIFAR-100 and SVHN through torchvision.

Layout of Tiny ImageNet:

    train/<wnid>/images/*.JPEG      100,000 images of 200 classes, 64 x 64 pixels
    val/images/*.JPEG               10,000 images, with classes in val/val_annotations.txt
    words.txt                       meanings of the WordNet ids

The images of test/ have no labels and are not read.
"""

from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from eulerlora_client.contract.answers import ClassName
from eulerlora_client.errors import DataError
from training.data.cache import decoded_images
from training.data.images import ImageParts, ImageSource, LabelledImage, OnBad, refuse
from training.data.splits import three_parts
from training.recipe.schema import Split

TRAIN, VALIDATION = "train", "val"
ANNOTATIONS, WORDS = "val_annotations.txt", "words.txt"

TorchvisionKind = Literal["cifar10", "cifar100", "svhn"]
PublishedPart = Literal["train", "test"]
PUBLISHED_PARTS: tuple[PublishedPart, ...] = ("train", "test")
READERS = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100, "svhn": datasets.SVHN}
DIGITS = tuple("0123456789")

TITLES = {
    "tiny-imagenet": "Tiny ImageNet",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
}


def split_suffix(split: Split) -> str:
    """Returns the suffix of a data set's name; empty for the default split."""
    return "" if split == "lesion" else f", {split} split"


def read_tiny_imagenet(folder: Path, split: Split, on_bad: OnBad = refuse) -> ImageParts:
    """Returns Tiny ImageNet, with the published validation images as its test part.

    Classes are in the order of their WordNet ids. on_bad: called for each image that cannot be
    decoded or whose class is unknown. Raises DataError for a missing file or folder.
    """
    annotations = _read_table(folder / VALIDATION / ANNOTATIONS)
    words = _read_table(folder / WORDS)
    train, validation = (list(_usable(folder, part, on_bad)) for part in (TRAIN, VALIDATION))
    wnids = sorted({PurePosixPath(name).parts[1] for name, _ in train})
    labels = {wnid: index for index, wnid in enumerate(wnids)}
    published: dict[str, list[LabelledImage]] = {
        "train": [LabelledImage(n, s, labels[PurePosixPath(n).parts[1]]) for n, s in train],
        "test": [],
    }
    for name, source in validation:
        wnid = annotations.get(PurePosixPath(name).name)
        if wnid in labels:
            published["test"].append(LabelledImage(name, source, labels[wnid]))
        else:
            on_bad(name, f"expected a class of {TRAIN}/ in {ANNOTATIONS}, got {wnid}")
    classes = tuple(ClassName(name=wnid, description=words.get(wnid, wnid)) for wnid in wnids)
    title = f"{TITLES['tiny-imagenet']}{split_suffix(split)}"
    return ImageParts(title, classes, three_parts(published, split))


def _usable(folder: Path, part: str, on_bad: OnBad) -> Iterator[tuple[str, ImageSource]]:
    """Yields names below `folder` and sources of the images of a part that can be decoded."""
    decoded = decoded_images(folder / part)
    for name, reason in decoded.bad.items():
        on_bad(f"{part}/{name}", reason)
    yield from ((f"{part}/{name}", source) for name, source in decoded.sources.items())


def _read_table(path: Path) -> dict[str, str]:
    """Returns a file's first two tab-separated columns. Raises DataError if either is missing."""
    try:
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        return {row[0]: row[1] for row in rows}
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise DataError(
            f"{path}: expected a tab-separated table of Tiny ImageNet ({type(error).__name__})"
        ) from error


def read_torchvision_set(kind: TorchvisionKind, folder: Path, split: Split) -> ImageParts:
    """Returns a data set from its published files in `folder`; downloads missing files.

    Raises DataError, with URL and folder, if the download fails.
    """
    readers = {part: _read_published(kind, part, folder) for part in PUBLISHED_PARTS}
    published: dict[str, list[LabelledImage]] = {
        part: list(_labelled(kind, part, reader)) for part, reader in readers.items()
    }
    names = DIGITS if kind == "svhn" else readers["train"].classes
    classes = tuple(ClassName(name=name, description=name) for name in names)
    return ImageParts(
        f"{TITLES[kind]}{split_suffix(split)}", classes, three_parts(published, split)
    )


def _read_published(kind: TorchvisionKind, part: PublishedPart, folder: Path) -> Any:
    try:
        return _open(kind, part, folder, download=False)
    except RuntimeError:  # torchvision: a file is missing, or its digest is wrong
        try:
            return _open(kind, part, folder, download=True)
        except (OSError, RuntimeError, HTTPException) as error:
            raise DataError(
                f"{kind} is incomplete in {folder} and cannot be downloaded ({error}); "
                f"download {_url(kind, part)} to {folder}"
            ) from error


def _labelled(kind: TorchvisionKind, part: PublishedPart, reader: Any) -> Iterator[LabelledImage]:
    if kind == "svhn":
        pixels, labels = _tensor(reader.data), reader.labels.tolist()
    else:
        pixels, labels = _tensor(reader.data.transpose(0, 3, 1, 2)), reader.targets
    for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        yield LabelledImage(f"{part}/{index:05}", image, label)


def _open(kind: TorchvisionKind, part: PublishedPart, folder: Path, download: bool) -> Any:
    if kind == "svhn":
        return datasets.SVHN(folder, split=part, download=download)
    return READERS[kind](folder, train=part == "train", download=download)


def _url(kind: TorchvisionKind, part: PublishedPart) -> str:
    url: str = datasets.SVHN.split_list[part][0] if kind == "svhn" else READERS[kind].url
    return url


def _tensor(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """pixels: (n, 3, height, width) uint8 in any memory order."""
    return torch.from_numpy(np.ascontiguousarray(pixels))
