"""HAM10000 in its publisher's layout or as one archive, and its two splits."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold, train_test_split

from eulerlora.config import ClassName
from eulerlora.errors import DataError
from training.image_sources import Source, list_images

METADATA = "HAM10000_metadata.csv"
FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")
ARCHIVES = "ham10000*.tar*"
SPLIT_SEED = 42
TEST_FOLDS = 5  # a fifth is the test part
CALIBRATION_FOLDS = 8  # an eighth of the rest, a tenth of all

DESCRIPTIONS = {
    "akiec": "actinic keratosis or intraepithelial carcinoma (Bowen's disease)",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis-like lesion (solar lentigo, seborrheic keratosis, lichen planus-like)",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevus",
    "vasc": "vascular lesion (angioma, angiokeratoma, pyogenic granuloma, haemorrhage)",
}


@dataclass(frozen=True)
class Ham10000Row:
    """One row of the metadata; `label` indexes the classes in order of first appearance."""

    image_id: str
    lesion_id: str
    label: int


@dataclass(frozen=True)
class Ham10000:
    """The data set, split: rows by part, and where each image is."""

    classes: tuple[ClassName, ...]
    parts: Mapping[str, Sequence[Ham10000Row]]
    sources: Mapping[str, Source]


def read_ham10000(folder: Path, split: Literal["lesion", "paper"]) -> Ham10000:
    """HAM10000 below `folder`: its metadata file beside its image folders or an archive.

    Raises DataError, naming the file, for a missing part or a metadata row without its image.
    """
    rows, names = read_metadata(folder / METADATA)
    sources = _find_images(folder)
    for row in rows:
        if row.image_id not in sources:
            raise DataError(f"{folder / METADATA}: no image {row.image_id}.jpg was found for a row")
    classes = tuple(
        ClassName(name=name, description=DESCRIPTIONS.get(name, name)) for name in names
    )
    parts = lesion_split(rows) if split == "lesion" else paper_split(rows)
    return Ham10000(classes, parts, sources)


def read_metadata(path: Path) -> tuple[list[Ham10000Row], list[str]]:
    """The metadata's rows in file order, and the class names in order of first appearance."""
    try:
        with path.open(newline="") as file:
            table = [(row["image_id"], row["lesion_id"], row["dx"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, csv.Error) as error:
        raise DataError(f"{path}: not a readable HAM10000 metadata file ({error!r})") from error
    names = list(dict.fromkeys(dx for _, _, dx in table))
    rows = [Ham10000Row(image, lesion, names.index(dx)) for image, lesion, dx in table]
    return rows, names


def paper_split(rows: Sequence[Ham10000Row]) -> dict[str, list[Ham10000Row]]:
    """The paper's image-level stratified 80/20 split; 38.7% of its test images show a lesion
    that training saw. It has no calibration part.
    """
    labels = [row.label for row in rows]
    train, test = train_test_split(
        list(rows), test_size=1 / TEST_FOLDS, stratify=labels, random_state=SPLIT_SEED
    )
    return {"train": train, "test": test}


def lesion_split(rows: Sequence[Ham10000Row]) -> dict[str, list[Ham10000Row]]:
    """About 70% train, 10% calibration, 20% test, stratified, no lesion in two parts."""
    rest, test = _lesion_fold(rows, TEST_FOLDS)
    train, calibration = _lesion_fold(rest, CALIBRATION_FOLDS)
    return {"train": train, "calibration": calibration, "test": test}


def _lesion_fold(
    rows: Sequence[Ham10000Row], folds: int
) -> tuple[list[Ham10000Row], list[Ham10000Row]]:
    labels = np.array([row.label for row in rows])
    lesions = np.array([row.lesion_id for row in rows])
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=SPLIT_SEED)
    rest, fold = next(splitter.split(labels, labels, lesions))
    return [rows[index] for index in rest], [rows[index] for index in fold]


def _find_images(folder: Path) -> dict[str, Source]:
    places = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    places = places or sorted(folder.glob(ARCHIVES))[:1]
    if not places:
        raise DataError(
            f"{folder}: wanted HAM10000 images in {', '.join(FOLDERS)} or {ARCHIVES}; found none"
        )
    return {
        Path(name).stem: source for place in places for name, source in list_images(place).items()
    }
