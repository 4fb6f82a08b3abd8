"""The tutorials of examples/ run.

`tests/eulerlora/methods/test_extension.py` trains and serves the method of `write_a_method.py`.
"""

import runpy
import sys
from pathlib import Path

import pytest

from eulerlora import EulerLoRA
from tests.service.conftest import app_of
from tests.service.real_server import run_server

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = (
    "--set", "training.epochs=1", "--set", "backbone.image_size=32", "--set", "training.workers=0",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a tutorial, which imports its neighbour `pictures`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    return tmp_path


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name))


def test_the_service_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_server(app_of(EulerLoRA.default())) as port:
        monkeypatch.setenv("EULERLORA_URL", f"http://127.0.0.1:{port}")
        run("ask_the_service.py", monkeypatch)
    out = capsys.readouterr().out
    assert "example-house.jpg: Unfamiliar, unfamiliar: True" in out
    assert "ask_the_service.py: no result, unsupported_media" in out


def test_the_numbers_of_three_lesions_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("is_it_sure.py", monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 + 8 + 3 + 3  # a header, answers, trajectories, sets, auto


def test_pictures_of_other_kinds_are_unfamiliar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("unknown_pictures.py", monkeypatch)
    rows = capsys.readouterr().out.splitlines()[1:7]
    assert [row.split()[-1] for row in rows] == ["False", *5 * ["True"]]


def test_own_pictures_become_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("own_pictures.py", monkeypatch, *QUICK)
    assert EulerLoRA.load(folder / "run", "cpu").classes == ("circle", "square", "triangle")
    assert (folder / "run" / "report" / "report.json").exists()


@pytest.mark.slow
def test_a_clinic_fits_serves_and_monitors(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run("clinic.py", monkeypatch)
    assert (folder / "site" / "policy.toml").exists()
    assert len((folder / "rows.csv").read_text().splitlines()) == 1 + 20
    assert capfd.readouterr().out.splitlines()[-1] in {"alarm", "no alarm"}


@pytest.mark.slow
def test_two_methods_are_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run("compare_methods.py", monkeypatch, *QUICK)
    assert "95% interval" in capfd.readouterr().out
    assert len(list(folder.glob("runs/*/report/report.json"))) == 6
