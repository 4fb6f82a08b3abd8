"""A few seconds of the fuzz target; anybody can run it for longer."""

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 5


def test_no_body_that_the_fuzzer_finds_gets_an_undocumented_answer(tmp_path) -> None:
    pytest.importorskip("atheris")
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz_bodies", str(SECONDS), str(tmp_path / "corpus")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-5000:]
    assert "Done " in run.stderr
