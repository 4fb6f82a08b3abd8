"""The tables after a table of results: costs, mean logits and OOD sets."""

import json
from pathlib import Path

from tests.conftest import TINY_BACKBONE
from tests.training.synthetic_runs import finish
from training.adaptation.train import REPORT
from training.evaluation.report_schema import JSON
from training.reproduction.runs import TableRun, runs_of
from training.reproduction.table import read_table
from training.results.further_tables import further_tables

TABLE = read_table("ham10000-methods")
RESULT = {"steps": 10, "images_per_second": 8.0, "seconds": 7200.0}
SETS = {"svhn": "far", "monkeypox": "near"}


def finished(folder: Path, variant: str, seeds: tuple[int, ...] = (0,)) -> list[TableRun]:
    """Returns runs with reports of two OOD sets; the AUROC is 0.7, 0.9 for feature distance."""
    runs = runs_of(TABLE, seeds, [], folder, [variant])
    for run in runs:
        of_logits = {f"{m}_mean_logits": 0.25 for m in ("accuracy", "ece", "nll", "brier")}
        finish(run, backbone=TINY_BACKBONE, published=None, training=RESULT)
        path = run.out / REPORT / JSON
        report = json.loads(path.read_text())
        report["ood_sets"] = {name: {"group": group} for name, group in SETS.items()}
        for mode in report["modes"]:
            mode["trajectories"] = run.recipe.adapters.adapters * mode["samples"]
            mode["metrics"] |= {name: {"value": value} for name, value in of_logits.items()}
            mode["ood"] = {
                name: {
                    "scores": {
                        "msp": {"metrics": {"auroc": {"value": 0.7}}},
                        "feature_distance": {"metrics": {"auroc": {"value": 0.9}}},
                    }
                }
                for name in SETS
            }
        path.write_text(json.dumps(report))
    return runs


def tables(text: str) -> dict[str, list[dict[str, str]]]:
    """Returns the rows of every table by its title."""
    found = {}
    for section in text.split("### ")[1:]:
        title, *rest = section.splitlines()
        cells = [[c.strip() for c in r.strip("|").split("|")] for r in rest if r.startswith("|")]
        found[title] = [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
    return found


def test_the_cost_of_every_finished_row_is_shown(tmp_path: Path) -> None:
    runs = finished(tmp_path, "eulerlora-2") + finished(tmp_path, "single")
    rows = tables(further_tables(TABLE, runs))["Cost"]
    assert [(row["method"], row["mode"], row["rows per answer"]) for row in rows] == [
        ("Single network", "det", "1"),
        ("EulerLoRA, 2 adapters", "det", "2"),
        ("EulerLoRA, 2 adapters", "stoch, 4 samples", "8"),
    ]
    assert (rows[0]["steps"], rows[0]["hours"], rows[0]["trained rows"]) == ("10", "2.00", "57,600")
    assert rows[1]["trained rows"] == "115,200"
    assert float(rows[2]["GFLOP per answer"]) >= float(rows[1]["GFLOP per answer"])


def test_mean_logits_are_shown_for_methods_with_several_answers(tmp_path: Path) -> None:
    runs = finished(tmp_path, "eulerlora-2") + finished(tmp_path, "single")
    rows = tables(further_tables(TABLE, runs))["Mean logits"]
    assert {row["method"] for row in rows} == {"EulerLoRA, 2 adapters"}
    assert (rows[0]["accuracy (%)"], rows[0]["NLL (nats)"]) == ("25.00", "0.250")
    only_single = further_tables(TABLE, finished(tmp_path / "single", "single"))
    assert "Mean logits" not in tables(only_single)


def test_every_ood_set_has_a_column_for_each_score(tmp_path: Path) -> None:
    runs = finished(tmp_path, "single", (0, 42))
    (row,) = tables(further_tables(TABLE, runs))["Out of distribution: AUROC (%)"]
    assert row["svhn (far), MSP"] == "70.00 ± 0.00"
    assert row["monkeypox (near), feature distance"] == "90.00 ± 0.00"
    without = TABLE.model_copy(update={"all_ood": False})
    assert "Out of distribution: AUROC (%)" not in tables(further_tables(without, runs))


def test_no_finished_run_gives_no_further_table(tmp_path: Path) -> None:
    assert further_tables(TABLE, runs_of(TABLE, [0], [], tmp_path)) == ""
