"""Usage errors of `eulerlora evaluate`: one line each, and nothing is written."""

from pathlib import Path

import pytest

from tests.program import run


def test_samples_with_mode_det_are_refused_before_the_checkpoint_is_read(tmp_path: Path) -> None:
    done = run(
        "evaluate", tmp_path / "absent", "--data", tmp_path, "--mode", "det", "--samples", "8"
    )
    assert done.status == 2
    assert "expected --samples only with --mode stoch or both, got --mode det" in done.err
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("absent", "--ood absent: expected a folder, an archive or one of generated, noise, "),
        ("closer:noise", "--ood closer:noise: expected the group far, near or shifted before the"),
        ("near:noise", "--ood near:noise: expected group far for this generated set, got near"),
    ],
)
def test_a_wrong_set_is_refused_before_the_checkpoint_is_read(
    tmp_path: Path, argument: str, message: str
) -> None:
    out = tmp_path / "report"
    done = run("evaluate", tmp_path / "absent", "--data", tmp_path, "--ood", argument, "--out", out)
    assert done.status == 1
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not out.exists()


def test_a_file_in_place_of_the_output_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "report"
    out.write_text("a file")
    done = run("evaluate", tmp_path / "absent", "--data", tmp_path, "--out", out)
    assert done.status == 2
    assert "Directory" in done.err
    assert "is a file" in done.err
    assert len(done.err.strip().splitlines()) == 1
