"""The triage policy file in training: reads its classes and writes fitted thresholds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import ParseError, TOMLKitError

from eulerlora.atomic_files import atomic_write
from eulerlora.errors import SettingsError


def create(path: Path, text: str) -> None:
    """Writes a new policy file atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def malignant_classes(path: Path) -> tuple[str, ...]:
    """Returns the classes of a policy file whose probabilities are summed.

    Raises SettingsError with the path.
    """
    document = _read(path).unwrap()
    try:
        return tuple(str(name) for name in document["malignant"]["classes"])
    except (KeyError, TypeError) as error:
        raise _not_a_policy(path) from error


def set_thresholds(
    path: Path, urgent: float, entropy_nats: float, evidence: Mapping[str, Any]
) -> int:
    """Writes the fitted thresholds and their evidence; keeps comments and all other values.

    Replaces the file atomically and returns the new version, the old one plus 1. Raises
    SettingsError for a file that is not a policy.
    """
    document: Any = _read(path)
    try:
        version = int(document["version"]) + 1
        document["version"] = version
        document["malignant"]["urgent"] = urgent
        document["uncertainty"]["entropy_nats"] = entropy_nats
        document["evidence"] = evidence
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_policy(path) from error
    with atomic_write(path) as partial:
        partial.write_text(tomlkit.dumps(document), encoding="utf-8")
    return version


def _read(path: Path) -> TOMLDocument:
    try:
        return tomlkit.parse(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, TOMLKitError) as error:
        line = f" in line {error.line}" if isinstance(error, ParseError) else ""
        raise SettingsError(f"{path}: expected TOML in UTF-8, got a syntax error{line}") from error


def _not_a_policy(path: Path) -> SettingsError:
    return SettingsError(
        f"{path}: expected a triage policy as printed by `eulerlora policy show`, got other keys "
        "or types"
    )
