"""Labels and parts of a user's folder of images: by class folders or by `labels.csv`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from training.labels.checks import LabelSource, check_sizes, class_names
from training.labels.folders import folder_labels
from training.labels.splits import Parts, three_parts
from training.labels.table import GROUP, LABELS, SPLIT, ImageLabel, read_labels
from training.recipe.schema import DataSettings, Split

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
    parts: Parts[LabelledName]
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
    classes = class_names(source, found.labels, settings.classes.keys())
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
) -> Parts[LabelledName]:
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
