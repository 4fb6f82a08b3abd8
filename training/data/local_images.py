"""Labelled pictures of a site or an archive: a folder per class, or a table `labels.csv`.

An archive is described by a TOML file: the classes of its labels, and its lesions.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, field_validator

from eulerlora_contract.errors import DataError, SettingsError
from eulerlora_contract.settings import Settings, validated
from training.data.cache import decoded_images
from training.data.images import OUTSIDE, LabelledImage, OnBad, refuse
from training.data.labels import LABELS, read_labels
from training.recipe.file import read_toml

ARCHIVES = Path(__file__).parents[1] / "archives"

NonEmptyText = Annotated[str, Field(min_length=1)]


class ArchiveLabels(Settings):
    """The labels of an archive."""

    title: NonEmptyText
    """Name of the archive in reports."""
    labels: Annotated[Mapping[NonEmptyText, NonEmptyText], Field(min_length=1)]
    """Class by label."""
    outside: tuple[NonEmptyText, ...] = ()
    """Labels of target lesions of none of the classes."""
    lesion: str | None = None
    """Regular expression that finds the lesion in the name of a picture, as its only group; None if
    every picture shows another lesion.
    """

    @field_validator("lesion")
    @classmethod
    def _one_group(cls, pattern: str | None) -> str | None:
        try:
            if pattern is not None and re.compile(pattern).groups != 1:
                raise ValueError(f"expected a regular expression with one group, got {pattern}")
        except re.error as error:
            raise ValueError(f"expected a regular expression, got {pattern} ({error})") from error
        return pattern


def read_archive_labels(name: str) -> ArchiveLabels:
    """Returns the labels of a packaged archive, or of one that a TOML file describes.

    Raises SettingsError, with the packaged names or the file and the key.
    """
    if not name.endswith(".toml") and name not in archive_names():
        raise SettingsError(
            f"expected a .toml file or one of {', '.join(archive_names())}, got {name!r}"
        )
    path = Path(name) if name.endswith(".toml") else ARCHIVES / f"{name}.toml"
    tables = read_toml(path)
    try:
        return validated(ArchiveLabels, tables)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def archive_names() -> list[str]:
    return sorted(path.stem for path in ARCHIVES.glob("*.toml"))


LABEL_OPTIONS = "map a label with --class {0}=CLASS or leave its pictures out with --ignore {0}"

Unit = Literal["lesion", "image"]


@dataclass(frozen=True)
class LabelNames:
    """How local labels map to the classes of a checkpoint.

    classes: of the checkpoint, in its order. renamed: class by local label; a label that is a class
    name needs no entry. ignored: local labels whose pictures are left out. outside: local labels of
    none of the classes whose pictures are kept. remedy: what an error says about a label without a
    class, {0}.
    """

    classes: Sequence[str]
    renamed: Mapping[str, str]
    ignored: Collection[str] = ()
    outside: Collection[str] = ()
    remedy: str = LABEL_OPTIONS

    def class_of(self, label: str) -> str | None:
        name = self.renamed.get(label, label)
        return name if name in self.classes else None

    def index_of(self, label: str) -> int:
        """Returns the index of a local label's class; OUTSIDE for one without, or in `outside`."""
        name = None if label in self.outside else self.class_of(label)
        return OUTSIDE if name is None else self.classes.index(name)


@dataclass(frozen=True)
class LocalImages:
    """Labelled pictures, sorted by name.

    images: the cluster of an image is its group, if it has one. unit: "lesion" if groups are known;
    "image" if every image counts as a lesion. ignored: pictures with an ignored label.
    skipped: reasons by name for unusable pictures. notes: remarks for the user.
    """

    name: str
    images: Sequence[LabelledImage]
    unit: Unit
    ignored: int
    skipped: Mapping[str, str]
    notes: tuple[str, ...] = ()


def read_local_images(
    path: Path,
    names: LabelNames,
    skip_bad: bool = False,
    lesion: re.Pattern[str] | None = None,
    ignore_columns: bool = False,
) -> LocalImages:
    """Returns the labelled pictures of a folder or tar archive; every one of them can be decoded.

    They are labelled as those of a training (`read_labels`); parts are ignored. skip_bad: skip
    unusable pictures and list them in `skipped` instead of raising DataError. lesion: finds the
    lesion in the names of pictures without a table, as its first group. Raises DataError for labels
    without a class, for names in `names` that do not exist, and if no picture is left.
    """
    skipped: dict[str, str] = {}
    on_bad: OnBad = skipped.__setitem__ if skip_bad else refuse
    decoded = decoded_images(path)
    labels = read_labels(path, {*decoded.sources, *decoded.bad}, ignore_columns)
    _check_labels(path, {row.label for row in labels.rows}, names)
    images = []
    used = [row for row in labels.rows if row.label not in names.ignored]
    for row in sorted(used, key=lambda row: row.name):
        cluster = row.cluster
        if lesion is not None and not labels.table:
            found = lesion.search(PurePosixPath(row.name).name)
            if found is None:
                on_bad(row.name, f"expected a name with a lesion, as in {lesion.pattern}")
                continue
            cluster = found[1]
        if row.name in decoded.sources:
            source = decoded.sources[row.name]
            images.append(LabelledImage(row.name, source, names.index_of(row.label), cluster))
        else:
            on_bad(row.name, decoded.bad.get(row.name, f"is in {LABELS}, but is no image file"))
    if not images:
        raise DataError(f"{path}: expected usable labelled pictures, got none")
    unit: Unit = "lesion" if any(image.cluster for image in images) else "image"
    ignored = len(labels.rows) - len(used)
    return LocalImages(path.resolve().name, images, unit, ignored, skipped, labels.notes)


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
