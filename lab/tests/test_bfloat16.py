"""Products of bfloat16 by a CPU without instructions for them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WITHOUT = {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
"""Torch then uses the kernels of a CPU without bfloat16, whatever this one has."""
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "example-lesion.jpg"


def answer(module: str, checkpoint: Path, precision: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", module, "predict", checkpoint, PICTURE, "--mode", "stoch",
         "--precision", precision, "--runtime", "torch", "--device", "cpu", "--json"],
        env=os.environ | WITHOUT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = done.stdout.splitlines()
    return dict(json.loads(line))


def test_rounded_sums_in_float32_answer_as_the_slow_kernels(checkpoint_folder: Path) -> None:
    fast, slow, exact = (
        answer(module, checkpoint_folder, precision)
        for module, precision in (
            ("eulerlora_lab.bfloat16", "bfloat16"),
            ("eulerlora_contract", "bfloat16"),
            ("eulerlora_contract", "float32"),
        )
    )
    assert fast["probabilities"] == pytest.approx(slow["probabilities"], abs=2e-3)
    assert fast["probabilities"] != exact["probabilities"]
