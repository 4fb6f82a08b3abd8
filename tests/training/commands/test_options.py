"""The stored state that an error names, and the imports of the command modules.

Wrong usage of `eulerlora evaluate` and `calibrate`.
"""

import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from safetensors.torch import save_file

from tests.program import refusal
from training.commands.train import resume_hint

COMMANDS = (
    "training.commands.calibrate",
    "training.commands.evaluate",
    "training.commands.train",
)
HEAVY = ("torch", "torchvision", "sklearn", "scipy", "matplotlib", "accelerate", "PIL")


def test_command_modules_import_no_heavy_library() -> None:
    imports = "; ".join(f"import {name}" for name in COMMANDS)
    code = f"import sys; {imports}; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def state_of_step(path: Path, step: int) -> Path:
    save_file({"weight": torch.ones(1)}, path, {"progress": f'{{"step": {step}}}'})
    return path


def interrupted(*states: Path) -> str:
    """What the user reads after Ctrl-C."""
    with pytest.raises(click.ClickException) as ended, resume_hint(states):
        raise KeyboardInterrupt
    return ended.value.message


def test_the_last_readable_state_is_named_with_its_step(tmp_path: Path) -> None:
    first, second = state_of_step(tmp_path / "1", 40), state_of_step(tmp_path / "2", 7)
    hint = f"the state after step 7 is stored in {second}"
    assert interrupted(first, second) == f"interrupted; {hint}; use --resume to continue"
    second.write_bytes(b"damaged")
    hint = f"the state after step 40 is stored in {first}"
    assert interrupted(first, second, tmp_path / "3").startswith(f"interrupted; {hint};")
    assert interrupted(tmp_path / "3").startswith("interrupted; no state was stored,")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("evaluate", ["--samples", "8", "--mode", "det"]),
        ("evaluate", ["--figures", "svg"]),
        ("evaluate", ["--pictures"]),
        ("calibrate", ["--coverage", "1.5", "--out", "new"]),
        ("calibrate", ["--coverage", "0.9,nan", "--out", "new"]),
        ("calibrate", ["--coverage", "0.9,,0.8", "--out", "new"]),
        ("calibrate", ["--coverage", "0.9,0.90", "--out", "new"]),
        ("calibrate", ["--always-include-rare", "--out", "new"]),
    ],
)
def test_wrong_usage_is_refused_before_the_checkpoint_is_read(
    tmp_path: Path, command: str, options: list[str]
) -> None:
    absent = tmp_path / "absent"
    assert options[0] in refusal(command, absent, "--data", tmp_path, *options, status=2)


def test_a_comparison_needs_two_runs(tmp_path: Path) -> None:
    assert "two runs" in refusal("compare", tmp_path, status=2)
    assert "--out" in refusal("compare", tmp_path, tmp_path, "--figures", "svg", status=2)
