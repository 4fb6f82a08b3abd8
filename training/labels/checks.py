"""Checks of a user's labels, before any image is used."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eulerlora.errors import DataError
from training.labels.table import LABELS, ImageLabel

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


def class_names(
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
