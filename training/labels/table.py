"""Labels of images, and the table `labels.csv` that states them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from eulerlora.errors import DataError
from training.recipe.schema import Part

LABELS = "labels.csv"
PATH, LABEL, GROUP, SPLIT = "path", "label", "group", "split"

PART_NAMES: Mapping[str, Part] = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""The parts by their names in folders and in the column `split`."""


@dataclass(frozen=True)
class ImageLabel:
    """The label of an image.

    name: relative to the folder. written: the label with the spaces around it. place: what states
    it, such as "labels.csv line 3". group: the patient or lesion, if known. part: if stated.
    """

    name: str
    written: str
    place: str
    group: str | None = None
    part: Part | None = None

    @property
    def label(self) -> str:
        """The label without the spaces around it."""
        return self.written.strip()


def read_labels(path: Path, optional: Sequence[str] = (GROUP,)) -> list[ImageLabel]:
    """Returns the rows of a table of labels.

    Columns: path, relative to the table, and label. optional: columns to read if there are any,
    group and split (train, val or test); others are ignored. Raises DataError, with file and line,
    also for a path in two rows.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
            missing = {PATH, LABEL} - {*reader.fieldnames}
            if missing:
                raise DataError(
                    f"{path}: expected the columns {PATH}, {LABEL} and optionally "
                    f"{' and '.join(optional)}, separated by commas, got "
                    f"{', '.join(reader.fieldnames) or 'none'}"
                )
            used = {PATH, LABEL, *optional}
            rows = [
                _row(path, reader.line_num, {name: cells[name] or "" for name in used & {*cells}})
                for cells in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a CSV table in UTF-8 ({error})") from error
    _check_paths(path, rows)
    _check_split_column(path, rows)
    return rows


def _row(path: Path, line: int, cells: Mapping[str, str]) -> ImageLabel:
    name, group, split = (cells.get(key, "").strip() for key in (PATH, GROUP, SPLIT))
    label = cells[LABEL]
    place = f"{path} line {line}"
    if not name or not label.strip():
        raise DataError(f"{place}: expected a {PATH} and a {LABEL}, got an empty cell")
    if split and split.lower() not in PART_NAMES:
        raise DataError(f"{place}: expected a {SPLIT} of train, val or test, got {split!r}")
    part = PART_NAMES[split.lower()] if split else None
    relative = PurePosixPath(name).as_posix()
    return ImageLabel(relative, label, f"{LABELS} line {line}", group or None, part)


def _check_paths(path: Path, rows: list[ImageLabel]) -> None:
    first: dict[str, ImageLabel] = {}
    for row in rows:
        earlier = first.setdefault(row.name, row)
        if earlier is not row:
            raise DataError(
                f"{path}: expected one row for each picture, got two for {row.name}: "
                f"{earlier.place} ({earlier.label}) and {row.place} ({row.label})"
            )


def _check_split_column(path: Path, rows: list[ImageLabel]) -> None:
    without = next((row for row in rows if row.part is None), None)
    if without is not None and any(row.part is not None for row in rows):
        raise DataError(
            f"{path}: expected a {SPLIT} in every row or in none, got an empty one in "
            f"{without.place} ({without.name})"
        )
