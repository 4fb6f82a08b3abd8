"""`eulerlora demo`: five answers of a service that it starts and stops."""

import re
from pathlib import Path

import httpx
import pytest

from tests.program import run


def test_the_demonstration_prints_five_answers_and_stops_its_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("resource", "json", "service", "training", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('foreign code ran')")
    monkeypatch.chdir(tmp_path)
    paused: list[str] = []
    monkeypatch.setattr("click.pause", paused.append)  # does nothing without a terminal
    done = run("demo")
    assert done.status == 0, done.err
    for name in ("even.jpg", "irregular.jpg", "out-of-focus.jpg", "house.jpg", "blank.png"):
        assert name in done.out
    assert "http://" not in done.out
    address = re.search(r"http://\S+", paused[0])
    assert address is not None
    with pytest.raises(httpx.ConnectError):
        httpx.get(address[0])


def test_a_service_that_does_not_start_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EULERLORA_SERVE_DEADLINE_S", "soon")
    done = run("demo")
    assert done.status == 1
    assert "deadline_s" in done.err
