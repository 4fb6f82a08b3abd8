"""The program `benchmarks.cpu`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import cpu
from benchmarks.measurement.machine import Machine
from benchmarks.measurement.result import Result


def test_results_are_printed_and_appended_as_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "new" / "lines.jsonl"
    arguments = ["--small", "--only", "naive-float32", "--only", "mixed-modes", "--out", str(file)]
    for _ in range(2):
        completed = CliRunner().invoke(cpu.main, arguments, catch_exceptions=False)
        assert completed.exit_code == 0
    results = [Result.model_validate_json(line) for line in file.read_text().splitlines()]
    assert [result.name.split(",")[0] for result in results] == [
        "4 trajectories",
        "compact backbone",
    ] * 2
    printed = [json.loads(line) for line in completed.stdout.splitlines()]
    assert printed == [json.loads(line) for line in file.read_text().splitlines()[2:]]


def test_only_full_runs_are_recorded_by_the_name_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "FOLDER", tmp_path)
    monkeypatch.setattr(
        cpu, "this_machine", lambda _device: Machine(cpu="A CPU", threads=2, gpu=None)
    )
    CliRunner().invoke(cpu.main, ["--small", "--only", "vmap"], catch_exceptions=False)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(cpu, "FULL", cpu.SMALL)
    CliRunner().invoke(cpu.main, ["--only", "vmap"], catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a-cpu-2-threads.jsonl"]
