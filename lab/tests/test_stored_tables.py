"""The tables beside the stored results are those of the program."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from eulerlora_lab import stored_tables
from tests.conftest import DET

RESULTS = Path(__file__).parents[1] / "results"


def test_each_stored_table_is_that_of_its_results(
    tmp_path: Path, program: Callable[..., str]
) -> None:
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    program(stored_tables.main, tmp_path)
    tables = list(tmp_path.glob("*.csv"))
    assert len(tables) == 2 * 7
    for path in tables:
        assert path.read_text() == (RESULTS / path.name).read_text(), path.name


def test_a_row_has_mean_and_deviation_over_seeds_and_a_test_its_endpoint(
    tmp_path: Path, program: Callable[..., str]
) -> None:
    test = {"metric": "nll", "arm": "a", "minus": "b", "difference": -0.1, "by_seed": [0]}
    metrics = {"nll": [1.0, 2.0], "x": [None, 1]}
    row = {"variant": "a", "options": asdict(DET), "metrics_by_seed": metrics}
    stored = {"rows": [row], "primary": test, "secondary": [test]}
    (tmp_path / "t.json").write_text(json.dumps(stored))
    program(stored_tables.main, tmp_path)
    options = {name: str(value) for name, value in asdict(DET).items()}
    expected = {"variant": "a", **options, "nll mean": "1.5", "nll sd": "0.70711"}
    with (tmp_path / "t.csv").open() as file:
        assert list(csv.DictReader(file)) == [expected]
    with (tmp_path / "t-differences.csv").open() as file:
        differences = list(csv.DictReader(file))
    assert [line["endpoint"] for line in differences] == ["primary", "secondary"]
    assert differences[0]["difference"] == "-0.1"
