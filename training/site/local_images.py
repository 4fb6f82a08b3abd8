"""A site's labelled pictures: one folder per class, or a table `labels.csv`."""

import csv
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from eulerlora.errors import DataError
from training.data.cache import decoded_images
from training.data.labelled_images import SPLIT_SEED, LabelledImage, stratified_split
from training.data.sources import OnBad, refuse
from training.metrics.intervals import Ints, cluster_indices

LABELS = "labels.csv"
PATH, LABEL, GROUP = "path", "label", "group"
MIN_FOR_SPLIT = 2  # groups of a class

Unit = Literal["lesion", "image"]


@dataclass(frozen=True)
class LabelNames:
    """How a site's labels map to the classes of a checkpoint.

    classes: of the checkpoint, in its order. renamed: class by local label; a label that is a class
    name needs no entry. ignored: local labels whose pictures are left out.
    """

    classes: Sequence[str]
    renamed: Mapping[str, str]
    ignored: Collection[str] = ()

    def class_of(self, label: str) -> str | None:
        """Returns the class of a local label; None if it has none."""
        name = self.renamed.get(label, label)
        return name if name in self.classes else None


@dataclass(frozen=True)
class LocalImages:
    """A site's labelled pictures, sorted by name.

    images: the cluster of an image is its group, if it has one. unit: "lesion" if `labels.csv` has
    groups; "image" if every image counts as a lesion. ignored: pictures with an ignored label.
    skipped: reasons by name for unusable pictures.
    """

    name: str
    images: Sequence[LabelledImage]
    unit: Unit
    ignored: int
    skipped: Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """The images of a lesion or patient. label: the class by which a split is stratified."""

    label: int
    images: Sequence[LabelledImage]


@dataclass(frozen=True)
class HoldOut:
    """Two parts of the images without a common group: one to fit and one to measure."""

    fit: Sequence[LabelledImage]
    measure: Sequence[LabelledImage]


@dataclass(frozen=True)
class LocalLabel:
    """The label of a picture and its group, a lesion or a patient, if known."""

    name: str
    label: str
    group: str | None = None


def read_local_images(folder: Path, names: LabelNames, skip_bad: bool = False) -> LocalImages:
    """Returns the labelled pictures of a folder; every one of them can be decoded.

    A folder with `labels.csv` is read by this table, with the columns path, label and optionally
    group; other folders have one sub-folder per class. skip_bad: skip unusable pictures and list
    them in `skipped` instead of raising DataError. Raises DataError for labels without a class, for
    names in `names` that do not exist, and if no picture is left.
    """
    skipped: dict[str, str] = {}
    on_bad: OnBad = skipped.__setitem__ if skip_bad else refuse
    decoded = decoded_images(folder)
    if (folder / LABELS).is_file():
        labels = read_labels(folder / LABELS)
    else:
        labels = list(_folder_labels({*decoded.sources, *decoded.bad}, on_bad))
    _check_labels(folder, {row.label for row in labels}, names)
    images = []
    used = [row for row in labels if row.label not in names.ignored]
    for row in sorted(used, key=lambda row: row.name):
        if row.name in decoded.sources:
            label = names.classes.index(names.class_of(row.label) or "")
            source = decoded.sources[row.name]
            images.append(LabelledImage(row.name, source, label, row.group))
        else:
            on_bad(row.name, decoded.bad.get(row.name, f"is in {LABELS}, but is no image file"))
    if not images:
        raise DataError(f"{folder}: expected usable labelled pictures, got none")
    unit: Unit = "lesion" if any(row.group for row in labels) else "image"
    return LocalImages(folder.resolve().name, images, unit, len(labels) - len(used), skipped)


def group_indices(images: Sequence[LabelledImage]) -> Ints:
    """Returns (n,) the index of each image's group; an image without one is a group by itself."""
    return cluster_indices([image.cluster or image.name for image in images])


def split_groups(
    images: Sequence[LabelledImage], measured: float, seed: int = SPLIT_SEED
) -> HoldOut:
    """Returns the images in two parts, stratified by class; the same parts for the same seed.

    measured: share of the groups in the second part, 0 to 1. Groups of a class with fewer than two
    stay in the first. Raises DataError if there are too few groups.
    """
    members: dict[int, list[LabelledImage]] = defaultdict(list)
    for index, image in zip(group_indices(images).tolist(), images, strict=True):
        members[index].append(image)
    totals = Counter(image.label for image in images)
    groups = [
        Group(min((image.label for image in group), key=totals.__getitem__), group)
        for _, group in sorted(members.items())
    ]
    sizes = Counter(group.label for group in groups)
    alone = [group for group in groups if sizes[group.label] < MIN_FOR_SPLIT]
    several = [group for group in groups if sizes[group.label] >= MIN_FOR_SPLIT]
    fit, measure = stratified_split(several, measured, seed)
    return HoldOut(_images([*fit, *alone]), _images(measure))


def _images(groups: Sequence[Group]) -> list[LabelledImage]:
    return sorted((image for group in groups for image in group.images), key=lambda i: i.name)


def read_labels(path: Path) -> list[LocalLabel]:
    """Returns the rows of a table of labels. Raises DataError, with file and line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = {PATH, LABEL} - {*(reader.fieldnames or ())}
            if missing:
                raise DataError(
                    f"{path}: expected the columns {PATH}, {LABEL} and optionally {GROUP}, got "
                    f"{', '.join(reader.fieldnames or ()) or 'none'}"
                )
            rows = [_row(path, reader.line_num, cells) for cells in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a CSV table in UTF-8 ({error})") from error
    for name, count in Counter(row.name for row in rows).items():
        if count > 1:
            raise DataError(f"{path}: expected one row for each picture, got {count} for {name}")
    return rows


def _row(path: Path, line: int, cells: Mapping[str, str | None]) -> LocalLabel:
    name, label = ((cells.get(key) or "").strip() for key in (PATH, LABEL))
    if not name or not label:
        raise DataError(f"{path} line {line}: expected a {PATH} and a {LABEL}, got an empty cell")
    group = (cells.get(GROUP) or "").strip() or None
    return LocalLabel(PurePosixPath(name).as_posix(), label, group)


def _folder_labels(names: Collection[str], on_bad: OnBad) -> Iterator[LocalLabel]:
    """Yields the labels of pictures, given by relative name: their first folder."""
    for name in sorted(names):
        folders = PurePosixPath(name).parts[:-1]
        if folders:
            yield LocalLabel(name, folders[0])
        else:
            on_bad(name, "expected a sub-folder named after its label")


def _check_labels(folder: Path, present: Collection[str], names: LabelNames) -> None:
    """Raises DataError for a label without a class and for a name that does not exist."""
    for label, name in names.renamed.items():
        if name not in names.classes:
            raise DataError(
                f"--class {label}={name}: expected a class of the checkpoint "
                f"({', '.join(names.classes)}), got {name}"
            )
    for label in (*names.renamed, *names.ignored):
        if label not in present:
            raise DataError(
                f"{folder}: expected pictures labelled {label}, got {', '.join(sorted(present))}"
            )
    unknown = sorted(
        label for label in present if label not in names.ignored and names.class_of(label) is None
    )
    if unknown:
        raise DataError(
            f"{folder}: expected the checkpoint's classes {', '.join(names.classes)}, got also "
            f"{', '.join(unknown)}; map a label with --class {unknown[0]}=CLASS or leave its "
            f"pictures out with --ignore {unknown[0]}"
        )
