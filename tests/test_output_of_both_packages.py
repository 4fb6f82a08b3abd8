"""`eulerlora predict` and `eulerlora triage` write untrusted text and files by the same rules."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

import pytest

from eulerlora import atomic_files
from eulerlora import printable as of_predict
from eulerlora_client import output_files
from eulerlora_client import printable as of_triage

Open = Callable[[Path], AbstractContextManager[TextIO]]
WRITERS = [atomic_files.open_output, output_files.atomic_text_file]


@pytest.mark.parametrize("function", ["printable", "csv_text", "csv_path"])
def test_text_is_escaped_alike(function: str) -> None:
    texts = [
        f"{chr(code)}a{chr(code)}" for code in (*range(0x3000), *range(0xD800, 0xE100), 0x1F642)
    ]
    texts += ["=1+1", "+1", "-1", "@a", "\x1b[2J", os.fsdecode(b"caf\xe9"), ""]
    for text in texts:
        assert getattr(of_predict, function)(text) == getattr(of_triage, function)(text)


@pytest.fixture(params=WRITERS, ids=lambda writer: writer.__name__)
def open_output(request: pytest.FixtureRequest) -> Open:
    return request.param


def test_an_open_file_is_continued_and_not_replaced(open_output: Open, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("earlier\n")
    with path.open("a") as file:
        for name in (f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
            with open_output(Path(name)) as output:
                output.write("row\n")
        inode = path.stat().st_ino
        file.write("later\n")
    assert path.read_text() == "earlier\nrow\nrow\nlater\n"
    assert path.stat().st_ino == inode
    assert list(tmp_path.iterdir()) == [path]


def test_standard_output_is_written_to_and_stays_open(
    open_output: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    before = Path("/dev/stdout").lstat()
    with open_output(Path("/dev/stdout")) as output:
        output.write("rows\n")
    print("table", file=sys.stdout, flush=True)
    assert capfd.readouterr().out == "rows\ntable\n"
    assert os.path.samestat(Path("/dev/stdout").lstat(), before)


def test_a_device_is_written_to_and_not_replaced(open_output: Open) -> None:
    with open_output(Path("/dev/null")) as output:
        output.write("rows\n")
    assert Path("/dev/null").is_char_device()


def test_the_target_of_a_link_is_replaced_in_one_step(open_output: Open, tmp_path: Path) -> None:
    link, target = tmp_path / "link.csv", tmp_path / "target.csv"
    link.symlink_to("target.csv")
    target.write_text("earlier")
    with pytest.raises(KeyError), open_output(link) as output:
        output.write("new")
        raise KeyError
    assert target.read_text() == "earlier"
    with open_output(link) as output:
        output.write("new")
        assert target.read_text() == "earlier"
    assert (target.read_text(), link.is_symlink()) == ("new", True)
    assert sorted(tmp_path.iterdir()) == [link, target]
