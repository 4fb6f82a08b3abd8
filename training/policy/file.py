"""A triage policy file, as training sees it: a few values that it reads, and those that it sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError

from eulerlora.atomic_files import whole_file
from eulerlora.errors import SettingsError


@dataclass(frozen=True)
class PolicyRules:
    """What a fit has to know of a policy.

    malignant: the classes whose probabilities are summed. entropy_nats: from which on an image is
    referred.
    """

    malignant: tuple[str, ...]
    entropy_nats: float


def begin(path: Path, text: str) -> None:
    """Writes a new policy file, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_rules(path: Path) -> PolicyRules:
    """The rules in a policy file. Raises SettingsError, which names the file."""
    document = _read(path).unwrap()
    try:
        classes = document["malignant"]["classes"]
        return PolicyRules(
            malignant=tuple(str(name) for name in classes),
            entropy_nats=float(document["uncertainty"]["entropy_nats"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _no_policy(path, error) from error


def set_urgent(path: Path, urgent: float, evidence: Mapping[str, Any]) -> int:
    """Writes the urgent threshold and its evidence; all else, comments too, stays as it is.

    Returns the version of the changed policy, one more than before. The file changes in one step.
    Raises SettingsError for a file that is no policy.
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
        raise _no_policy(path, error) from error
    with whole_file(path) as partial:
        partial.write_text(tomlkit.dumps(document), encoding="utf-8")
    return version


def _read(path: Path) -> TOMLDocument:
    try:
        return tomlkit.parse(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, TOMLKitError) as error:
        raise SettingsError(f"{path}: not TOML ({error})") from error


def _no_policy(path: Path, error: Exception) -> SettingsError:
    return SettingsError(
        f"{path}: wanted a triage policy as `eulerlora policy show` prints one ({error!r})"
    )
