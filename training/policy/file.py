"""The triage policy file in training: reads its rules and writes the urgent threshold."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import ParseError, TOMLKitError

from eulerlora.atomic_files import atomic_write
from eulerlora.errors import SettingsError


@dataclass(frozen=True)
class PolicyRules:
    """The rules of a policy that a fit depends on.

    malignant: classes whose probabilities are summed. entropy_nats: predictive entropy at or above
    which an image is referred.
    """

    malignant: tuple[str, ...]
    entropy_nats: float


def create(path: Path, text: str) -> None:
    """Writes a new policy file atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_rules(path: Path) -> PolicyRules:
    """Reads the rules of a policy file. Raises SettingsError with the path."""
    document = _read(path).unwrap()
    try:
        classes = document["malignant"]["classes"]
        return PolicyRules(
            malignant=tuple(str(name) for name in classes),
            entropy_nats=float(document["uncertainty"]["entropy_nats"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_policy(path) from error


def set_urgent(path: Path, urgent: float, evidence: Mapping[str, Any]) -> int:
    """Writes the urgent threshold and its evidence; keeps comments and all other values.

    Replaces the file atomically and returns the new version, the old one plus 1. Raises
    SettingsError for a file that is not a policy.
    """
    document: Any = _read(path)
    try:
        version = int(document["version"]) + 1
        document["version"] = version
        document["malignant"]["urgent"] = urgent
        table = document.setdefault("evidence", tomlkit.table())
        for key in set(table) - set(evidence):
            del table[key]
        for key, value in evidence.items():
            table[key] = value
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
