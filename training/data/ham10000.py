"""HAM10000 in its published layout, or with its images in one archive, and its splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold, train_test_split

from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError
from training.data.cache import DecodedImages, decoded_images
from training.data.dataset import DERMATOSCOPY, INTERVALS, DataSet, DataSettings
from training.data.images import (
    DIAGNOSED_BY,
    HISTOLOGY,
    UNKNOWN,
    ImageParts,
    LabelledImage,
    OnBad,
)
from training.data.splits import SPLIT_SEED, Part, Split, SplitParts, parts_of
from training.data.tables import read_label_table

_METADATA = "HAM10000_metadata.csv"
_METADATA_NAMES = (_METADATA, "HAM10000_metadata.tab", "HAM10000_metadata")
"""Of Kaggle, and of the Dataverse in its form and as it was deposited."""
_FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")
"""Or zip archives of these names."""
_ARCHIVE_PATTERN = "ham10000*.tar*"
_FOLDS: Mapping[Part, int] = {"test": 5, "calibration": 8, "validation": 10}
"""Folds of the images that are in no earlier part, by lesion except in the split `paper`; one of
them is the part.
"""

_DESCRIPTIONS = {
    "akiec": "actinic keratosis or intraepithelial carcinoma (Bowen's disease)",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis-like lesion (solar lentigo, seborrheic keratosis, lichen planus-like)",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevus",
    "vasc": "vascular lesion (angioma, angiokeratoma, pyogenic granuloma, haemorrhage)",
}
_DIAGNOSED_BY = {
    "histo": HISTOLOGY,
    "follow_up": "follow-up",
    "consensus": "consensus",
    "confocal": "confocal microscopy",
}
_AGE_GROUPS = {39: "0 to 39", 59: "40 to 59", 200: "60 and over"}
"""Age groups by their highest age in years."""


@dataclass(frozen=True, eq=False)
class _Ham10000Row:
    """A row of the metadata.

    Attributes:
        label: Index of the classes in order of first appearance.
        cluster: The lesion.
        attributes: How the diagnosis is known, sex, age group and body site; "unknown" if missing.
    """

    image_id: str
    cluster: str
    label: int
    attributes: Mapping[str, str]


class Ham10000(DataSet):
    """HAM10000, from its metadata file and its image folders or archive.

    `on_bad` is also called for each row with an unknown `dx`.
    """

    kind = "ham10000"
    title = "HAM10000"
    licence = (
        "HAM10000 (Tschandl, Rosendahl and Kittler, Scientific Data 5, 180161, 2018), "
        "CC BY-NC 4.0: these weights are for non-commercial use, with attribution."
    )
    hub_licence = "cc-by-nc-4.0"
    family = DERMATOSCOPY
    intended = (
        "For demonstration and research. The model is not a medical device and has not been "
        "clinically validated."
    )
    misuses = (
        "decisions about anyone's care, alone or as a second reader;",
        "exclusion of melanoma or another cancer: it misses some of each;",
        "photographs, histology, or other images than dermatoscopic ones;",
        "other conditions: it always assigns one of the seven classes;",
        "dark skin: HAM10000 is mostly from light skin;",
        "estimates of prevalence: class frequencies are those of an archive;",
        "commercial use: the data's licence forbids it.",
    )
    limits = (
        "Test and training images are from the same two clinics and cameras. Expect lower accuracy "
        "elsewhere.",
        "53% of the labels are from histology; almost all others are `nv`.",
        INTERVALS,
        "The flags miss some unknown images, and some changes of camera and light (`shifted`).",
    )

    def is_in(self, path: Path) -> bool:
        return _metadata(path).is_file()

    def read(self, path: Path, settings: DataSettings, on_bad: OnBad) -> ImageParts:
        """The images of the parts of the split.

        Raises:
            DataError: For too few rows of a class for the split.
        """
        split = settings.split
        rows, names = _read_rows(_metadata(path), on_bad)
        images = _decoded_by_id(path)
        try:
            parts = _split_rows(rows, split)
        except ValueError as error:
            raise DataError(
                f"{path / _METADATA}: expected enough rows of every class for the {split} split, "
                f"got {len(rows)}"
            ) from error
        selected = {row for members in parts.values() for row in members}
        for row in rows:
            if row in selected and row.image_id in images.bad:
                on_bad(f"{row.image_id}.jpg", images.bad[row.image_id])
            elif row in selected and row.image_id not in images.sources:
                on_bad(row.image_id, f"is in {_METADATA}, but {row.image_id}.jpg is missing")
        labelled = {
            part: [
                LabelledImage(
                    row.image_id,
                    images.sources[row.image_id],
                    row.label,
                    row.cluster,
                    row.attributes,
                    lesion=row.cluster,
                )
                for row in members
                if row.image_id in images.sources
            ]
            for part, members in parts.items()
        }
        classes = tuple(ClassName(name=name, description=_DESCRIPTIONS[name]) for name in names)
        return ImageParts(f"{self.title}, {split} split", classes, labelled)


def _metadata(folder: Path) -> Path:
    paths = [folder / name for name in _METADATA_NAMES]
    return next((path for path in paths if path.is_file()), paths[0])


def _read_rows(path: Path, on_bad: OnBad) -> tuple[list[_Ham10000Row], list[str]]:
    """The rows in file order, and the class names in order of first appearance.

    Calls `on_bad` for each row with an unknown `dx`, and skips the row if that returns.

    Raises:
        DataError: For a file that is missing or lacks columns.
    """
    try:
        table = read_label_table(path)
        of_lines = (dict(zip(table.header, line.cells, strict=True)) for line in table.lines)
        rows = [(_row(cells), cells["dx"]) for cells in of_lines]
    except KeyError as error:
        raise DataError(f"{path}: expected the metadata of HAM10000, with {error}") from error
    known = []
    for number, (row, dx) in enumerate(rows, start=1):
        if dx in _DESCRIPTIONS:
            known.append((row, dx))
        else:
            name = f"{_METADATA} row {number} ({row.image_id})"
            on_bad(name, f"expected dx to be one of {', '.join(_DESCRIPTIONS)}, got {dx!r}")
    names = list(dict.fromkeys(dx for _, dx in known))
    return [replace(row, label=names.index(dx)) for row, dx in known], names


def _row(cells: Mapping[str, str]) -> _Ham10000Row:
    """A row without its label; the columns of the attributes are optional."""
    attributes = {
        DIAGNOSED_BY: _DIAGNOSED_BY.get(cells.get("dx_type") or "", UNKNOWN),
        "sex": cells.get("sex") or UNKNOWN,
        "age": _age_group(cells.get("age") or ""),
        "body site": cells.get("localization") or UNKNOWN,
    }
    return _Ham10000Row(cells["image_id"], cells["lesion_id"], -1, attributes)


def _age_group(years: str) -> str:
    """The group of an age in years; "unknown" for text that is no number or NaN."""
    try:
        age = float(years)
    except ValueError:
        return UNKNOWN
    return next((group for highest, group in _AGE_GROUPS.items() if age <= highest), UNKNOWN)


def _split_rows(rows: Sequence[_Ham10000Row], split: Split) -> SplitParts[_Ham10000Row]:
    """The parts of a split; stratified, and without a lesion in two parts but for `paper`.

    lesion: about 70% train, 10% calibration, 20% test. The others as in `parts_of`; but `paper` is
    the paper's image-level 80/20 split, of whose test images 38.7% show a lesion that the train
    part contains too.

    Raises:
        ValueError: For too few rows.
    """
    if split != "paper":
        return parts_of({"all": rows}, split, _lesion_fold)
    labels = [row.label for row in rows]
    train, test = train_test_split(
        list(rows), test_size=1 / _FOLDS["test"], stratify=labels, random_state=SPLIT_SEED
    )
    return {"train": train, "test": test}


def _lesion_fold(
    rows: Sequence[_Ham10000Row], part: Part
) -> tuple[list[_Ham10000Row], list[_Ham10000Row]]:
    labels = np.array([row.label for row in rows])
    lesions = np.array([row.cluster for row in rows])
    splitter = StratifiedGroupKFold(_FOLDS[part], shuffle=True, random_state=SPLIT_SEED)
    rest, fold = next(splitter.split(labels, labels, lesions))
    return [rows[index] for index in rest], [rows[index] for index in fold]


def _decoded_by_id(folder: Path) -> DecodedImages:
    names = (f"{name}{suffix}" for suffix in ("", ".zip") for name in _FOLDERS)
    paths = [path for name in names if (path := folder / name).exists()]
    paths = paths or sorted(folder.glob(_ARCHIVE_PATTERN))[:1]
    if not paths:
        raise DataError(
            f"{folder}: expected images of HAM10000 in {', '.join(_FOLDERS)} or "
            f"{_ARCHIVE_PATTERN}, got none"
        )
    decoded = [decoded_images(path) for path in paths]
    return DecodedImages(
        {Path(name).stem: source for images in decoded for name, source in images.sources.items()},
        {Path(name).stem: reason for images in decoded for name, reason in images.bad.items()},
    )
