"""Products of bfloat16 by a CPU without instructions for them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eulerlora_lab import adaptation

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


class Types(TorchDispatchMode):
    """Notes the types of what is multiplied in the end."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.linear}:
            self.seen.add(args[-1].dtype)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_products_are_summed_in_float32_within_other_operations_too(
    without_gradients: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eulerlora_lab.bfloat16.missing_bfloat16", lambda _: "this CPU has none")
    layer, types = torch.nn.Linear(8, 4).bfloat16(), Types()
    of_study = adaptation.fast_products()  # type: ignore[attr-defined]
    with types, of_study, without_gradients():
        output = layer(torch.ones(3, 8, dtype=torch.bfloat16))
    assert output.dtype == torch.bfloat16
    assert types.seen == {torch.float32}
