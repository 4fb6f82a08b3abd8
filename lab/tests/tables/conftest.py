"""Tiny data for the runs of a table, and shell scripts in place of their trainings."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eulerlora.checkpoint.weights import save_backbone
from eulerlora_contract.processes import python_command
from eulerlora_lab.tables.table import TableRun, read_table, runs_of
from lab.tests.tables.synthetic_runs import finish
from tests.conftest import TINY_BACKBONE, random_backbone
from tests.program import Completed, run
from tests.training.conftest import PER_CLASS, set_options


@pytest.fixture(scope="module")
def data(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with train/, test/ and a tiny backbone's file."""
    folder = tmp_path_factory.mktemp("tiny data")
    for part in PER_CLASS:
        (folder / part).symlink_to(image_folder / part)
    save_backbone(folder / "backbone.safetensors", random_backbone(), {}, torch.float32)
    return folder


@pytest.fixture(scope="module")
def on_tiny_data(data: Path) -> list[str]:
    """Options of `eulerlora reproduce` by which the runs train on `data`."""
    overrides = (
        "data.kind=imagefolder",
        "data.path=.",
        f"backbone.weights={data / 'backbone.safetensors'}",
        f"backbone.image_size={TINY_BACKBONE.image_size}",
        "training.epochs=1",
        "training.warmup_steps=1",
        "training.batch_size=8",
        "training.workers=0",
        'target.classes=["red"]',
        'target.critical.classes=["red"]',
    )
    return ["--data", str(data), *set_options(overrides)]


@pytest.fixture
def runs(tmp_path: Path) -> list[TableRun]:
    """The four runs of one seed of a table, all new."""
    return runs_of(read_table("ham10000-scale-check"), [0], [], tmp_path / "runs")


@pytest.fixture
def reproduce(on_tiny_data: list[str], tmp_path: Path) -> Callable[..., Completed]:
    """Runs `eulerlora reproduce` with the table of `runs` and their folder."""

    def program(*arguments: str) -> Completed:
        out = ("--out", str(tmp_path / "runs"))
        return run("reproduce", "ham10000-scale-check", *out, *on_tiny_data, *arguments)

    return program


@pytest.fixture
def script(runs: list[TableRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with shell commands that replace each training.

    They can use `$variant`, `$device`, the `$arguments` of the training, and `finish`, which marks
    the run as finished, or those of the given variants.
    """
    file, finished = tmp_path / "script", tmp_path / "finished"
    for new in runs:
        finish(replace(new, out=finished / str(new.recipe.variant)))

    def scripted(module: str, *arguments: str) -> tuple[str, ...]:
        if module != "eulerlora_contract":
            return python_command(module, *arguments)
        variant, out, device = (
            arguments[arguments.index(name) + 1] for name in ("--variant", "--out", "--device")
        )
        names = f"variant={variant} device={device} arguments={shlex.quote(shlex.join(arguments))}"
        copy = f'mkdir -p "$to" && cp -r {finished}/$v/. "$to"'
        to = out.replace(f"/{variant}/", "/$v/")
        functions = f'finish() {{ for v in ${{*:-$variant}}; do to="{to}"; {copy}; done; }}'
        return ("sh", "-c", f"{names}; {functions}; cd {tmp_path}; . {file}")

    monkeypatch.setattr("eulerlora_lab.tables.local.python_command", scripted)
    return file
