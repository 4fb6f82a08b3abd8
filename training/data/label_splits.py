"""Labelled images of a user, checked and split into parts."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

from eulerlora_contract.errors import DataError
from training.data.cache import DecodedImages
from training.data.dataset import DataSettings
from training.data.label_refusals import (
    check_layout,
    check_several,
    check_spelling,
    suggesting_options,
)
from training.data.labels import ImageLabel, Labels, read_labels, with_classes, without_parts
from training.data.layouts import part_of
from training.data.splits import Split, SplitParts, parts_of


@dataclass(frozen=True)
class _SplitLabels:
    labels: Labels
    classes: Sequence[str]
    parts: SplitParts[ImageLabel]


_PARTS_OF_TRAINING: Mapping[Split, Sequence[str]] = {
    "paper": ("train",),
    "lesion": ("train", "calibration"),
    "lesion-validation": ("train", "calibration", "validation"),
    "lesion-best-epoch": ("train", "calibration", "validation"),
}
"""The parts that a split makes of the training images, if the data set has a test part."""


def split_labels(settings: DataSettings, path: Path, images: DecodedImages) -> _SplitLabels:
    """The labels of a folder or archive of images, checked and split.

    Copies of a class are one group.

    Raises:
        DataError: With class and file.
    """
    with suggesting_options(path, images, settings):
        labels = read_labels(path, images, settings)
        check_layout(labels, settings)
    labels = with_classes(labels, settings)
    check_several(labels, settings)
    classes = _checked_classes(labels, settings.classes.keys())
    labels = with_grouped_copies(_with_test_part(labels), images.digests)
    by_part: dict[str, list[ImageLabel]] = {}
    for row in sorted(labels.rows, key=lambda row: row.name):
        by_part.setdefault(row.part or "all", []).append(row)
    parts = _PARTS_OF_TRAINING[settings.split]
    if "validation" in by_part:
        given = {"calibration"} if settings.split == "lesion" else {"validation"}
        parts = [part for part in parts if part not in given]
    if "all" in by_part:
        parts = [*parts, "test"]
    _check_sizes(labels, classes, parts)
    return _SplitLabels(labels, classes, parts_of(by_part, settings.split))


def _checked_classes(labels: Labels, expected: Collection[str]) -> list[str]:
    """The sorted classes of the labels, after all checks that need no image.

    Without `expected` classes, there are at least two of any name.
    """
    check_spelling(labels)
    names = expected or {row.label for row in labels.rows}
    classes = sorted({normalize("NFC", name) for name in names})
    _check_known(labels, classes)
    _check_parts(labels, classes)
    _check_groups(labels)
    return classes


def _check_known(labels: Labels, classes: Sequence[str]) -> None:
    for row in labels.rows:
        if row.label not in classes:
            place = row.place if labels.table else str(labels.folder / row.place)
            is_part = labels.table is None and part_of(row.label) is not None
            hint = f"; as a part, {row.label} needs the part train beside it" if is_part else ""
            raise DataError(
                f"{place}: expected one of the classes {', '.join(classes)}, got {row.label} "
                f"({row.name}){hint}"
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


def _with_test_part(labels: Labels) -> Labels:
    """The labels with a stated test part, or without any part.

    A stated validation part is the test part if none is stated.
    """
    stated = {row.part for row in labels.rows}
    if stated == {None} or "test" in stated:
        return labels
    if stated == {"train"}:
        note = "all images are in train; a fifth of them becomes the test part"
        rows = without_parts(labels).rows
    else:
        note = "val is the test part, because no test part is given"
        rows = [
            replace(row, part="test" if row.part == "validation" else row.part)
            for row in labels.rows
        ]
    return replace(labels, rows=rows, notes=(*labels.notes, note))


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


def with_grouped_copies(
    labels: Labels, digests: Mapping[str, int], class_of: Callable[[str], object] = str
) -> Labels:
    """Puts copies of one class in one group and one lesion, with a note.

    Copies have equal pixels, also turned or mirrored. A group or lesion of such an image is united
    with those of its copies; without any group, it has the name of one of them. Images in two
    stated parts are not grouped, because a group is never in two parts. `digests` are those of all
    orientations, by name; `class_of` gives the class of a label, by default the label itself.
    """
    copies: dict[tuple[object, ...], list[ImageLabel]] = defaultdict(list)
    for row in sorted(labels.rows, key=lambda row: row.name):
        if row.name in digests:
            copies[digests[row.name], class_of(row.label), row.part].append(row)
    repeated = [rows for rows in copies.values() if len(rows) > 1]
    if not repeated:
        return labels
    groups = _united([[row.cluster or row.name for row in rows] for rows in repeated])
    lesions = _united([[row.lesion or row.name for row in rows] for rows in repeated])
    by_lesion = any(row.lesion for row in labels.rows)
    rows = [
        replace(
            row,
            cluster=groups.get(row.cluster or row.name, row.cluster),
            lesion=lesions.get(row.lesion or row.name, row.lesion) if by_lesion else None,
        )
        for row in labels.rows
    ]
    count = sum(len(rows) - 1 for rows in repeated)
    note = (
        f"{count:,} copies (equal pixels, also turned or mirrored) are in the group of the picture "
        "that they repeat"
    )
    return replace(labels, rows=rows, notes=(*labels.notes, note))


def _united(sets: Iterable[Sequence[str]]) -> dict[str, str]:
    """For every name, that of all names that are connected to it by sets: of the first one."""
    names: dict[str, str] = {}  # by name: one that it is united with, or itself

    def united(name: str) -> str:
        while names.setdefault(name, name) != name:
            name = names[name]
        return name

    for first, *others in sets:
        kept = united(first)
        for name in others:
            names[united(name)] = kept
    return {name: united(name) for name in [*names]}


def check_every_class(
    split: _SplitLabels, counts: Mapping[str, Mapping[int, int]], faults: Sequence[str]
) -> None:
    """Refuses a class without usable images in a part.

    `counts` has the number of usable images by class index, by part; `faults` are those of the
    others.

    Raises:
        DataError: With class, part and the first fault.
    """
    for part, by_class in counts.items():
        for index, name in enumerate(split.classes):
            if not by_class.get(index):
                unusable = f"{len(faults):,} are unusable, such as {faults[0]}; " if faults else ""
                raise DataError(
                    f"{split.labels.path}: expected usable {part} images of class {name}, got "
                    f"none; {unusable}{_advice(split.labels)}"
                )


def _advice(labels: Labels) -> str:
    if labels.table:
        return "add pictures of it, leave the class out, or state the parts in a column split"
    return "add pictures of it or leave the class out"
