"""A short run of the fuzz target."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 1000


def test_no_body_of_the_fuzzer_has_an_undocumented_response(tmp_path) -> None:
    pytest.importorskip("atheris")
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz_bodies", f"--runs={RUNS}", str(tmp_path / "corpus")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-5000:]
    assert "Done " in run.stderr
