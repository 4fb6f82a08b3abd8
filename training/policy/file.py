"""The triage policy file in training: reads its classes and writes fitted thresholds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import ParseError, TOMLKitError

from eulerlora.errors import SettingsError
from eulerlora_client.output_files import atomic_write


def create(path: Path, text: str) -> None:
    """Writes a new policy file atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class PolicyRules:
    """The rules of a policy file that depend on a model.

    malignant: the classes whose probabilities are summed. urgent, entropy_nats: the thresholds.
    """

    malignant: tuple[str, ...]
    urgent: float
    entropy_nats: float


def read_rules(text: str, name: str) -> PolicyRules:
    """Returns the rules in a policy file's text. Raises SettingsError, which begins with `name`."""
    document = _parse(text, name).unwrap()
    try:
        malignant = document["malignant"]
        return PolicyRules(
            malignant=tuple(str(name) for name in malignant["classes"]),
            urgent=float(malignant["urgent"]),
            entropy_nats=float(document["uncertainty"]["entropy_nats"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_policy(name) from error


def read_text(path: Path) -> str:
    """Returns the text of a policy file. Raises SettingsError with the path."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: expected TOML in UTF-8") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error


def set_thresholds(
    path: Path, urgent: float, entropy_nats: float, evidence: Mapping[str, Any]
) -> int:
    """Writes the fitted thresholds and their evidence; keeps comments and all other values.

    Replaces the file atomically and returns the new version, the old one plus 1. Raises
    SettingsError for a file that is not a policy.
    """
    document: Any = _parse(read_text(path), str(path))
    try:
        version = int(document["version"]) + 1
        document["version"] = version
        document["malignant"]["urgent"] = urgent
        document["uncertainty"]["entropy_nats"] = entropy_nats
        document["evidence"] = evidence
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_policy(str(path)) from error
    with atomic_write(path) as partial:
        partial.write_text(tomlkit.dumps(document), encoding="utf-8")
    return version


def _parse(text: str, name: str) -> TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        line = f" in line {error.line}" if isinstance(error, ParseError) else ""
        raise SettingsError(f"{name}: expected TOML in UTF-8, got a syntax error{line}") from error


def _not_a_policy(name: str) -> SettingsError:
    return SettingsError(
        f"{name}: expected a triage policy as printed by `eulerlora policy show`, got other keys "
        "or types"
    )
