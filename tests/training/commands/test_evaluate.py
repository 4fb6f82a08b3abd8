"""Usage errors of `eulerlora evaluate`: one line each, and nothing is written."""

from pathlib import Path

from tests.program import run


def test_samples_with_mode_det_are_refused_before_the_checkpoint_is_read(tmp_path: Path) -> None:
    done = run(
        "evaluate", tmp_path / "absent", "--data", tmp_path, "--mode", "det", "--samples", "8"
    )
    assert done.status == 2
    assert "expected --samples only with --mode stoch or both, got --mode det" in done.err
    assert len(done.err.strip().splitlines()) == 1
