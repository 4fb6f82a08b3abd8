"""Programs of studies, and fixtures that the tests of the core have too."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eulerlora.settings import Preprocessing
from tests.conftest import (
    anyio_backend,
    checkpoint_copy,
    checkpoint_folder,
    make_backbone,
    make_config,
    make_network,
    one_thread,
    real_data,
    temporary_cache,
    tiny_published,
)
from tests.training.conftest import image_folder, recipe_file, undrawn_charts

__all__ = [
    "anyio_backend", "checkpoint_copy", "checkpoint_folder", "image_folder", "make_backbone",
    "make_config", "make_network", "one_thread", "program", "real_data", "recipe_file", "study",
    "temporary_cache", "tiny_published", "undrawn_charts",
]  # fmt: skip


@pytest.fixture
def program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs the `main` of a module with arguments; returns what it prints."""

    def run(main: Callable[[], None], *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def study(
    program: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Path]:
    """Makes the runs of the study of adapters with given losses in place of trainings.

    The function takes the NLL of a run, and perhaps what else a run does with the folder of
    results; it returns this folder. Without the latter no values of pictures are collected.
    """
    from eulerlora_lab import adaptation  # noqa: PLC0415 - imports scikit-learn

    def made(nll: Callable[[Any], float], store: Callable[[Any, Any], None] | None = None) -> Path:
        def run_result(run: Any, _: Path, __: object, folder: Any) -> dict[str, Any]:
            if store is not None:
                store(run, folder)
            modes = (f"{mode}{end}" for mode in ("det", "stoch-4") for end in ("", "-members"))
            return {"run": asdict(run), "validation": dict.fromkeys(modes, nll(run))}

        labels = (torch.zeros(30), torch.arange(30) % 3)
        monkeypatch.setattr(adaptation, "_run_result", run_result)
        monkeypatch.setattr(
            adaptation,
            "load_backbone",
            lambda _: SimpleNamespace(preprocessing=Preprocessing(size=56)),
        )
        monkeypatch.setattr(
            adaptation, "_Pictures", lambda *_: SimpleNamespace(part=lambda _: labels)
        )
        if store is None:
            monkeypatch.setattr(adaptation, "collect", lambda *_: None)
        out = tmp_path / f"study-{len(list(tmp_path.iterdir()))}"
        program(adaptation.main, "--data", "data", "--backbone", "file", "--out", out)
        return out

    return made
