"""Fuzzing of the clinic's readers with a fixed seed; `make fuzz` takes longer and draws one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_mutated_input_causes_named_errors_alone_within_limits_on_work(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has wheels for x86-64 Linux only")
    pytest.importorskip("pydicom")
    run = subprocess.run(
        [sys.executable, "-m", "clinic.tests.fuzz", "--seed", "1", "--folder", tmp_path],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
