"""The tables of `benchmarks.report`."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import report
from benchmarks.measurement.machine import Machine
from benchmarks.measurement.result import Result, Side, Spread, Target
from benchmarks.measurement.results_file import GpuRun, append, read


def result(
    name: str, ratio: float, day: int = 1, gpu: str | None = None, work: float | None = None
) -> Result:
    return Result(
        name=name,
        unit="seconds",
        ours=Side(what="our engine", spread=Spread.of([0.02, 0.03, 0.04]), work=work),
        reference=Side(what="a baseline", spread=Spread.of([0.1]), work=work),
        ratio=ratio,
        ratio_spread=Spread.of([0.2, 0.3, 0.4]),
        target=Target(bound="at most", value=0.5),
        sizes={},
        machine=Machine(cpu="A CPU", threads=2, gpu=gpu),
        versions={"torch": "2.0"},
        commit="0123456789abcdef",
        date=datetime(2026, 1, day, tzinfo=UTC),
    )


def test_a_row_has_name_target_ratio_both_medians_and_spread() -> None:
    (row,) = [
        line for line in report.markdown([result("a / b", 0.3)]).splitlines() if "a / b" in line
    ]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "a / b",
        "≤ 0.50",
        "**0.30** ✓",
        "30 ms (our engine)",
        "100 ms (a baseline)",
        "0.20 [0.25, 0.30, 0.35] 0.40 (3)",
    ]


def test_a_missed_target_is_marked_and_rates_are_shown() -> None:
    table = report.markdown([result("a / b", 0.51, work=3e9)])
    assert "**0.51** ✗" in table
    assert "30 ms, 100 GFLOP/s (our engine)" in table


def test_every_machine_has_a_table_of_its_newest_results() -> None:
    table = report.markdown(
        [result("a", 0.1, day=2), result("a", 0.2, day=1), result("a", 0.3, gpu="A GPU")]
    )
    assert [line for line in table.splitlines() if line.startswith("## ")] == [
        "## A CPU, 2 threads",
        "## A GPU",
    ]
    assert "**0.10**" in table
    assert "**0.20**" not in table
    assert "2026-01-02, commit 0123456789ab, torch 2.0" in table


def test_lines_and_gpu_runs_give_equal_results(tmp_path: Path) -> None:
    lines, run = tmp_path / "lines.jsonl", tmp_path / "run.json"
    for ratio in (0.1, 0.2):
        append(lines, result("a", ratio))
    results = read(lines)
    run.write_text(GpuRun(seconds=1.0, checks=[], results=results).model_dump_json(indent=1))
    assert read(run) == results == [result("a", 0.1), result("a", 0.2)]


def test_the_command_prints_the_given_files_or_reports_that_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "lines.jsonl", result("a", 0.1))
    completed = CliRunner().invoke(report.main, [str(tmp_path / "lines.jsonl")])
    assert completed.output == report.markdown([result("a", 0.1)])
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    assert CliRunner().invoke(report.main, []).output == completed.output
    monkeypatch.setattr(report, "FOLDER", tmp_path / "empty")
    missing = CliRunner().invoke(report.main, [])
    assert missing.exit_code == 1
    assert "python -m benchmarks.cpu" in missing.output
