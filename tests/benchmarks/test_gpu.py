"""The program `benchmarks.gpu`, on a CPU."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import comparisons as all_comparisons
from benchmarks.comparisons import GPU
from benchmarks.gpu import main
from benchmarks.inference import correctness
from benchmarks.measurement.reading import Reading
from benchmarks.measurement.result import Result
from benchmarks.measurement.results_file import GpuRun
from benchmarks.training import comparisons

SMALL = ["--device", "cpu", "--small", "--out"]


def test_a_run_writes_one_json_file_with_all_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tests/benchmarks/training/test_peak_memory.py measures memory, in separate processes.
    monkeypatch.setattr(comparisons, "peak_bytes", lambda *_: 1)
    monkeypatch.setattr(all_comparisons, "device_rate", lambda *_: [])  # as test_program.py does
    file = tmp_path / "run.json"
    completed = CliRunner().invoke(main, [*SMALL, str(file)], catch_exceptions=False)
    assert completed.exit_code == 0
    run = GpuRun.model_validate_json(file.read_text())
    assert len(run.results) == len({result.name for result in run.results})
    assert all(check.passed for check in run.checks)
    ratios = [result for result in run.results if isinstance(result, Result)]
    assert len(ratios) == len(GPU) - len({"graphs", "row-rates", "pass-memory", "service"})
    assert all(result.ratio > 0 for result in ratios)
    readings = {result.name: result for result in run.results if isinstance(result, Reading)}
    graphs = readings["graphs, bfloat16, compiled"]
    assert graphs.value == len(graphs.sizes["row_counts"])
    units = [reading.unit for reading in readings.values()]
    assert units.count("rows/s") == graphs.value
    assert min(reading.value for reading in readings.values()) > 0
    assert run.seconds > 0


def test_nothing_is_timed_if_a_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = correctness.build_engine
    monkeypatch.setattr(
        correctness, "build_engine", lambda *arguments: scaled(original(*arguments))
    )
    file = tmp_path / "run.json"
    completed = CliRunner().invoke(main, [*SMALL, str(file)])
    assert completed.exit_code == 1
    assert "float32: expected a difference of at most 0.001, got" in completed.output
    assert not file.exists()


def scaled(engine):
    return lambda *inputs: 3 * engine(*inputs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error(tmp_path: Path) -> None:
    completed = CliRunner().invoke(main, ["--out", str(tmp_path / "run.json")])
    assert completed.exit_code == 1
    assert "device 'cuda' is not available" in completed.output
