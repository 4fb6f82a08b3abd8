"""Labels of a user's images by class folders or by `labels.csv`, their checks and their parts."""

import csv
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from eulerlora.errors import DataError
from training.data.splits import SplitParts, three_parts
from training.recipe.schema import DataSettings, Part, Split

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


Folders = tuple[str, ...]


@dataclass(frozen=True)
class FolderLabels:
    """The labels of images by their folders.

    ignored: names of the other images.
    """

    labels: Sequence[ImageLabel]
    ignored: Sequence[str]


def folder_labels(names: Collection[str], packed: bool = False) -> FolderLabels:
    """Returns the labels of images, given by relative name.

    Layouts: `train/CLASS/`, `val/CLASS/` and `test/CLASS/`, with other folders ignored, or
    `CLASS/`. A class folder may have sub-folders. packed: for an archive, whose outer folder, if
    all images share one, is no class.
    """
    folders = {name: PurePosixPath(name).parts[:-1] for name in sorted(names)}
    outer = _outer_folders(folders.values()) if packed else 0
    inner = {name: parts[outer:] for name, parts in folders.items()}
    in_parts = {
        name: parts for name, parts in inner.items() if parts[:1] and parts[0] in PART_NAMES
    }
    in_parts = {name: parts for name, parts in in_parts.items() if len(parts) > 1}
    if in_parts:
        labels = [
            ImageLabel(name, parts[1], f"{parts[0]}/{parts[1]}", part=PART_NAMES[parts[0]])
            for name, parts in in_parts.items()
        ]
    else:
        labels = [ImageLabel(name, parts[0], parts[0]) for name, parts in inner.items() if parts]
    labelled = {label.name for label in labels}
    return FolderLabels(labels, [name for name in inner if name not in labelled])


def _outer_folders(folders: Collection[Folders]) -> int:
    """Returns 1 if all images are below one folder that has sub-folders only, otherwise 0."""
    top = {parts[:1] for parts in folders}
    shared = len(top) == 1 and all(len(parts) > 1 for parts in folders)
    return int(shared and next(iter(top))[0] not in PART_NAMES)


TABLE_ADVICE = "add pictures of it, leave the class out, or state the parts in a column split"
FOLDER_ADVICE = "add pictures of it or leave the class out"


@dataclass(frozen=True)
class LabelSource:
    """What states the labels: a folder, and whether its table `labels.csv` does."""

    folder: Path
    table: bool

    @property
    def path(self) -> Path:
        """The table or the folder."""
        return self.folder / LABELS if self.table else self.folder


def checked_classes(
    source: LabelSource, labels: Sequence[ImageLabel], expected: Collection[str]
) -> list[str]:
    """Returns the sorted classes of the labels, after all checks that need no image.

    expected: the exact classes; if empty, at least two of any name. Raises DataError, with the
    class and what states it, for labels that differ only in case or spaces, for one class only, for
    a missing or unexpected class, for a class without images in one of the stated parts, and for a
    group in two parts.
    """
    if not labels:
        expected_rows = "rows" if source.table else "images in a folder for each class"
        raise DataError(f"{source.path}: expected {expected_rows}, got none")
    _check_spelling(source, labels)
    classes = sorted(expected or {row.label for row in labels})
    if len(classes) < 2:
        raise DataError(
            f"{source.path}: expected two classes or more, got only {classes[0]!r}"
            f"{_layout_hint(source, labels)}"
        )
    _check_parts(source, labels, classes)
    _check_known(source, labels, classes)
    _check_groups(source, labels)
    return classes


def check_sizes(
    source: LabelSource,
    labels: Sequence[ImageLabel],
    classes: Sequence[str],
    parts: Sequence[str],
) -> None:
    """Raises DataError for a class with too few images or groups for a split into parts.

    labels: of the images to split. parts: names of the parts that the split makes.
    """
    grouped = any(row.group is not None for row in labels)
    units: dict[str, set[str]] = {name: set() for name in classes}
    for row in labels:
        units[row.label].add(row.name if row.group is None else f"group {row.group}")
    unit = "groups" if grouped else "images"
    for name in classes:
        if len(units[name]) < len(parts):
            examples = ", ".join(sorted(units[name])[:3])
            raise DataError(
                f"{source.path}: expected at least {len(parts)} {unit} of class {name}, one for "
                f"each of {', '.join(parts)}, got {len(units[name])} ({examples}); "
                f"{TABLE_ADVICE if source.table else FOLDER_ADVICE}"
            )


def check_every_class(
    source: LabelSource, counts: Mapping[str, Mapping[int, int]], classes: Sequence[str]
) -> None:
    """Raises DataError for a class without usable images in a part.

    counts: number of images by class index, by part.
    """
    for part, by_class in counts.items():
        for index, name in enumerate(classes):
            if not by_class.get(index):
                raise DataError(
                    f"{source.path}: expected usable {part} images of class {name}, got none; "
                    f"{TABLE_ADVICE if source.table else FOLDER_ADVICE}"
                )


def _check_spelling(source: LabelSource, labels: Sequence[ImageLabel]) -> None:
    spellings: dict[str, ImageLabel] = {}
    for row in labels:
        other = spellings.setdefault("".join(row.written.split()).casefold(), row)
        if other.written != row.written:
            raise DataError(
                f"{source.path}: expected one spelling of each class, got {other.written!r} "
                f"({other.place}, {other.name}) and {row.written!r} ({row.place}, {row.name}), "
                "which differ only in case or spaces"
            )


def _check_known(source: LabelSource, labels: Sequence[ImageLabel], classes: Sequence[str]) -> None:
    for row in labels:
        if row.label not in classes:
            place = row.place if source.table else str(source.folder / row.place)
            raise DataError(
                f"{place}: expected one of the classes {', '.join(classes)}, got {row.label} "
                f"({row.name})"
            )


def _check_parts(source: LabelSource, labels: Sequence[ImageLabel], classes: Sequence[str]) -> None:
    """Raises DataError for a class that has no images at all, or none in a stated part."""
    present = defaultdict(set)
    for row in labels:
        present[row.part].add(row.label)
    if not present.keys() & {None, "train"}:
        raise DataError(f"{source.path}: expected a part train, got {', '.join(map(str, present))}")
    order = (None, "train", "validation", "test")
    for part, names in sorted(present.items(), key=lambda item: order.index(item[0])):
        for name in classes:
            if name in names:
                continue
            if source.table:
                where = f"{source.path}: expected pictures of class {name}"
                raise DataError(where + (f" with the split {part}, got none" if part else ""))
            (folder, *_) = next(row.place for row in labels if row.part == part).split("/")
            path = source.folder / (folder if part else ".") / name
            raise DataError(f"{path}: expected a folder with images of this class")


def _check_groups(source: LabelSource, labels: Sequence[ImageLabel]) -> None:
    first: dict[str, ImageLabel] = {}
    for row in labels:
        if row.group is None:
            continue
        other = first.setdefault(row.group, row)
        if other.part != row.part:
            raise DataError(
                f"{source.path}: expected each group in one part, got group {row.group} in "
                f"{other.part} ({other.place}, {other.name}, {other.label}) and in {row.part} "
                f"({row.place}, {row.name}, {row.label})"
            )


def _layout_hint(source: LabelSource, labels: Sequence[ImageLabel]) -> str:
    """Returns a hint if the only folder is likely to contain the folders of the classes."""
    if source.table:
        return f", the label of all {len(labels):,} rows"
    inner = Counter(row.name.split("/")[1] for row in labels if row.name.count("/") > 1)
    if len(inner) < 2:
        return f", the folder of all {len(labels):,} images"
    folder = source.folder / labels[0].label
    return f"; its folders are {', '.join(sorted(inner)[:5])}: is the data directory {folder}?"


DRAWN: Mapping[Split, Sequence[str]] = {
    "paper": ("train",),
    "lesion": ("train", "calibration"),
    "lesion-validation": ("train", "calibration", "validation"),
    "lesion-best-epoch": ("train", "calibration", "validation"),
}
"""The parts that a split makes of the training images, if the data set has a test part."""


@dataclass(frozen=True)
class LabelledName:
    """An image by name, with its class index and its group."""

    name: str
    label: int
    cluster: str | None


@dataclass(frozen=True)
class SplitLabels:
    """Checked and split labels. rows: by image name. notes: remarks for the user."""

    source: LabelSource
    classes: Sequence[str]
    parts: SplitParts[LabelledName]
    rows: Mapping[str, ImageLabel]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Labels:
    labels: Sequence[ImageLabel]
    notes: tuple[str, ...] = ()


def split_labels(settings: DataSettings, path: Path, names: Collection[str]) -> SplitLabels:
    """Returns the labels of a folder or archive of images, checked and split.

    names: of the image files in it, relative to `path`. A folder with `labels.csv` is read by this
    table. Raises DataError, with class and file.
    """
    source = LabelSource(path, table=(path / LABELS).is_file())
    found = _from_table(path, names) if source.table else _from_folders(path, names)
    classes = checked_classes(source, found.labels, settings.classes.keys())
    user = _with_test_part(found)
    return SplitLabels(
        source=source,
        classes=classes,
        parts=_split(source, user.labels, classes, settings.split),
        rows={row.name: row for row in user.labels},
        notes=user.notes,
    )


def _from_table(path: Path, names: Collection[str]) -> _Labels:
    labels = read_labels(path / LABELS, (GROUP, SPLIT))
    unlisted = sorted({*names} - {row.name for row in labels})
    if not unlisted:
        return _Labels(labels)
    note = f"{len(unlisted):,} images are not in {LABELS} and are left out, such as {unlisted[0]}"
    return _Labels(labels, (note,))


def _from_folders(path: Path, names: Collection[str]) -> _Labels:
    found = folder_labels(names, packed=path.is_file())
    if not found.ignored:
        return _Labels(found.labels)
    note = (
        f"{len(found.ignored):,} images outside of the class folders are left out, such as "
        f"{found.ignored[0]}"
    )
    return _Labels(found.labels, (note,))


def _with_test_part(user: _Labels) -> _Labels:
    """Returns the labels with a stated test part, or without any part.

    A stated validation part is the test part if none is stated.
    """
    stated = {row.part for row in user.labels}
    if stated == {None} or "test" in stated:
        return user
    if stated == {"train"}:
        note = "all images are in train; a fifth of them becomes the test part"
        labels = [replace(row, part=None) for row in user.labels]
    else:
        note = "val is the test part, because no test part is given"
        labels = [
            replace(row, part="test" if row.part == "validation" else row.part)
            for row in user.labels
        ]
    return _Labels(labels, (*user.notes, note))


def _split(
    source: LabelSource, labels: Sequence[ImageLabel], classes: Sequence[str], split: Split
) -> SplitParts[LabelledName]:
    """Returns the parts of a split. Raises DataError for a class with too few images."""
    by_part: dict[str, list[LabelledName]] = {}
    for row in sorted(labels, key=lambda row: row.name):
        image = LabelledName(row.name, classes.index(row.label), row.group)
        by_part.setdefault(row.part or "all", []).append(image)
    drawn = DRAWN[split]
    if "validation" in by_part:
        given = {"calibration"} if split == "lesion" else {"validation"}
        drawn = [part for part in drawn if part not in given]
    if "all" in by_part:
        drawn = [*drawn, "test"]
    check_sizes(source, [row for row in labels if row.part in (None, "train")], classes, drawn)
    return three_parts(by_part, split)
