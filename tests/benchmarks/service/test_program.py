"""`python -m benchmarks.service --small`: every measurement on a real server."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.measurement.results_file import read
from benchmarks.service.program import MEASUREMENTS, main

ROWS = {
    "throughput": 4, "lone-request": 2, "photograph": 1, "plain-pass": 2, "litserve": 2,
    "overload": 4, "half-open": 4, "mixed-input": 3, "sigterm": 2,
    "attackers": 18, "waiting": 2, "start": 4,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("measurement", MEASUREMENTS)
def test_results_are_printed_and_recorded(measurement, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("EULERLORA_DATA", raising=False)
    file = tmp_path / "lines.jsonl"
    arguments = ["--small", "--only", measurement, "--mixed-seconds", "5", "--out", str(file)]
    completed = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert completed.exit_code == 0
    names = [json.loads(line)["name"] for line in completed.stdout.splitlines()]
    assert [record.name for record in read(file)] == names
    assert len(set(names)) == ROWS[measurement]
