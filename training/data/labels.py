"""Labels of a user's images by class folders or by `labels.csv`, their checks and their parts."""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from eulerlora_contract.errors import DataError
from training.data.splits import SplitParts, parts_of
from training.recipe.schema import DataSettings, Part, Split

LABELS = "labels.csv"
PATH, LABEL, GROUP, SPLIT = COLUMNS = "path", "label", "group", "split"
LIKELY_NAMES: Mapping[str, Sequence[str]] = {
    PATH: ("file", "filename", "image", "image_id", "name", "picture"),
    LABEL: ("class", "diagnosis", "dx", "target", "category"),
    GROUP: ("patient", "patient_id", "lesion", "lesion_id", "subject", "case", "person"),
    SPLIT: ("part", "partition", "set", "subset", "fold"),
}
"""Names that other tables have for the columns."""
SEPARATORS: Mapping[str, str] = {",": "commas", ";": "semicolons", "\t": "tabs"}

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

    name: relative to the folder. place: what states the label, such as "labels.csv line 3".
    cluster: the patient or lesion, if known. part: if stated.
    """

    name: str
    label: str
    place: str
    cluster: str | None = None
    part: Part | None = None


@dataclass(frozen=True)
class Labels:
    """The labels of the images in a folder or archive.

    table: True if `labels.csv` in the folder states them. notes: remarks for the user.
    """

    folder: Path
    table: bool
    rows: Sequence[ImageLabel]
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The table or the folder."""
        return self.folder / LABELS if self.table else self.folder


def read_labels(path: Path, names: Collection[str], ignore_columns: bool = False) -> Labels:
    """Returns the labels of the images in a folder or archive, by its table or by its folders.

    names: of all images in it, relative to `path`. Images without a label are left out, with a
    note. ignore_columns: ignores unknown columns of the table, with a note. Raises DataError, with
    file and line.
    """
    table = (path / LABELS).is_file()
    labels = Labels(path, table, [] if table else folder_labels(names, packed=path.is_file()))
    if table:
        labels = _read_table(labels, ignore_columns)
    unlabelled = sorted({*names} - {row.name for row in labels.rows})
    if not unlabelled:
        return labels
    where = f"not in {LABELS}" if table else "outside of the class folders"
    note = f"{len(unlabelled):,} images are {where} and are left out, such as {unlabelled[0]}"
    return replace(labels, notes=(*labels.notes, note))


def _read_table(labels: Labels, ignore_columns: bool) -> Labels:
    path = labels.path
    try:
        text = path.read_text(encoding="utf-8-sig")
        separator = max(SEPARATORS, key=text.partition("\n")[0].count)
        reader = csv.DictReader(io.StringIO(text), delimiter=separator)
        columns = reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        notes = list(_check_columns(path, columns, ignore_columns))
        rows = [_row(path, reader.line_num, cells) for cells in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a CSV table in UTF-8 ({error})") from error
    if separator != ",":
        notes.append(f"{LABELS} is read as separated by {SEPARATORS[separator]}")
    if "\\" in text and any("/" in row.name for row in rows):
        notes.append(f"backslashes in the paths of {LABELS} are read as /")
    _check_paths(path, rows)
    _check_split_column(path, rows)
    return replace(labels, rows=rows, notes=tuple(notes))


def _check_columns(path: Path, columns: Sequence[str], ignored: bool) -> Iterator[str]:
    """Yields a note on ignored columns. Raises DataError for columns that cannot be used."""
    unknown = [_with_likely_name(name, columns) for name in columns if name not in COLUMNS]
    place = f"{path} line 1"
    if not {PATH, LABEL} <= {*columns} or len({*columns}) < len(columns):
        raise DataError(
            f"{place}: expected the columns {PATH}, {LABEL} and optionally {GROUP} and {SPLIT}, "
            f"each once, separated by {', '.join(SEPARATORS.values())}; got "
            f"{', '.join(_with_likely_name(name, columns) for name in columns) or 'none'}"
        )
    if unknown and not ignored:
        raise DataError(
            f"{place}: expected no columns but {', '.join(COLUMNS)}, got {', '.join(unknown)}; "
            "rename or delete them, or use --ignore-columns"
        )
    if unknown:
        yield f"ignored columns of {LABELS}: {', '.join(unknown)}"


def _with_likely_name(column: str, columns: Sequence[str]) -> str:
    """Returns the name of a column, with that of the missing column that it may be."""
    for known, others in LIKELY_NAMES.items():
        if known not in columns and get_close_matches(column, (known, *others), n=1, cutoff=0.8):
            return f"{column} (did you mean {known}?)"
    return column


def _row(path: Path, line: int, cells: Mapping[str | None, str | None]) -> ImageLabel:
    place = f"{path} line {line}"
    known = {key: cell.strip() for key, cell in cells.items() if key and isinstance(cell, str)}
    if len(known) < len(cells):
        raise DataError(f"{place}: expected a cell for each column, as in line 1")
    name, label = known[PATH].replace("\\", "/"), known[LABEL]
    split = known.get(SPLIT, "")
    if not name or not label:
        raise DataError(f"{place}: expected a {PATH} and a {LABEL}, got an empty cell")
    if split and split.lower() not in PART_NAMES:
        raise DataError(f"{place}: expected a {SPLIT} of train, val or test, got {split!r}")
    part = PART_NAMES[split.lower()] if split else None
    relative = PurePosixPath(name).as_posix()
    return ImageLabel(relative, label, f"{LABELS} line {line}", known.get(GROUP) or None, part)


def _check_paths(path: Path, rows: Sequence[ImageLabel]) -> None:
    first: dict[str, ImageLabel] = {}
    for row in rows:
        earlier = first.setdefault(row.name, row)
        if earlier is not row:
            raise DataError(
                f"{path}: expected one row for each picture, got two for {row.name}: "
                f"{earlier.place} ({earlier.label}) and {row.place} ({row.label})"
            )


def _check_split_column(path: Path, rows: Sequence[ImageLabel]) -> None:
    without = next((row for row in rows if row.part is None), None)
    if without is not None and any(row.part is not None for row in rows):
        raise DataError(
            f"{path}: expected a {SPLIT} in every row or in none, got an empty one in "
            f"{without.place} ({without.name})"
        )


Folders = tuple[str, ...]


def folder_labels(names: Collection[str], packed: bool = False) -> list[ImageLabel]:
    """Returns the labels of images, given by relative name; those of no class are left out.

    Layouts: `train/CLASS/`, `val/CLASS/` and `test/CLASS/`, with other folders ignored, or
    `CLASS/`. A class folder may have sub-folders. packed: for an archive, whose outer folder, if
    all images share one, is no class.
    """
    folders = {name: PurePosixPath(name).parts[:-1] for name in sorted(names)}
    outer = _outer_folders(folders.values()) if packed else 0
    inner = {name: parts[outer:] for name, parts in folders.items()}
    in_parts = [
        ImageLabel(name, parts[1].strip(), f"{parts[0]}/{parts[1]}", part=PART_NAMES[parts[0]])
        for name, parts in inner.items()
        if len(parts) > 1 and parts[0] in PART_NAMES
    ]
    return in_parts or [
        ImageLabel(name, parts[0].strip(), parts[0]) for name, parts in inner.items() if parts
    ]


def _outer_folders(folders: Collection[Folders]) -> int:
    """Returns 1 if all images are below one folder that has sub-folders only, otherwise 0."""
    top = {parts[:1] for parts in folders}
    shared = len(top) == 1 and all(len(parts) > 1 for parts in folders)
    return int(shared and next(iter(top))[0] not in PART_NAMES)


def checked_classes(labels: Labels, expected: Collection[str]) -> list[str]:
    """Returns the sorted classes of the labels, after all checks that need no image.

    expected: the exact classes; if empty, at least two of any name, and every folder is a class.
    Raises DataError, with the class and what states it, for labels that differ only in case or
    spaces, for one class only, for a missing or unexpected class, for a class without images, at
    all or in one of the stated parts, and for a group in two parts.
    """
    if not labels.rows:
        expected_rows = "rows" if labels.table else "images in a folder for each class"
        raise DataError(f"{labels.path}: expected {expected_rows}, got none")
    _check_spelling(labels)
    classes = sorted(expected or {row.label for row in labels.rows})
    if not expected:
        _check_empty_folders(labels, classes)
    if len(classes) < 2:
        raise DataError(
            f"{labels.path}: expected two classes or more, got only {classes[0]!r}"
            f"{_layout_hint(labels)}"
        )
    _check_parts(labels, classes)
    _check_known(labels, classes)
    _check_groups(labels)
    return classes


def _check_spelling(labels: Labels) -> None:
    spellings: dict[str, ImageLabel] = {}
    for row in labels.rows:
        other = spellings.setdefault("".join(row.label.split()).casefold(), row)
        if other.label != row.label:
            raise DataError(
                f"{labels.path}: expected one spelling of each class, got {other.label!r} "
                f"({other.place}, {other.name}) and {row.label!r} ({row.place}, {row.name}), "
                "which differ only in case or spaces"
            )


def _check_empty_folders(labels: Labels, classes: Sequence[str]) -> None:
    """Raises DataError for a class folder without images, which would not become a class."""
    if labels.table or not labels.folder.is_dir():
        return
    parts = {row.place.split("/")[0] for row in labels.rows if row.part is not None}
    for parent in [labels.folder / part for part in sorted(parts)] or [labels.folder]:
        for folder in sorted(parent.glob("[!._]*/")):
            if folder.name.strip() not in classes:
                raise DataError(
                    f"{folder}: expected images of the class {folder.name}, got none; add some, "
                    "delete the folder, or state the classes in a recipe (data.classes)"
                )


def _check_known(labels: Labels, classes: Sequence[str]) -> None:
    for row in labels.rows:
        if row.label not in classes:
            place = row.place if labels.table else str(labels.folder / row.place)
            raise DataError(
                f"{place}: expected one of the classes {', '.join(classes)}, got {row.label} "
                f"({row.name})"
            )


def _check_parts(labels: Labels, classes: Sequence[str]) -> None:
    present = defaultdict(set)
    for row in labels.rows:
        present[row.part].add(row.label)
    if not present.keys() & {None, "train"}:
        raise DataError(f"{labels.path}: expected a part train, got {', '.join(map(str, present))}")
    order = (None, "train", "validation", "test")
    for part, names in sorted(present.items(), key=lambda item: order.index(item[0])):
        for name in classes:
            if name in names:
                continue
            if labels.table:
                where = f"{labels.path}: expected pictures of class {name}"
                raise DataError(where + (f" with the split {part}, got none" if part else ""))
            (folder, *_) = next(row.place for row in labels.rows if row.part == part).split("/")
            path = labels.folder / (folder if part else ".") / name
            raise DataError(f"{path}: expected a folder with images of this class")


def _check_groups(labels: Labels) -> None:
    first: dict[str, ImageLabel] = {}
    for row in labels.rows:
        if row.cluster is None:
            continue
        other = first.setdefault(row.cluster, row)
        if other.part != row.part:
            raise DataError(
                f"{labels.path}: expected each group in one part, got group {row.cluster} in "
                f"{other.part} ({other.place}, {other.name}, {other.label}) and in {row.part} "
                f"({row.place}, {row.name}, {row.label})"
            )


def _layout_hint(labels: Labels) -> str:
    """Returns a hint if the only folder is likely to contain the folders of the classes."""
    rows = labels.rows
    if labels.table:
        return f", the label of all {len(rows):,} rows"
    inner = Counter(row.name.split("/")[1] for row in rows if row.name.count("/") > 1)
    if len(inner) < 2:
        return f", the folder of all {len(rows):,} images"
    folder = labels.folder / rows[0].label
    return f"; its folders are {', '.join(sorted(inner)[:5])}: is the data directory {folder}?"


PARTS_OF_TRAINING: Mapping[Split, Sequence[str]] = {
    "paper": ("train",),
    "lesion": ("train", "calibration"),
    "lesion-validation": ("train", "calibration", "validation"),
    "lesion-best-epoch": ("train", "calibration", "validation"),
}
"""The parts that a split makes of the training images, if the data set has a test part."""


def with_test_part(labels: Labels) -> Labels:
    """Returns the labels with a stated test part, or without any part.

    A stated validation part is the test part if none is stated.
    """
    stated = {row.part for row in labels.rows}
    if stated == {None} or "test" in stated:
        return labels
    if stated == {"train"}:
        note = "all images are in train; a fifth of them becomes the test part"
        rows = [replace(row, part=None) for row in labels.rows]
    else:
        note = "val is the test part, because no test part is given"
        rows = [
            replace(row, part="test" if row.part == "validation" else row.part)
            for row in labels.rows
        ]
    return replace(labels, rows=rows, notes=(*labels.notes, note))


@dataclass(frozen=True)
class SplitLabels:
    """Checked and split labels."""

    labels: Labels
    classes: Sequence[str]
    parts: SplitParts[ImageLabel]


def split_labels(settings: DataSettings, path: Path, names: Collection[str]) -> SplitLabels:
    """Returns the labels of a folder or archive of images, checked and split.

    names: as in `read_labels`. Raises DataError, with class and file.
    """
    labels = read_labels(path, names, settings.ignore_columns)
    classes = checked_classes(labels, settings.classes.keys())
    labels = with_test_part(labels)
    by_part: dict[str, list[ImageLabel]] = {}
    for row in sorted(labels.rows, key=lambda row: row.name):
        by_part.setdefault(row.part or "all", []).append(row)
    parts = PARTS_OF_TRAINING[settings.split]
    if "validation" in by_part:
        given = {"calibration"} if settings.split == "lesion" else {"validation"}
        parts = [part for part in parts if part not in given]
    if "all" in by_part:
        parts = [*parts, "test"]
    _check_sizes(labels, classes, parts)
    return SplitLabels(labels, classes, parts_of(by_part, settings.split))


def _check_sizes(labels: Labels, classes: Sequence[str], parts: Sequence[str]) -> None:
    rows = [row for row in labels.rows if row.part in (None, "train")]
    units: dict[str, set[str]] = {name: set() for name in classes}
    for row in rows:
        units[row.label].add(row.name if row.cluster is None else f"group {row.cluster}")
    unit = "groups" if any(row.cluster is not None for row in rows) else "images"
    for name in classes:
        if len(units[name]) < len(parts):
            examples = ", ".join(sorted(units[name])[:3])
            raise DataError(
                f"{labels.path}: expected at least {len(parts)} {unit} of class {name}, one for "
                f"each of {', '.join(parts)}, got {len(units[name])} ({examples}); "
                f"{_advice(labels)}"
            )


def check_every_class(split: SplitLabels, counts: Mapping[str, Mapping[int, int]]) -> None:
    """Raises DataError for a class without usable images in a part.

    counts: number of usable images by class index, by part.
    """
    for part, by_class in counts.items():
        for index, name in enumerate(split.classes):
            if not by_class.get(index):
                raise DataError(
                    f"{split.labels.path}: expected usable {part} images of class {name}, got "
                    f"none; {_advice(split.labels)}"
                )


def _advice(labels: Labels) -> str:
    if labels.table:
        return "add pictures of it, leave the class out, or state the parts in a column split"
    return "add pictures of it or leave the class out"
