"""Published data sets: HAM10000 and its splits, Tiny ImageNet, and those of torchvision.

Layout of Tiny ImageNet:

    train/<wnid>/images/*.JPEG      100,000 images of 200 classes, 64 x 64 pixels
    val/images/*.JPEG               10,000 images, with classes in val/val_annotations.txt
    words.txt                       meanings of the WordNet ids

The images of test/ have no labels and are not read.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch
from sklearn.model_selection import StratifiedGroupKFold, train_test_split
from torchvision import datasets

from eulerlora_contract.answers import ClassName
from eulerlora_contract.errors import DataError
from training.data.cache import DecodedImages, decoded_images
from training.data.images import ImageParts, ImageSource, LabelledImage, OnBad, refuse
from training.data.splits import SPLIT_SEED, SplitParts, parts_of
from training.recipe.schema import Part, Split

TITLES = {
    "ham10000": "HAM10000",
    "tiny-imagenet": "Tiny ImageNet",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
}
METADATA = "HAM10000_metadata.csv"
FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")
ARCHIVE_PATTERN = "ham10000*.tar*"
FOLDS: Mapping[Part, int] = {"test": 5, "calibration": 8, "validation": 10}
"""Folds of the images that are in no earlier part, by lesion except in the split `paper`; one of
them is the part.
"""

DESCRIPTIONS = {
    "akiec": "actinic keratosis or intraepithelial carcinoma (Bowen's disease)",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis-like lesion (solar lentigo, seborrheic keratosis, lichen planus-like)",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevus",
    "vasc": "vascular lesion (angioma, angiokeratoma, pyogenic granuloma, haemorrhage)",
}
AGE_GROUPS = {39: "0 to 39", 59: "40 to 59", 200: "60 and over"}
"""Age groups by their highest age in years."""
UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Ham10000Row:
    """A row of the metadata. label: index of the classes in order of first appearance.

    cluster: the lesion. attributes: sex, age group and body site; "unknown" if missing.
    """

    image_id: str
    cluster: str
    label: int
    attributes: Mapping[str, str]


def read_ham10000(folder: Path, split: Split, on_bad: OnBad = refuse) -> ImageParts:
    """Returns HAM10000 from its metadata file and its image folders or archive in `folder`.

    on_bad: called for each row with an unknown `dx` and for each image of the split that is
    missing or cannot be decoded; if it returns, the row is skipped, and no other image changes
    its part. Raises DataError for a missing file or too few rows.
    """
    rows, names = read_rows(folder / METADATA, on_bad)
    images = _decoded_by_id(folder)
    try:
        parts = split_rows(rows, split)
    except ValueError as error:
        raise DataError(
            f"{folder / METADATA}: expected enough rows of every class for the {split} split, "
            f"got {len(rows)}"
        ) from error
    selected = {row for members in parts.values() for row in members}
    for row in rows:
        if row in selected and row.image_id in images.bad:
            on_bad(f"{row.image_id}.jpg", images.bad[row.image_id])
        elif row in selected and row.image_id not in images.sources:
            on_bad(row.image_id, f"is in {METADATA}, but {row.image_id}.jpg is missing")
    labelled = {
        part: [
            LabelledImage(
                row.image_id, images.sources[row.image_id], row.label, row.cluster, row.attributes
            )
            for row in members
            if row.image_id in images.sources
        ]
        for part, members in parts.items()
    }
    classes = tuple(ClassName(name=name, description=DESCRIPTIONS[name]) for name in names)
    return ImageParts(f"{TITLES['ham10000']}, {split} split", classes, labelled)


def read_rows(path: Path, on_bad: OnBad = refuse) -> tuple[list[Ham10000Row], list[str]]:
    """Returns the rows in file order, and the class names in order of first appearance.

    on_bad: called for each row with an unknown `dx`; if it returns, the row is skipped. Raises
    DataError for a file that is missing or lacks columns.
    """
    try:
        with path.open(newline="") as file:
            table = [(_row(cells), cells["dx"]) for cells in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: expected the metadata of HAM10000 ({error!r})") from error
    known = []
    for number, (row, dx) in enumerate(table, start=1):
        if dx in DESCRIPTIONS:
            known.append((row, dx))
        else:
            name = f"{METADATA} row {number} ({row.image_id})"
            on_bad(name, f"expected dx to be one of {', '.join(DESCRIPTIONS)}, got {dx!r}")
    names = list(dict.fromkeys(dx for _, dx in known))
    return [replace(row, label=names.index(dx)) for row, dx in known], names


def _row(cells: Mapping[str, str]) -> Ham10000Row:
    """Returns a row without its label; the columns of the attributes are optional."""
    attributes = {
        "sex": cells.get("sex") or UNKNOWN,
        "age": age_group(cells.get("age") or ""),
        "body site": cells.get("localization") or UNKNOWN,
    }
    return Ham10000Row(cells["image_id"], cells["lesion_id"], -1, attributes)


def age_group(years: str) -> str:
    """Returns the group of an age in years; "unknown" for text that is no number or NaN."""
    try:
        age = float(years)
    except ValueError:
        return UNKNOWN
    return next((group for highest, group in AGE_GROUPS.items() if age <= highest), UNKNOWN)


def split_rows(rows: Sequence[Ham10000Row], split: Split) -> SplitParts[Ham10000Row]:
    """Returns the parts of a split; stratified, and without a lesion in two parts but for `paper`.

    lesion: about 70% train, 10% calibration, 20% test. The others as in `parts_of`; but `paper` is
    the paper's image-level 80/20 split, of whose test images 38.7% show a lesion that the train
    part contains too. Raises ValueError for too few rows.
    """
    if split != "paper":
        return parts_of({"all": rows}, split, _lesion_fold)
    labels = [row.label for row in rows]
    train, test = train_test_split(
        list(rows), test_size=1 / FOLDS["test"], stratify=labels, random_state=SPLIT_SEED
    )
    return {"train": train, "test": test}


def _lesion_fold(
    rows: Sequence[Ham10000Row], part: Part
) -> tuple[list[Ham10000Row], list[Ham10000Row]]:
    labels = np.array([row.label for row in rows])
    lesions = np.array([row.cluster for row in rows])
    splitter = StratifiedGroupKFold(FOLDS[part], shuffle=True, random_state=SPLIT_SEED)
    rest, fold = next(splitter.split(labels, labels, lesions))
    return [rows[index] for index in rest], [rows[index] for index in fold]


def _decoded_by_id(folder: Path) -> DecodedImages:
    paths = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    paths = paths or sorted(folder.glob(ARCHIVE_PATTERN))[:1]
    if not paths:
        raise DataError(
            f"{folder}: expected images of HAM10000 in {', '.join(FOLDERS)} or "
            f"{ARCHIVE_PATTERN}, got none"
        )
    decoded = [decoded_images(path) for path in paths]
    return DecodedImages(
        {Path(name).stem: source for images in decoded for name, source in images.sources.items()},
        {Path(name).stem: reason for images in decoded for name, reason in images.bad.items()},
    )


TRAIN, VALIDATION = "train", "val"
ANNOTATIONS, WORDS = "val_annotations.txt", "words.txt"

TorchvisionKind = Literal["cifar10", "cifar100", "svhn"]
PublishedPart = Literal["train", "test"]
PUBLISHED_PARTS: tuple[PublishedPart, ...] = ("train", "test")
READERS = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}
DIGITS = tuple("0123456789")


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
    return ImageParts(title, classes, parts_of(published, split))


def _usable(folder: Path, part: str, on_bad: OnBad) -> Iterator[tuple[str, ImageSource]]:
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
        part: list(_labelled(part, reader)) for part, reader in readers.items()
    }
    names = DIGITS if kind == "svhn" else readers["train"].classes
    classes = tuple(ClassName(name=name, description=name) for name in names)
    return ImageParts(f"{TITLES[kind]}{split_suffix(split)}", classes, parts_of(published, split))


def _read_published(kind: TorchvisionKind, part: PublishedPart, folder: Path) -> Any:
    """torchvision downloads a file that is missing or whose digest is wrong."""
    try:
        if kind == "svhn":
            return datasets.SVHN(folder, split=part, download=True)
        return READERS[kind](folder, train=part == "train", download=True)
    except (OSError, RuntimeError, HTTPException) as error:
        url = datasets.SVHN.split_list[part][0] if kind == "svhn" else READERS[kind].url
        raise DataError(
            f"{kind} is incomplete in {folder} and cannot be downloaded ({error}); "
            f"download {url} to {folder}"
        ) from error


def _labelled(part: PublishedPart, reader: Any) -> Iterator[LabelledImage]:
    if isinstance(reader, datasets.SVHN):
        pixels, labels = reader.data, reader.labels.tolist()
    else:
        pixels, labels = reader.data.transpose(0, 3, 1, 2), reader.targets
    images = torch.from_numpy(np.ascontiguousarray(pixels))  # (n, 3, height, width) uint8
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        yield LabelledImage(f"{part}/{index:05}", image, label)
