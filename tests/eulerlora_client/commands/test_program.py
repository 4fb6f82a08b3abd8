"""The program: commands, exit status and one-line errors."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.program import run


def test_every_command_is_listed_and_has_a_line_of_help() -> None:
    done = run("--help")
    assert done.status == 0
    names = entry_points(group="eulerlora.commands").names
    assert {"serve", "predict", "train", "evaluate", "calibrate", "pretrain"} <= names
    for name in names:
        line = next(line for line in done.out.splitlines() if line.strip().startswith(name))
        assert len(line.split()) > 3


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["predict"], ["serve", "--nonsense"], ["predict", "--samples", "0"]]
)
def test_wrong_usage_is_status_2_and_one_line(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_failed_work_is_status_1_and_one_line(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.touch()
    done = run("predict", tmp_path / "absent", image)
    assert done.status == 1
    assert len(done.err.splitlines()) == 1
    assert "config.json" in done.err


def test_control_characters_in_a_message_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "\x1b]0;title\x07\x9b1m\u202e"
    folder.mkdir()
    done = run("predict", tmp_path, folder)
    assert done.status == 1
    (line,) = done.err.splitlines()
    assert line.isprintable()
    assert "\\x1b]0;title\\x07\\x9b1m\\u202e: contains no images" in line


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.touch()
    command = "from eulerlora_client.commands.program import main; main()"
    arguments = ["--debug", "predict", str(tmp_path / "absent"), str(image)]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "CheckpointError" in done.stderr
