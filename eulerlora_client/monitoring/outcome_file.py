"""Reads a file of outcomes: decisions of the triage policy, and the classes confirmed later."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eulerlora_client.contract.triage import Disposition
from eulerlora_client.errors import OutcomesError
from eulerlora_client.printable import printable

DISPOSITION, LESION, POLICY_HASH = "disposition", "lesion", "policy_hash"
SHOWN_COLUMNS = 10


@dataclass(frozen=True)
class Outcome:
    """An image. disposition: None without one. confirmed: its class, "" if not known yet."""

    disposition: Disposition | None
    confirmed: str
    lesion: str
    policy_hash: str


def read_outcomes(path: Path, confirmed: str) -> list[Outcome]:
    """Returns the rows of a CSV file in their order, which must be that of time.

    The columns `disposition` and, optionally, `policy_hash` are those of `eulerlora triage --csv`.
    confirmed: name of the column with the confirmed class. A row without a value in the column
    `lesion` is a lesion of its own. Raises OutcomesError.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = csv.DictReader(file)
            _check_columns(path, rows.fieldnames or (), confirmed)
            outcomes = [_outcome(row, f"{path}, line {rows.line_num}", confirmed) for row in rows]
    except csv.Error as error:
        raise OutcomesError(f"{path}: expected CSV ({error})") from error
    except OSError as error:
        raise OutcomesError(f"{path}: cannot be read ({error.strerror})") from error
    if not outcomes:
        raise OutcomesError(f"{path}: expected at least one row below the header")
    return outcomes


def check_policy(path: Path, outcomes: Iterable[Outcome], policy_hash: str) -> None:
    """Raises OutcomesError if a row was decided by another policy."""
    for other in {row.policy_hash for row in outcomes} - {"", policy_hash}:
        raise OutcomesError(
            f"{path}: expected decisions of the policy {policy_hash}, got {printable(other)}"
        )


def _check_columns(path: Path, columns: Sequence[str], confirmed: str) -> None:
    missing = [name for name in (DISPOSITION, confirmed) if name not in columns]
    if missing:
        noun = "column" if len(missing) == 1 else "columns"
        shown = printable(", ".join(columns[:SHOWN_COLUMNS])) or "an empty file"
        raise OutcomesError(f"{path}: expected the {noun} {', '.join(missing)}, got {shown}")


def _outcome(row: dict[str, str], place: str, confirmed: str) -> Outcome:
    """Returns a row. place: the file and the number of the line."""
    disposition = _cell(row, DISPOSITION)
    if disposition and disposition not in set(Disposition):
        names = ", ".join(Disposition)
        raise OutcomesError(
            f"{place}: expected a disposition ({names}), got {printable(disposition)}"
        )
    return Outcome(
        disposition=Disposition(disposition) if disposition else None,
        confirmed=_cell(row, confirmed),
        lesion=_cell(row, LESION) or place,
        policy_hash=_cell(row, POLICY_HASH),
    )


def _cell(row: dict[str, str], column: str) -> str:
    """Returns a value without spaces around it; "" in a short row and for a missing column."""
    return (row.get(column) or "").strip()
