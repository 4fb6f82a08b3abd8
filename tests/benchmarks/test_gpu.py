from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.comparisons import GPU
from benchmarks.gpu import main
from benchmarks.inference.comparisons import correctness
from benchmarks.measurement.results_file import GpuRun

SMALL = ["--device", "cpu", "--small", "--out"]


def test_the_whole_run_leaves_one_json_file_with_all_results(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    done = CliRunner().invoke(main, [*SMALL, str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    run = GpuRun.model_validate_json(file.read_text())
    assert len(run.results) == len({each.name for each in run.results}) == len(GPU)
    assert all(each.passed for each in run.checks)
    assert all(each.ratio > 0 for each in run.results)
    assert [each.unit for each in run.results].count("bytes") == 2
    assert run.seconds > 0


def test_nothing_is_timed_where_a_way_to_the_logits_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = correctness.engine
    monkeypatch.setattr(correctness, "engine", lambda *given: scaled(right(*given)))
    file = tmp_path / "run.json"
    done = CliRunner().invoke(main, [*SMALL, str(file)])
    assert done.exit_code == 1
    assert "float32: probabilities differ by" in done.output
    assert not file.exists()


def scaled(engine):
    return lambda *asked: 3 * engine(*asked)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_program_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--out", str(tmp_path / "run.json")])
    assert done.exit_code == 1
    assert "'cuda' cannot be used" in done.output
