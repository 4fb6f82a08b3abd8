"""CSV, JSON Lines and the paths of output files."""

import csv
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clinic.tests.runs import decided, mel_policy
from clinic.tests.triage_rows import UNFAMILIAR, failed
from eulerlora_clinic.policy.results import decided as decided_again
from eulerlora_clinic.report.exports import Outputs
from eulerlora_clinic.report.ranking import TriageRow
from eulerlora_contract.answers import Disposition, Prediction, Reason
from eulerlora_contract.errors import OutputPathError
from tests.conftest import STOCH

ROWS = [
    decided("a.png", Disposition.URGENT, 0.4, Reason.TARGET_CLASSES, Reason.HIGH_ENTROPY),
    failed(Path('b, "c"\n.png')),
    decided("d.png", Disposition.ROUTINE),
]


def with_prediction(row: TriageRow, prediction: Prediction) -> TriageRow:
    assert row.result is not None
    return replace(row, result=row.result.model_copy(update={"prediction": prediction}))


def written(folder: Path, rows: Sequence[TriageRow]) -> list[dict[str, str]]:
    Outputs(folder / "rows.csv", None, None).write(rows, mel_policy())
    with (folder / "rows.csv").open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def documented_columns() -> set[str]:
    document = Path(__file__).parents[2] / "docs" / "reports.md"
    table = document.read_text().partition("| columns |")[2].partition("\n\n")[0]
    names = {
        name for row in table.splitlines() for name in re.findall("`(.+?)`", row.split("|")[1])
    }
    scores = {f"{name}_threshold" for name in ("energy", "feature_distance")}
    return names - {"_threshold", "p_CLASS"} | scores


def test_csv_has_a_line_per_row_and_empty_cells_for_missing_values(tmp_path: Path) -> None:
    urgent, broken, routine = written(tmp_path, ROWS)
    assert [*urgent][-2:] == ["p_mel", "p_nv"]
    assert {*urgent} == documented_columns() | {"p_mel", "p_nv"}
    assert urgent["file"] == "a.png"
    assert urgent["reasons"] == "target_classes; high_entropy"
    assert (urgent["disposition"], float(urgent["p_mel"])) == ("urgent", 0.4)
    assert (urgent["policy_version"], urgent["policy_hash"]) == ("3", "sha256:1")
    assert (urgent["ood"], urgent["warnings"], urgent["quality_width"]) == (
        "False",
        "one; two",
        "600",
    )
    assert {name: value for name, value in broken.items() if value} == {
        "file": 'b, "c"\n.png',
        "problem": "unusable_image",
        "problem_detail": "it is broken",
    }
    assert (routine["disposition"], routine["reasons"], routine["problem"]) == ("routine", "", "")


def test_csv_has_the_values_that_decide(tmp_path: Path) -> None:
    policy = mel_policy()
    row = ROWS[0]
    assert row.result is not None
    settings = {
        "revision": row.result.prediction.revision,
        "options": replace(STOCH, samples=2),
    }
    evidence = policy.evidence[0].model_copy(update=settings)
    fitted = decided_again(row.result, policy.model_copy(update={"evidence": (evidence,)}))
    measured, unknown = written(tmp_path, [replace(row, result=fitted), row])
    for cells in (measured, unknown):
        assert float(cells["target_probability"]) == 0.4
        assert float(cells["routine_threshold"]) == policy.target.routine
        assert float(cells["urgent_threshold"]) == policy.target.urgent
        assert (cells["label"], cells["label_name"]) == ("nv", "melanocytic nevus")
        assert cells["target_classes"] == "melanoma"
        assert cells["class_names"] == "mel: melanoma; nv: melanocytic nevus (mole)"
    parts = evidence.measured
    assert measured["policy_critical"] == "melanoma"
    assert measured["policy_measured_on"] == "; ".join(f"{one.data} ({one.unit}s)" for one in parts)
    for name, values in (
        ("sensitivity", [one.critical.sensitivity for one in parts]),
        ("specificity", [one.others.specificity for one in parts]),
        ("predictive_value", [one.urgent and one.urgent.predictive_value for one in parts]),
    ):
        assert list(map(float, measured[f"policy_{name}"].split("; "))) == values
        assert unknown[f"policy_{name}"] == ""
    assert measured["policy_notice"] == ""
    assert "not set for this model" in unknown["policy_notice"]


def test_every_export_has_the_lesion_and_its_disposition(tmp_path: Path) -> None:
    urgent, broken, routine = ROWS
    rows = [
        replace(urgent, lesion="L1"),
        replace(broken, lesion="L2"),
        replace(routine, lesion="L1"),
    ]
    Outputs(None, tmp_path / "rows.jsonl", None).write(rows, mel_policy())
    lines = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    for cells, line in zip(written(tmp_path, rows), lines, strict=True):
        assert (cells["lesion"], cells["lesion_disposition"] or None) == (
            line["lesion"], line["lesion_disposition"]
        )  # fmt: skip
        assert cells["lesion_disposition"] == {"L1": "urgent", "L2": ""}[cells["lesion"]]
    assert written(tmp_path, ROWS)[0]["lesion"] == ""


def test_json_lines_have_the_complete_prediction(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Outputs(None, path, None).write(ROWS, mel_policy())
    urgent, broken, routine = map(json.loads, path.read_text().splitlines())
    assert [reason["code"] for reason in urgent["reasons"]] == ["target_classes", "high_entropy"]
    assert urgent["prediction"]["trajectory_probabilities"] == [[0.6, 0.4], [0.1, 0.9]]
    assert urgent["quality"]["sharpness"] == 50
    assert (urgent["disposition"], urgent["title"]) == ("urgent", "Urgent")
    assert broken["problem"] == {"code": "unusable_image", "detail": "it is broken"}
    assert (broken["prediction"], broken["disposition"]) == (None, None)
    assert (routine["disposition"], routine["problem"]) == ("routine", None)
    assert set(urgent) == set(broken)


def test_csv_has_the_scores_and_the_prediction_set(tmp_path: Path) -> None:
    row = decided("a.png", Disposition.UNFAMILIAR, 0.4, Reason.UNFAMILIAR)
    assert row.result is not None
    sets = {"labels": ["mel", "nv"], "coverage": 0.9, "unit": "lesion", "calibrated_on": "here"}
    changed = row.result.prediction.model_dump() | UNFAMILIAR | {"prediction_set": sets}
    familiar = changed | {"unfamiliar": False}
    rows = [with_prediction(row, Prediction.model_validate(one)) for one in (changed, familiar)]
    unfamiliar, known, urgent = written(tmp_path, [*rows, ROWS[0]])
    assert (unfamiliar["disposition"], unfamiliar["unfamiliar"]) == ("unfamiliar", "True")
    assert (unfamiliar["feature_distance"], unfamiliar["feature_distance_threshold"]) == (
        "36.0", "24.0"
    )  # fmt: skip
    assert (unfamiliar["energy"], unfamiliar["energy_threshold"]) == ("-1.5", "-2.5")
    assert (known["prediction_set"], known["prediction_set_coverage"]) == ("mel; nv", "0.9")
    for name in ("unfamiliar", "feature_distance", "energy_threshold", "prediction_set"):
        assert urgent[name] == ""


def test_csv_has_no_figure_of_an_unfamiliar_image_and_json_lines_have_all(tmp_path: Path) -> None:
    reasons = (Reason.TOO_DARK, Reason.UNFAMILIAR, Reason.TARGET_CLASSES, Reason.HIGH_ENTROPY)
    known = decided("a.png", Disposition.URGENT, 0.4, *reasons)
    assert known.result is not None
    changed = known.result.prediction.model_copy(update={"unfamiliar": True})
    shown, hidden = written(tmp_path, [known, with_prediction(known, changed)])
    assert {name for name in shown if shown[name] and not hidden[name]} == {
        "target_probability", "label", "label_name", "msp", "entropy", "expected_entropy",
        "mutual_information", "p_mel", "p_nv",
    }  # fmt: skip
    assert hidden["reasons"] == "too_dark; unfamiliar; target_classes"
    Outputs(None, tmp_path / "rows.jsonl", None).write(
        [with_prediction(known, changed)], mel_policy()
    )
    record = json.loads((tmp_path / "rows.jsonl").read_text())
    assert record["prediction"]["probabilities"] == changed.probabilities
    assert [reason["code"] for reason in record["reasons"]] == list(reasons)


def test_every_output_is_valid_utf_8_whatever_a_file_is_called(tmp_path: Path) -> None:
    for name in (os.fsdecode(b"caf\xe9.png"), "\ud800.png", "ü\n=1.png"):
        rows = [failed(Path(name))]
        outputs = Outputs(tmp_path / "rows.csv", tmp_path / "rows.jsonl", tmp_path / "report.html")
        outputs.write(rows, mel_policy())
        for path in tmp_path.iterdir():
            path.read_bytes().decode("utf-8")
        (row,) = written(tmp_path, rows)
        assert row["file"] == name.encode("utf-8", "backslashreplace").decode()
        assert json.loads((tmp_path / "rows.jsonl").read_text())["file"] == name


def test_a_file_that_fails_does_not_prevent_the_others(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "gone" / "rows.csv", tmp_path / "rows.jsonl", None)
    with pytest.raises(OutputPathError, match=r"rows\.csv"):
        outputs.write([failed(Path("a.png"))], mel_policy())
    assert outputs.json_lines is not None
    assert outputs.json_lines.read_text().count("\n") == 1


def test_a_link_to_an_input_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.png").touch()
    (tmp_path / "rows.csv").symlink_to("image.png")
    with pytest.raises(OutputPathError, match="input file"):
        Outputs(tmp_path / "rows.csv", None, None).check([tmp_path / "image.png"])
