"""Archives of labelled pictures, each described by a TOML file: its classes and its lesions."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import Settings, validated
from training.recipe.file import read_toml

_ARCHIVES = Path(__file__).parents[1] / "archives"

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
    """The labels of a packaged archive, or of one that a TOML file describes.

    Raises:
        SettingsError: With the packaged names or the file and the key.
    """
    if not name.endswith(".toml") and name not in archive_names():
        raise SettingsError(
            f"expected a .toml file or one of {', '.join(archive_names())}, got {name!r}"
        )
    path = Path(name) if name.endswith(".toml") else _ARCHIVES / f"{name}.toml"
    tables = read_toml(path)
    try:
        return validated(ArchiveLabels, tables)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def archive_names() -> list[str]:
    return sorted(path.stem for path in _ARCHIVES.glob("*.toml"))
