"""HAM10000 in its publisher's layout or as one archive, and its splits."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold, train_test_split

from eulerlora.config import ClassName
from eulerlora.errors import DataError
from training.data.bad_images import OnBad, refuse
from training.data.cache import decoded_images
from training.data.image_sources import Source
from training.recipe.schema import Split

METADATA = "HAM10000_metadata.csv"
FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")
ARCHIVES = "ham10000*.tar*"
SPLIT_SEED = 42
TEST_FOLDS = 5  # a fifth is the test part
CALIBRATION_FOLDS = 8  # an eighth of the rest, a tenth of all
VALIDATION_FOLDS = 10

DESCRIPTIONS = {
    "akiec": "actinic keratosis or intraepithelial carcinoma (Bowen's disease)",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis-like lesion (solar lentigo, seborrheic keratosis, lichen planus-like)",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevus",
    "vasc": "vascular lesion (angioma, angiokeratoma, pyogenic granuloma, haemorrhage)",
}
MALIGNANT = ("mel", "bcc", "akiec")
AGES = {39: "0 to 39", 59: "40 to 59", 200: "60 and over"}
"""Age groups by their highest age in years."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Ham10000Row:
    """One row of the metadata; `label` indexes the classes in order of first appearance.

    age: a group of ages.
    """

    image_id: str
    lesion_id: str
    label: int
    sex: str = UNKNOWN
    age: str = UNKNOWN
    site: str = UNKNOWN

    @property
    def groups(self) -> Mapping[str, str]:
        """The row's sex, age group and body site, where known."""
        return {"sex": self.sex, "age": self.age, "body site": self.site}


@dataclass(frozen=True)
class Ham10000:
    """The data set, split: rows by part, and where each image is."""

    classes: tuple[ClassName, ...]
    parts: Mapping[str, Sequence[Ham10000Row]]
    sources: Mapping[str, Source]


def read_ham10000(folder: Path, split: Split, on_bad: OnBad = refuse) -> Ham10000:
    """HAM10000 below `folder`: its metadata file beside its image folders or an archive.

    on_bad: told of each row whose `dx` is unknown or whose image is missing or does not open; if
    it returns, that row is left out. Every other image is in the part in which it always is; of
    those that are in none, nothing is told.
    Raises DataError for a missing file, or where too little is left for the split.
    """
    rows, names = read_metadata(folder / METADATA, on_bad)
    images = _find_images(folder)
    try:
        parts = SPLITS[split](rows)
    except ValueError as error:
        raise DataError(f"{folder / METADATA}: too few rows for the split ({error})") from error
    used = {row for members in parts.values() for row in members}
    for row in rows:
        if row not in used:
            continue
        if row.image_id in images.bad:
            on_bad(*images.bad[row.image_id])
        elif row.image_id not in images.sources:
            on_bad(row.image_id, f"has a row in {METADATA}, but no image {row.image_id}.jpg")
    kept = {
        part: [row for row in members if row.image_id in images.sources]
        for part, members in parts.items()
    }
    classes = tuple(ClassName(name=name, description=DESCRIPTIONS[name]) for name in names)
    sources = {row.image_id: images.sources[row.image_id] for each in kept.values() for row in each}
    return Ham10000(classes, kept, sources)


def read_metadata(path: Path, on_bad: OnBad = refuse) -> tuple[list[Ham10000Row], list[str]]:
    """The metadata's rows in file order, and the class names in order of first appearance.

    on_bad: told of each row whose `dx` is none of the seven; if it returns, the row is left out.
    Raises DataError for a file that is missing or without the wanted columns.
    """
    try:
        with path.open(newline="") as file:
            table = [(_row_of(row), row["dx"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: not a readable HAM10000 metadata file ({error!r})") from error
    known = []
    for number, (row, dx) in enumerate(table, start=1):
        if dx in DESCRIPTIONS:
            known.append((row, dx))
        else:
            wanted = ", ".join(DESCRIPTIONS)
            on_bad(f"{METADATA} row {number} ({row.image_id})", f"dx {dx!r} is none of {wanted}")
    names = list(dict.fromkeys(dx for _, dx in known))
    return [replace(row, label=names.index(dx)) for row, dx in known], names


def _row_of(cells: Mapping[str, str]) -> Ham10000Row:
    """A row of the file, without its label; sex, age and site may be missing."""
    return Ham10000Row(
        image_id=cells["image_id"],
        lesion_id=cells["lesion_id"],
        label=-1,
        sex=cells.get("sex") or UNKNOWN,
        age=_age_group(cells.get("age") or ""),
        site=cells.get("localization") or UNKNOWN,
    )


def _age_group(years: str) -> str:
    try:
        age = float(years)
    except ValueError:
        return UNKNOWN
    return next((group for most, group in AGES.items() if age <= most), UNKNOWN)


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


def lesion_validation_split(rows: Sequence[Ham10000Row]) -> dict[str, list[Ham10000Row]]:
    """The lesion split for choices: its test part is a tenth of the train part of `lesion_split`,
    whose own test part is in none.
    """
    whole = lesion_split(rows)
    train, validation = _lesion_fold(whole["train"], VALIDATION_FOLDS)
    return {"train": train, "calibration": whole["calibration"], "test": validation}


SPLITS: Mapping[Split, Callable[[Sequence[Ham10000Row]], dict[str, list[Ham10000Row]]]] = {
    "lesion": lesion_split,
    "lesion-validation": lesion_validation_split,
    "paper": paper_split,
}


def _lesion_fold(
    rows: Sequence[Ham10000Row], folds: int
) -> tuple[list[Ham10000Row], list[Ham10000Row]]:
    labels = np.array([row.label for row in rows])
    lesions = np.array([row.lesion_id for row in rows])
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=SPLIT_SEED)
    rest, fold = next(splitter.split(labels, labels, lesions))
    return [rows[index] for index in rest], [rows[index] for index in fold]


@dataclass(frozen=True)
class _Images:
    """Images by their id; bad: name and reason of those that do not open."""

    sources: Mapping[str, Source]
    bad: Mapping[str, tuple[str, str]]


def image_places(folder: Path) -> list[Path]:
    """The image folders below `folder`, or an archive in it; empty where there is neither."""
    folders = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    return folders or sorted(folder.glob(ARCHIVES))[:1]


def _find_images(folder: Path) -> _Images:
    places = image_places(folder)
    if not places:
        raise DataError(
            f"{folder}: wanted HAM10000 images in {', '.join(FOLDERS)} or {ARCHIVES}; found none"
        )
    found = [decoded_images(place) for place in places]
    return _Images(
        {Path(name).stem: source for each in found for name, source in each.sources.items()},
        {Path(name).stem: (name, why) for each in found for name, why in each.bad.items()},
    )
