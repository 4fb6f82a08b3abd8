"""The output files of a triage run: CSV, JSON Lines and the HTML report, one row per file."""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eulerlora_clinic.language import ENGLISH, Language
from eulerlora_clinic.monitoring import PROBABILITY_COLUMN
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.report.ranking import TriageRow, with_lesions
from eulerlora_contract.answers import Prediction, TriageResult, shown_fields
from eulerlora_contract.errors import OutputPathError
from eulerlora_contract.output_files import check_writable, open_output
from eulerlora_contract.printable import printable, write_csv_rows
from eulerlora_contract.tables import read_rows


@dataclass(frozen=True)
class Outputs:
    """The paths of the output files; None for an output that was not requested.

    Attributes:
        language: Of the report, and of the table on the terminal; the others have codes.
    """

    csv: Path | None
    json_lines: Path | None
    report: Path | None
    language: Language = ENGLISH

    def check(self, inputs: Sequence[Path]) -> None:
        """Checks the paths before a run.

        Args:
            inputs: The files that the run reads.

        Raises:
            OutputPathError: For a path that cannot be written or that would be overwritten.
        """
        taken = {os.path.realpath(path): f"{path} is an input file" for path in inputs}
        for path in (self.csv, self.json_lines, self.report):
            if path is None:
                continue
            check_writable(path)
            real = os.path.realpath(path)  # unlike Path.resolve, accepts broken links
            if real in taken:
                raise OutputPathError(f"{path}: {taken[real]}")
            taken[real] = "another output has the same path"
        if self.csv is not None and self.csv.is_file():
            _check_own_columns(self.csv)

    def write(self, rows: Sequence[TriageRow], policy: Policy) -> None:
        """Writes the requested files; a file that fails does not prevent the others.

        Raises:
            StorageError: The last one, after all files were tried.
            OutputPathError: Likewise.
            OSError: Likewise.
        """
        with ExitStack() as writers:  # calls all of them in reverse order, also after an error
            if self.report is not None:
                from eulerlora_clinic.report.html import write_html_report  # noqa: PLC0415 - slow to import

                writers.callback(
                    write_html_report, self.report, rows, policy, datetime.now(UTC), self.language
                )
            if self.json_lines is not None:
                writers.callback(_write_json_lines, self.json_lines, rows)
            if self.csv is not None:
                writers.callback(_write_csv, self.csv, rows)


def _check_own_columns(path: Path) -> None:
    """Refuses to replace a table to which somebody has added columns, such as `confirmed`."""
    try:
        columns = read_rows(path).fieldnames or ()
    except csv.Error:
        columns = ()
    added = [
        name
        for name in columns
        if name and name not in _COLUMNS and not name.startswith(PROBABILITY_COLUMN)
    ]
    if added and "disposition" in columns:
        raise OutputPathError(
            f"{path}: has the column {printable(added[0])}, which would be lost; name another file"
        )


_PREDICTION_COLUMNS = (
    "msp", "entropy", "expected_entropy", "mutual_information", "ood", "ood_threshold",
    "unfamiliar", "mode", "samples", "sampler", "views", "precision", "runtime", "rows",
    "trajectories", "seed", "model", "revision", "request_id",
)  # fmt: skip

_OOD_SCORES = ("energy", "feature_distance")
"""Columns of scores beside the MSP; the threshold of each follows it."""

_QUALITY_FIELDS = ("width", "height", "brightness", "dark_share", "bright_share", "sharpness")

_COLUMNS = (
    "file", "lesion", "lesion_disposition", "disposition", "reasons", "problem", "problem_detail",
    "target_probability", "routine_threshold", "urgent_threshold", "target_classes", "label",
    "label_name",
    *_PREDICTION_COLUMNS,
    *(column for name in _OOD_SCORES for column in (name, f"{name}_threshold")),
    "prediction_set", "prediction_set_coverage", "warnings",
    *(f"quality_{name}" for name in _QUALITY_FIELDS), "policy_version", "policy_hash",
    "policy_established", "policy_notice", "policy_measured_on", "policy_critical",
    "policy_sensitivity", "policy_specificity", "policy_predictive_value", "class_names",
)  # fmt: skip
"""Columns of the CSV; the probabilities of the classes follow."""

_BATCH_FIELDS = {"type", "index", "item_id"}


def _write_csv(path: Path, rows: Sequence[TriageRow]) -> None:
    """Writes the rows as CSV (RFC 4180, UTF-8 with a byte order mark); missing values are empty.

    On a terminal, the names of files are escaped like all other text.
    """
    classes = dict.fromkeys(
        f"{PROBABILITY_COLUMN}{name}"
        for row in rows
        if row.result
        for name in row.result.prediction.classes
    )
    names = [*_COLUMNS, *classes]
    cells = ((row.path, _lesion_cells(row) | _cells(row)) for row in with_lesions(rows))
    with open_output(path, private=True) as file:
        lines = ([path, *(values.get(name) for name in names[1:])] for path, values in cells)
        write_csv_rows(file, names, lines)


def _write_json_lines(path: Path, rows: Sequence[TriageRow]) -> None:
    """A line holds the file, its lesion, and the answer of `/triage` or a problem."""
    with open_output(path, private=True) as file:
        file.writelines(
            json.dumps(_record(row), allow_nan=False) + "\n" for row in with_lesions(rows)
        )


def _lesion_cells(row: TriageRow) -> dict[str, object]:
    return {"lesion": row.lesion, "lesion_disposition": row.lesion_disposition}


def _cells(row: TriageRow) -> dict[str, object]:
    if row.problem is not None:
        return {"problem": row.problem.code, "problem_detail": row.problem.detail}
    if row.result is None:
        return {}
    result, shown = row.result, row.result.shown
    target = result.target
    return {
        "disposition": result.disposition.value,
        "reasons": _joined(reason.code for reason in shown.reasons),
        "target_probability": shown.target,
        "routine_threshold": target.routine,
        "urgent_threshold": target.urgent,
        "target_classes": _joined(map(result.name_of, target.classes)),
        "label_name": shown.figures and result.label_name,
        "class_names": _joined(f"{code}: {name}" for code, name in result.class_names.items()),
        **{f"quality_{name}": value for name, value in result.quality},
        **_policy_cells(result),
        **_prediction_cells(result.prediction),
    }


def _policy_cells(result: TriageResult) -> dict[str, object]:
    policy = result.policy
    critical = dict.fromkeys(measured.critical for measured in policy.measured)
    return {
        "policy_version": policy.version,
        "policy_hash": policy.hash,
        "policy_established": policy.established,
        "policy_notice": policy.notice,
        "policy_measured_on": _joined(f"{one.data} ({one.unit}s)" for one in policy.measured),
        "policy_critical": _joined(critical),
        "policy_sensitivity": _joined(f"{one.sensitivity:g}" for one in policy.measured),
        "policy_specificity": _joined(f"{one.specificity:g}" for one in policy.measured),
        "policy_predictive_value": _joined(
            "none" if one.predictive_value is None else f"{one.predictive_value:g}"
            for one in policy.measured
        ),
    }


def _prediction_cells(prediction: Prediction) -> dict[str, object]:
    shown = shown_fields(dict(prediction))
    cells = {name: shown.get(name) for name in ("label", *_PREDICTION_COLUMNS)}
    for name in _OOD_SCORES:
        score = getattr(prediction.ood_scores, name, None)
        cells[name] = getattr(score, "value", None)
        cells[f"{name}_threshold"] = getattr(score, "threshold", None)
    if (included := shown.get("prediction_set")) is not None:
        cells["prediction_set"] = _joined(included.labels)
        cells["prediction_set_coverage"] = included.coverage
    cells["warnings"] = _joined(warning.message for warning in prediction.warnings)
    probabilities = shown.get("probabilities", {})
    return cells | {f"{PROBABILITY_COLUMN}{name}": value for name, value in probabilities.items()}


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(texts)


def _record(row: TriageRow) -> dict[str, Any]:
    """A row without a result has the same keys."""
    empty = dict.fromkeys(name for name in TriageResult.model_fields if name not in _BATCH_FIELDS)
    result = row.result and row.result.model_dump(mode="json", exclude=_BATCH_FIELDS)
    problem = None if row.problem is None else asdict(row.problem)
    return {
        "file": str(row.path), **_lesion_cells(row), "problem": problem, **(result or empty)
    }  # fmt: skip
