"""HAM10000 in its published layout or as one archive, and its splits."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold, train_test_split

from eulerlora_client.contract.answers import ClassName
from eulerlora_client.errors import DataError
from training.data.cache import DecodedImages, decoded_images
from training.data.images import ImageParts, LabelledImage, OnBad, refuse
from training.data.splits import SPLIT_SEED
from training.recipe.schema import Split

TITLE = "HAM10000"
METADATA = "HAM10000_metadata.csv"
FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")
ARCHIVE_PATTERN = "ham10000*.tar*"
TEST_FOLDS = 5  # the test part is a fifth
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
AGE_GROUPS = {39: "0 to 39", 59: "40 to 59", 200: "60 and over"}
"""Age groups by their highest age in years."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Ham10000Row:
    """A row of the metadata. label: index of the classes in order of first appearance.

    age: an age group.
    """

    image_id: str
    lesion_id: str
    label: int
    sex: str = UNKNOWN
    age: str = UNKNOWN
    site: str = UNKNOWN

    @property
    def groups(self) -> Mapping[str, str]:
        """The row's sex, age group and body site; "unknown" if missing."""
        return {"sex": self.sex, "age": self.age, "body site": self.site}


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
                row.image_id, images.sources[row.image_id], row.label, row.lesion_id, row.groups
            )
            for row in members
            if row.image_id in images.sources
        ]
        for part, members in parts.items()
    }
    classes = tuple(ClassName(name=name, description=DESCRIPTIONS[name]) for name in names)
    return ImageParts(f"{TITLE}, {split} split", classes, labelled)


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
    """Returns a row without its label; sex, age and site are optional columns."""
    return Ham10000Row(
        image_id=cells["image_id"],
        lesion_id=cells["lesion_id"],
        label=-1,
        sex=cells.get("sex") or UNKNOWN,
        age=age_group(cells.get("age") or ""),
        site=cells.get("localization") or UNKNOWN,
    )


def age_group(years: str) -> str:
    """Returns the group of an age in years; "unknown" for text that is no number or NaN."""
    try:
        age = float(years)
    except ValueError:
        return UNKNOWN
    return next((group for highest, group in AGE_GROUPS.items() if age <= highest), UNKNOWN)


def split_rows(rows: Sequence[Ham10000Row], split: Split) -> dict[str, list[Ham10000Row]]:
    """Returns the parts of a split; stratified, and without a lesion in two parts but for `paper`.

    lesion: about 70% train, 10% calibration, 20% test. lesion-best-epoch: the same with a tenth of
    the train part as validation. lesion-validation, for choosing settings: this validation part as
    test part, without that of the others. paper: the paper's image-level 80/20 split, of whose test
    images 38.7% show a lesion that the train part contains too. Raises ValueError for too few rows.
    """
    if split == "paper":
        labels = [row.label for row in rows]
        train, test = train_test_split(
            list(rows), test_size=1 / TEST_FOLDS, stratify=labels, random_state=SPLIT_SEED
        )
        return {"train": train, "test": test}
    rest, test = _lesion_fold(rows, TEST_FOLDS)
    train, calibration = _lesion_fold(rest, CALIBRATION_FOLDS)
    if split == "lesion":
        return {"train": train, "calibration": calibration, "test": test}
    train, validation = _lesion_fold(train, VALIDATION_FOLDS)
    if split == "lesion-validation":
        return {"train": train, "calibration": calibration, "test": validation}
    return {"train": train, "validation": validation, "calibration": calibration, "test": test}


def _lesion_fold(
    rows: Sequence[Ham10000Row], folds: int
) -> tuple[list[Ham10000Row], list[Ham10000Row]]:
    """Returns all rows but one fold, and that fold; stratified, with whole lesions."""
    labels = np.array([row.label for row in rows])
    lesions = np.array([row.lesion_id for row in rows])
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=SPLIT_SEED)
    rest, fold = next(splitter.split(labels, labels, lesions))
    return [rows[index] for index in rest], [rows[index] for index in fold]


def image_paths(folder: Path) -> list[Path]:
    """Returns the image folders in `folder`, or its archive; empty if there is neither."""
    folders = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    return folders or sorted(folder.glob(ARCHIVE_PATTERN))[:1]


def _decoded_by_id(folder: Path) -> DecodedImages:
    """Returns the images by image id. Raises DataError if `folder` has neither form."""
    paths = image_paths(folder)
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
