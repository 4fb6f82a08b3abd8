"""Labelled pictures of a site or an archive: a folder per class, or a table `labels.csv`."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from eulerlora_contract.errors import DataError
from eulerlora_contract.printable import printable
from training.data.cache import decoded_images
from training.data.dataset import LABELS, LabelTable
from training.data.images import OUTSIDE, LabelledImage, OnBad, refuse
from training.data.labels import read_labels, with_grouped_copies, without_parts

_DEFAULT_TABLE = LabelTable()
_LABEL_OPTIONS = "map a label with --class {0}=CLASS or leave its pictures out with --ignore {0}"

_Unit = Literal["lesion", "image"]


@dataclass(frozen=True)
class LabelNames:
    """How local labels map to the classes of a checkpoint.

    Attributes:
        classes: Of the checkpoint, in its order.
        renamed: Class by local label; a label that is a class name needs no entry.
        ignored: Local labels whose pictures are left out.
        outside: Local labels of none of the classes whose pictures are kept.
        remedy: What an error says about a label without a class, {0}.
    """

    classes: Sequence[str]
    renamed: Mapping[str, str]
    ignored: Collection[str] = ()
    outside: Collection[str] = ()
    remedy: str = _LABEL_OPTIONS

    def class_of(self, label: str) -> str | None:
        name = self.renamed.get(label, label)
        return name if name in self.classes else None

    def index_of(self, label: str) -> int:
        """The index of a local label's class; OUTSIDE for one without, or in `outside`."""
        name = None if label in self.outside else self.class_of(label)
        return OUTSIDE if name is None else self.classes.index(name)


@dataclass(frozen=True)
class LocalImages:
    """Labelled pictures, sorted by name.

    Attributes:
        images: The cluster of an image is its group, if it has one.
        unit: "lesion" if groups are known; "image" if every image counts as a lesion.
        ignored: Pictures with an ignored label.
        skipped: Reasons by name for unusable pictures.
        notes: Remarks for the user.
    """

    name: str
    images: Sequence[LabelledImage]
    unit: _Unit
    ignored: int
    skipped: Mapping[str, str]
    notes: tuple[str, ...] = ()


def read_local_images(
    path: Path,
    names: LabelNames,
    skip_bad: bool = False,
    lesion: re.Pattern[str] | None = None,
    table: LabelTable = _DEFAULT_TABLE,
) -> LocalImages:
    """The labelled pictures of a folder or tar archive; every one of them can be decoded.

    They are labelled as those of a training (`read_labels`); parts are ignored, and copies of a
    class are one group, also under several local labels.

    With `skip_bad`, unusable pictures are skipped and listed in `skipped`; otherwise they raise
    DataError. The first group of `lesion` is the lesion in the name of a picture without a table; a
    group named `group` is its group, such as a patient.

    Raises:
        DataError: For labels without a class, for names in `names` that do not exist, and if no
            picture is left.
    """
    skipped: dict[str, str] = {}
    on_bad: OnBad = skipped.__setitem__ if skip_bad else refuse
    decoded = decoded_images(path)
    labels = read_labels(path, decoded, table)
    named = lesion is not None and labels.table is None
    unit: _Unit = "lesion" if named or any(row.cluster for row in labels.rows) else "image"
    labels = with_grouped_copies(
        without_parts(labels),
        decoded.digests,
        lambda label: label if label in names.ignored else names.index_of(label),
    )
    _check_labels(path, {row.label for row in labels.rows}, names)
    images = []
    used = [row for row in labels.rows if row.label not in names.ignored]
    for row in sorted(used, key=lambda row: row.name):
        cluster, of_lesion = row.cluster, row.lesion
        if lesion is not None and not labels.table:
            found = lesion.search(PurePosixPath(row.name).name)
            if found is None:
                on_bad(row.name, f"expected a name with a lesion, as in {lesion.pattern}")
                continue
            cluster, of_lesion = found.groupdict().get("group", found[1]), found[1]
        if row.name in decoded.sources:
            source = decoded.sources[row.name]
            label = names.index_of(row.label)
            image = LabelledImage(row.name, source, label, cluster, row.attributes, of_lesion)
            images.append(image)
        else:
            on_bad(row.name, decoded.bad.get(row.name, f"is in {LABELS}, but is no image file"))
    if not images:
        faults = [f"{name}: {reason}" for name, reason in skipped.items()]
        unusable = f"; {len(faults):,} are unusable, such as {faults[0]}" if faults else ""
        raise DataError(f"{path}: expected usable labelled pictures, got none{unusable}")
    ignored = len(labels.rows) - len(used)
    name = printable(path.resolve().name)
    return LocalImages(name, images, unit, ignored, skipped, labels.notes)


def _check_labels(folder: Path, present: Collection[str], names: LabelNames) -> None:
    for label, name in names.renamed.items():
        if name not in names.classes:
            raise DataError(
                f"{label}={name}: expected a class of the checkpoint "
                f"({', '.join(names.classes)}), got {name}"
            )
    for label in (*names.renamed, *names.ignored, *names.outside):
        if label not in present:
            raise DataError(
                f"{folder}: expected pictures labelled {label}, got {', '.join(sorted(present))}"
            )
    left_out = {*names.ignored, *names.outside}
    unknown = sorted(
        label for label in present if label not in left_out and names.class_of(label) is None
    )
    if unknown:
        raise DataError(
            f"{folder}: expected the checkpoint's classes {', '.join(names.classes)}, got also "
            f"{', '.join(unknown)}; {names.remedy.format(unknown[0])}"
        )
