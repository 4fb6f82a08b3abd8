"""Triage rows as CSV and as JSON Lines, one row per file."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.triage import ImageQuality
from eulerlora_client.errors import RowsError
from eulerlora_client.output_files import atomic_text_file
from eulerlora_client.printable import csv_path, csv_text
from eulerlora_client.triage.run import RowProblem, TriageRow

PREDICTION_COLUMNS = (
    "label", "msp", "entropy", "expected_entropy", "mutual_information", "ood", "ood_threshold",
    "unfamiliar", "mode", "samples", "trajectories", "seed", "model", "revision", "request_id",
)  # fmt: skip
OOD_SCORES = ("energy", "feature_distance")
"""Columns of scores beside the MSP; the threshold of each follows it."""

STANDARD_ERRORS = ("msp", "entropy")
QUALITY_FIELDS = ("width", "height", "brightness", "dark_share", "bright_share", "sharpness")
COLUMNS = (
    "file", "disposition", "reasons", "problem", "problem_detail", *PREDICTION_COLUMNS,
    *(column for name in OOD_SCORES for column in (name, f"{name}_threshold")),
    *(f"{name}_standard_error" for name in STANDARD_ERRORS),
    "prediction_set", "prediction_set_coverage", "warnings",
    *(f"quality_{name}" for name in QUALITY_FIELDS), "policy_version", "policy_hash",
)  # fmt: skip
"""Columns of the CSV; the probabilities of the classes follow as p_CLASS."""

LIST_SEPARATOR = "; "


def write_csv(path: Path, rows: Sequence[TriageRow]) -> None:
    """Writes the rows as CSV (RFC 4180, UTF-8); missing values are empty.

    On a terminal, the names of files are escaped like all other text.
    """
    classes = dict.fromkeys(
        f"p_{name}" for row in rows if row.prediction for name in row.prediction.classes
    )
    names = [*COLUMNS, *classes]
    # surrogateescape: file names that are not UTF-8 are written byte for byte
    with atomic_text_file(path, newline="", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(map(csv_text, names))
        for row in rows:
            cells = _cells(row)
            name = csv_text(str(row.path)) if file.isatty() else csv_path(str(row.path))
            values = (cells.get(column) for column in names[1:])
            texts = (csv_text(cell) if isinstance(cell, str) else cell for cell in values)
            writer.writerow([name, *texts])


def write_json_lines(path: Path, rows: Sequence[TriageRow]) -> None:
    """Writes each row as one line of JSON with the complete prediction."""
    with atomic_text_file(path) as file:
        file.writelines(json.dumps(_record(row), allow_nan=False) + "\n" for row in rows)


def read_json_lines(path: Path) -> list[TriageRow]:
    """Returns the rows of a file of `write_json_lines`, without their decisions.

    Raises RowsError with the path and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        raise RowsError(f"{path}: expected a readable file of triage rows") from error
    return [_row(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _row(line: str, place: str) -> TriageRow:
    try:
        record = json.loads(line)
        prediction, quality, problem = (
            record[name] for name in ("prediction", "quality", "problem")
        )
        return TriageRow(
            path=Path(record["file"]),
            prediction=prediction and Prediction.model_validate(prediction),
            quality=quality and ImageQuality.model_validate(quality),
            problem=problem and RowProblem(problem["code"], problem["detail"]),
        )
    except (ValueError, KeyError, TypeError) as error:  # ValidationError is a ValueError
        raise RowsError(f"{place}: expected a row of `eulerlora triage --json-lines`") from error


def _cells(row: TriageRow) -> dict[str, object]:
    """Returns the cells of a row by column, without its file."""
    cells: dict[str, object] = {}
    if row.problem is not None:
        cells |= {"problem": row.problem.code, "problem_detail": row.problem.detail}
    if row.decision is not None:
        cells |= {
            "disposition": row.decision.disposition.value,
            "reasons": LIST_SEPARATOR.join(row.decision.reasons),
            "policy_version": row.decision.policy_version,
            "policy_hash": row.decision.policy_hash,
        }
    if row.quality is not None:
        cells |= {f"quality_{name}": value for name, value in row.quality}
    if row.prediction is not None:
        cells |= _prediction_cells(row.prediction)
    return cells


def _prediction_cells(prediction: Prediction) -> dict[str, object]:
    cells: dict[str, object] = {name: getattr(prediction, name) for name in PREDICTION_COLUMNS}
    for name in OOD_SCORES:
        score = getattr(prediction.ood_scores, name, None)
        cells[name] = getattr(score, "value", None)
        cells[f"{name}_threshold"] = getattr(score, "threshold", None)
    for name in STANDARD_ERRORS:
        cells[f"{name}_standard_error"] = getattr(prediction.standard_error, name, None)
    if prediction.prediction_set is not None:
        cells["prediction_set"] = LIST_SEPARATOR.join(prediction.prediction_set.labels)
        cells["prediction_set_coverage"] = prediction.prediction_set.coverage
    cells["warnings"] = LIST_SEPARATOR.join(warning.message for warning in prediction.warnings)
    cells |= {f"p_{name}": value for name, value in prediction.probabilities.items()}
    return cells


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
