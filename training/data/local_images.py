"""Labelled pictures of a site or an archive: a folder per class, or a table `labels.csv`."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError
from eulerlora_contract.printable import printable
from training.data.cache import decoded_images
from training.data.dataset import LABELS, LabelTable, Suggestion, UnreadDataError
from training.data.images import OUTSIDE, LabelledImage, OnBad, refuse
from training.data.label_refusals import suggesting_options
from training.data.label_splits import with_grouped_copies
from training.data.labels import read_labels, with_classes, without_parts
from training.data.layouts import part_of
from training.data.units import Units

_DEFAULT_TABLE = LabelTable()


@dataclass(frozen=True)
class LocalImages:
    """Labelled pictures, sorted by name.

    Attributes:
        images: The cluster of an image is its group, if it has one.
        ignored: Pictures with an ignored label.
        skipped: Reasons by name for unusable pictures.
        notes: Remarks for the user.
        has_parts: True if the data state parts.
    """

    name: str
    images: Sequence[LabelledImage]
    ignored: int
    skipped: Mapping[str, str]
    notes: tuple[str, ...] = ()
    has_parts: bool = False

    @property
    def units(self) -> Units:
        return Units.of(self.images)


def read_local_images(
    path: Path,
    classes: Sequence[ClassName],
    table: LabelTable = _DEFAULT_TABLE,
    *,
    outside: Collection[str] = (),
    skip_bad: bool = False,
    lesion: re.Pattern[str] | None = None,
) -> LocalImages:
    """The labelled pictures of a folder or archive; every one of them can be decoded.

    They are labelled as those of a training (`read_labels`); parts are ignored, and copies of a
    class are one group.

    Args:
        path: Of the folder or archive.
        classes: Of the checkpoint, in its order; not all of them need pictures.
        table: How labels are read; it also names the classes of local labels.
        outside: Labels of none of the classes whose pictures are kept.
        skip_bad: Unusable pictures are skipped and listed in `skipped`; otherwise they raise
            DataError.
        lesion: Its first group is the lesion in the name of a picture without a table; a group
            named `group` is its group, such as a patient.

    Raises:
        DataError: For labels without a class, for those in `table` that do not exist, and if no
            picture is left.
    """
    skipped: dict[str, str] = {}
    on_bad: OnBad = skipped.__setitem__ if skip_bad else refuse
    decoded = decoded_images(path / table.images)
    with suggesting_options(path, decoded, table):
        stated = with_classes(read_labels(path, decoded, table), table)
        labels = without_parts(stated)
        present = {row.label for row in labels.rows}
        if not present:
            raise DataError(f"{path}: expected labelled pictures, got none")
        if not present & {known.name for known in classes}:
            _check_labels(path, present, classes, table, outside)
    _check_labels(path, present, classes, table, outside)
    index = {name.name: number for number, name in enumerate(classes)}
    index |= dict.fromkeys(outside, OUTSIDE)
    labels = with_grouped_copies(labels, decoded.digests, index.__getitem__)
    images = []
    for row in sorted(labels.rows, key=lambda row: row.name):
        cluster, of_lesion = row.cluster, row.lesion
        if lesion is not None and not labels.table:
            found = lesion.search(PurePosixPath(row.name).name)
            if found is None:
                on_bad(row.name, f"expected a name with a lesion, as in {lesion.pattern}")
                continue
            cluster, of_lesion = found.groupdict().get("group", found[1]), found[1]
        if row.name in decoded.sources:
            source = decoded.sources[row.name]
            label = index[row.label]
            image = LabelledImage(row.name, source, label, cluster, row.attributes, of_lesion)
            images.append(image)
        else:
            on_bad(row.name, decoded.bad.get(row.name, f"is in {LABELS}, but is no image file"))
    if not images:
        faults = [f"{name}: {reason}" for name, reason in skipped.items()]
        unusable = f"; {len(faults):,} are unusable, such as {faults[0]}" if faults else ""
        raise DataError(f"{path}: expected usable labelled pictures, got none{unusable}")
    name = printable(path.resolve().name)
    has_parts = any(row.part for row in stated.rows)
    return LocalImages(name, images, labels.ignored, skipped, labels.notes, has_parts)


def _check_labels(
    folder: Path,
    present: Collection[str],
    classes: Sequence[ClassName],
    table: LabelTable,
    outside: Collection[str],
) -> None:
    names = [known.name for known in classes]
    for label, name in table.renamed.items():
        if name not in names:
            raise DataError(
                f"{label}={name}: expected a class of the checkpoint ({', '.join(names)}), got "
                f"{name}"
            )
    for label in outside:
        if label not in present:
            raise DataError(
                f"{folder}: expected pictures labelled {label}, got {', '.join(sorted(present))}"
            )
    unknown = sorted({*present} - {*names, *outside})
    if not unknown:
        return
    message = (
        f"{folder}: expected the checkpoint's classes {', '.join(names)}, got also "
        f"{', '.join(unknown)}"
    )
    if any(map(part_of, unknown)):
        raise DataError(message)
    likely = {label: _likely_class(label, classes) for label in unknown}
    left_out = [label for label, name in likely.items() if name is None]
    if left_out:
        example = shlex.quote(f"{left_out[0]}=CLASS")
        message += f"; give the pictures of a label to a class with --class {example}"
    if not ({*present} & {*names} or any(likely.values())):
        raise DataError(message)
    options = [
        option
        for label, name in likely.items()
        for option in (("--class", f"{label}={name}") if name else ("--ignore", label))
    ]
    purpose = f"to leave out {', '.join(left_out)}" if left_out else ""
    raise UnreadDataError(message, Suggestion(tuple(options), purpose))


def _likely_class(label: str, classes: Sequence[ClassName]) -> str | None:
    """The class whose name or description has the same letters and digits as a label."""

    def letters(text: str) -> str:
        return "".join(filter(str.isalnum, text.casefold()))

    for known in classes:
        names = (known.name, known.description, known.description.partition(" (")[0])
        if letters(label) in map(letters, names):
            return known.name
    return None
