"""The tutorials of examples/ run."""

import runpy
from pathlib import Path

import pytest

from eulerlora import EulerLoRA
from tests.service.conftest import app_of
from tests.service.real_server import run_server

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_service_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_server(app_of(EulerLoRA.default())) as port:
        monkeypatch.setenv("EULERLORA_URL", f"http://127.0.0.1:{port}")
        runpy.run_path(str(EXAMPLES / "ask_the_service.py"))
    out = capsys.readouterr().out
    assert "example-house.jpg: Unfamiliar, unfamiliar: True" in out
    assert "ask_the_service.py: no result, unsupported_media" in out
