"""Triage rows as CSV and as JSON Lines, one row for each file; a file appears whole or not."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eulerlora.atomic_files import whole_file
from eulerlora_client.triage.run import TriageRow

OF_PREDICTION = (
    "label", "msp", "entropy", "expected_entropy", "mutual_information", "ood", "ood_threshold",
    "mode", "samples", "trajectories", "seed", "model", "revision", "request_id",
)  # fmt: skip
OF_ERROR = ("msp", "entropy")
OF_QUALITY = ("width", "height", "brightness", "dark_share", "bright_share", "sharpness")
COLUMNS = (
    "file", "disposition", "reasons", "problem", "problem_detail", *OF_PREDICTION,
    *(f"{name}_standard_error" for name in OF_ERROR), "warnings",
    *(f"quality_{name}" for name in OF_QUALITY), "policy_version", "policy_hash",
)  # fmt: skip
"""Of the CSV; after them come the classes' probabilities, each as p_CLASS."""

BETWEEN = "; "
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(path: Path, rows: Sequence[TriageRow]) -> None:
    """Writes the rows as CSV (RFC 4180, UTF-8); what a row does not have is empty."""
    classes = dict.fromkeys(
        f"p_{name}" for row in rows if row.prediction for name in row.prediction.classes
    )
    with (
        whole_file(path, private=True) as partial,
        # a file name may hold bytes that are not UTF-8: they stay as they are
        partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        writer = csv.DictWriter(file, [*COLUMNS, *classes])
        writer.writeheader()
        writer.writerows(_cells(row) for row in rows)


def write_json_lines(path: Path, rows: Sequence[TriageRow]) -> None:
    """Writes each row as one line of JSON, with all of its prediction."""
    with (
        whole_file(path, private=True) as partial,
        partial.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(json.dumps(_record(row), allow_nan=False) + "\n" for row in rows)


def _cells(row: TriageRow) -> dict[str, object]:
    cells: dict[str, object] = {"file": _no_formula(row.path)}
    if row.problem is not None:
        cells |= {"problem": row.problem.code, "problem_detail": row.problem.detail}
    if row.decision is not None:
        cells |= {
            "disposition": row.decision.disposition.value,
            "reasons": BETWEEN.join(row.decision.reasons),
            "policy_version": row.decision.policy_version,
            "policy_hash": row.decision.policy_hash,
        }
    if row.quality is not None:
        cells |= {f"quality_{name}": value for name, value in row.quality.model_dump().items()}
    if row.prediction is not None:
        cells |= {name: getattr(row.prediction, name) for name in OF_PREDICTION}
        error = row.prediction.standard_error
        cells |= {f"{name}_standard_error": getattr(error, name, None) for name in OF_ERROR}
        cells["warnings"] = BETWEEN.join(row.prediction.warnings)
        cells |= {f"p_{name}": value for name, value in row.prediction.probabilities.items()}
    return cells


def _no_formula(path: Path) -> str:
    """The path, from ./ on where a spreadsheet would take its first sign for a formula's."""
    name = str(path)
    return f"./{name}" if name.startswith(FORMULA) else name


def _record(row: TriageRow) -> dict[str, Any]:
    decision = {} if row.decision is None else asdict(row.decision)
    return {
        "file": str(row.path),
        "disposition": decision.get("disposition"),
        "reasons": decision.get("reasons", ()),
        "problem": None if row.problem is None else asdict(row.problem),
        "prediction": None if row.prediction is None else row.prediction.model_dump(mode="json"),
        "quality": None if row.quality is None else row.quality.model_dump(),
        "policy_version": decision.get("policy_version"),
        "policy_hash": decision.get("policy_hash"),
    }
