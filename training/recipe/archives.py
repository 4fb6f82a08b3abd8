"""Archives of labelled pictures, each described by a TOML file: its classes and its lesions."""

import csv
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field, field_validator

from eulerlora_contract.errors import DataError, SettingsError
from eulerlora_contract.settings import NonEmpty, Settings, validated
from training.data.images import UNKNOWN, LabelledImage
from training.recipe.file import read_toml

_ARCHIVES = Path(__file__).parents[1] / "archives"


class _Attribute(Settings):
    """A column of an archive's table that describes pictures.

    Attributes:
        values: Words by cell; other cells are unknown. If empty, the cells are the words.
    """

    column: NonEmpty
    values: Mapping[NonEmpty, NonEmpty] = {}


class _ArchiveTable(Settings):
    """A table in an archive that says more of its pictures.

    Attributes:
        file: Name of the CSV file, in any folder of the archive.
        picture: Column with the names of the pictures, without folder and suffix.
        attributes: Columns by the name of the attribute, such as "skin type".
    """

    file: NonEmpty
    picture: NonEmpty
    attributes: Annotated[Mapping[NonEmpty, _Attribute], Field(min_length=1)]


class ArchiveLabels(Settings):
    """How the pictures of an archive are labelled.

    Attributes:
        title: Name of the archive in reports.
        labels: Class by label.
        outside: Labels of target lesions of none of the classes.
        lesion: Regular expression that finds the lesion in the name of a picture, as its first
            group, and in one named `group`, if any, the patient; None if every picture shows
            another lesion.
        table: By whose attributes the performance is also stated.
    """

    title: NonEmpty
    labels: Annotated[Mapping[NonEmpty, NonEmpty], Field(min_length=1)]
    outside: tuple[NonEmpty, ...] = ()
    lesion: str | None = None
    table: _ArchiveTable | None = None

    @field_validator("lesion")
    @classmethod
    def _has_lesion(cls, pattern: str | None) -> str | None:
        try:
            groups = None if pattern is None else re.compile(pattern)
            if groups and groups.groups != 1 + ("group" in groups.groupindex):
                raise ValueError(
                    "expected a regular expression with one group, and possibly one named `group`, "
                    f"got {pattern}"
                )
        except re.error as error:
            raise ValueError(f"expected a regular expression, got {pattern} ({error})") from error
        return pattern


def with_attributes(
    images: Sequence[LabelledImage], archive: Path, table: _ArchiveTable
) -> list[LabelledImage]:
    """The images with the attributes that a table of their archive gives them.

    `archive`: a folder or archive.

    Raises:
        DataError: Without such a table, or for a column that it lacks.
    """
    rows = {row[table.picture]: row for row in _rows(archive, table)}
    return [
        replace(
            image,
            attributes={
                name: (attribute.values or {cell: cell}).get(cell, UNKNOWN) or UNKNOWN
                for name, attribute in table.attributes.items()
                for cell in [rows.get(PurePosixPath(image.name).stem, {}).get(attribute.column, "")]
            },
        )
        for image in images
    ]


def _rows(archive: Path, table: _ArchiveTable) -> list[dict[str, str]]:
    if archive.is_dir():
        text = next((p.read_text("utf-8-sig") for p in sorted(archive.rglob(table.file))), None)
    else:
        with tarfile.open(archive) as members:
            text = next(
                (
                    content.read().decode("utf-8-sig")
                    for member in members
                    if PurePosixPath(member.name).name == table.file
                    and (content := members.extractfile(member)) is not None
                ),
                None,
            )
    if text is None:
        raise DataError(f"{archive}: expected a table {table.file}, got none")
    reader = csv.DictReader(io.StringIO(text))
    columns = [table.picture, *(attribute.column for attribute in table.attributes.values())]
    if missing := set(columns) - set(reader.fieldnames or ()):
        names = ", ".join(sorted(missing))
        raise DataError(f"{archive}: {table.file}: expected also the columns {names}")
    return list(reader)


def read_archive_labels(name: str) -> ArchiveLabels:
    """The labels of a packaged archive, or of one that a TOML file describes.

    Raises:
        SettingsError: With the packaged names or the file and the key.
    """
    if not name.endswith(".toml") and name not in _archive_names():
        raise SettingsError(
            f"expected a .toml file or one of {', '.join(_archive_names())}, got {name!r}"
        )
    path = Path(name) if name.endswith(".toml") else _ARCHIVES / f"{name}.toml"
    tables = read_toml(path)
    try:
        return validated(ArchiveLabels, tables)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _archive_names() -> list[str]:
    return sorted(path.stem for path in _ARCHIVES.glob("*.toml"))
