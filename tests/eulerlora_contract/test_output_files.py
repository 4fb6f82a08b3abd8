"""Output files are complete or absent, untrusted text is escaped, a full disk is one error."""

import csv
import errno
import io
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eulerlora_contract.errors import CheckpointError, OutputPathError, StorageError
from eulerlora_contract.output_files import (
    atomic_write,
    check_free,
    new_folder,
    open_output,
    storage_errors,
)
from eulerlora_contract.printable import printable, write_csv_rows
from tests.full_disk import file_size_limit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_a_file_is_replaced_when_the_block_ends_and_is_private_until_then(
    path: Path, private: bool, mode: int
) -> None:
    path.write_text("old")
    with open_output(path, private) as file:
        file.write("new")
        assert path.read_text() == "old"
        (workspace,) = path.parent.glob(".*")
        assert workspace.stat().st_mode & 0o777 == 0o700
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(path.parent.iterdir()) == [path]


@pytest.fixture
def private_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_what_replaces_a_file_keeps_its_mode(path: Path, mode: int) -> None:
    path.touch()
    path.chmod(mode)
    with open_output(path) as output:
        output.write("new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.usefixtures("private_umask")
def test_new_files_and_folders_follow_the_umask(tmp_path: Path) -> None:
    with new_folder(tmp_path / "folder") as partial, atomic_write(partial / "file") as file:
        file.write_text("new")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")]
    assert modes == [0o700, 0o600]


def test_an_empty_folder_that_is_filled_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(0o700)
    with new_folder(tmp_path / "folder"):
        pass
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700


def test_of_two_writers_at_once_each_writes_a_whole_file(path: Path) -> None:
    with atomic_write(path) as first, atomic_write(path) as second:
        first.write_text("first" * 1000)
        second.write_text("second")
    assert path.read_text() == "first" * 1000  # which ends last
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("write", [atomic_write, new_folder])
def test_the_next_writer_removes_what_a_killed_process_left(path: Path, write) -> None:
    code = "import os; from pathlib import Path; from eulerlora_contract.output_files import *\n"
    code += f"with {write.__name__}(Path({str(path)!r})): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = path.parent.iterdir()
    (path.parent / f".{path.name}.unrelated").touch()
    with write(path) as partial:
        living = partial.parent
        with write(path):
            assert living.exists()
            assert not left.exists()
    assert {p.name for p in path.parent.iterdir()} == {path.name, f".{path.name}.unrelated"}


def test_a_volume_is_filled_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    inode = tmp_path.stat().st_ino
    (tmp_path / ".new.0123abcd.partial").mkdir()  # of a killed process
    check_free(tmp_path)
    with new_folder(tmp_path) as partial:
        (partial / "folder").mkdir()
        (partial / "folder" / "a").touch()
        check_free(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (tmp_path / "folder" / "a").is_file()
    assert tmp_path.stat().st_ino == inode


@pytest.mark.parametrize("moved", range(3))
def test_a_kill_while_a_volume_is_filled_leaves_it_without_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    rename, left = Path.rename, list(range(moved))

    def rename_or_stop(path: Path, target: Path) -> Path:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return rename(path, target)

    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    monkeypatch.setattr(Path, "rename", rename_or_stop)
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path, last="config.json") as partial:
        for name in ("adapters", "config.json", "weights"):
            (partial / name).touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapters", "weights"][:moved]


def test_a_folder_with_files_is_refused_before_the_block_and_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with pytest.raises(CheckpointError) as caught, new_folder(folder) as partial:
        (partial / "a").touch()
        folder.mkdir()
        (folder / "of another process").touch()
    with pytest.raises(CheckpointError), new_folder(folder):
        pytest.fail("the block ran")
    assert caught.value.path == folder
    assert [path.name for path in folder.iterdir()] == ["of another process"]


@pytest.mark.parametrize("write", [atomic_write, open_output])
def test_a_folder_in_place_of_a_file_is_refused_before_the_block(path: Path, write) -> None:
    path.mkdir()
    with pytest.raises(OutputPathError), write(path):
        pytest.fail("the block ran")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("form", ["relative", "absolute"])
def test_the_current_folder_is_filled_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(Path, "is_mount", os.path.ismount)  # as from Python 3.12 on
    monkeypatch.chdir(tmp_path)
    folder = Path() if form == "relative" else tmp_path
    check_free(folder)
    with new_folder(folder) as partial:
        (partial / "a").touch()
    assert [path.name for path in Path().iterdir()] == ["a"]


def test_a_failed_block_does_not_change_the_older_file(path: Path) -> None:
    path.write_text("old")
    with pytest.raises(KeyError), open_output(path) as file:
        file.write("new")
        raise KeyError
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_an_error_that_names_the_file(path: Path) -> None:
    with file_size_limit(100), pytest.raises(StorageError) as caught, open_output(path) as file:
        file.write("x" * 1000)
    assert caught.value.path == path
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_errors_of_the_disk_become_storage_errors(path: Path, number: int) -> None:
    with pytest.raises(StorageError) as caught, storage_errors(path):
        raise OSError(number, os.strerror(number))
    assert caught.value.path == path


def test_of_nested_blocks_the_outermost_one_is_named(path: Path) -> None:
    with pytest.raises(StorageError) as caught, storage_errors(path.parent), storage_errors(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.path == path.parent


def test_other_errors_pass_unchanged_and_name_the_file(path: Path) -> None:
    with pytest.raises(PermissionError), storage_errors(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    gone = path.parent / "gone" / path.name
    with pytest.raises(FileNotFoundError) as caught, atomic_write(gone):
        pass
    assert caught.value.filename == str(gone)


def test_a_file_in_a_missing_folder_is_refused_before_the_block(path: Path) -> None:
    gone, link = path.parent / "gone" / path.name, path.parent / "link"
    link.symlink_to(gone)
    for output in (gone, link):
        with pytest.raises(OutputPathError, match="gone"), open_output(output):
            pytest.fail("the block ran")


def test_an_open_file_is_continued_and_not_replaced(path: Path) -> None:
    path.write_text("earlier\n")
    with path.open("a") as file:
        for name in (f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
            with open_output(Path(name)) as output:
                output.write("row\n")
        inode = path.stat().st_ino
        file.write("later\n")
    assert path.read_text() == "earlier\nrow\nrow\nlater\n"
    assert path.stat().st_ino == inode
    assert list(path.parent.iterdir()) == [path]


def test_standard_output_is_written_to_and_stays_open(capfd: pytest.CaptureFixture[str]) -> None:
    before = Path("/dev/stdout").lstat()
    with open_output(Path("/dev/stdout")) as output:
        output.write("rows\n")
    print("table", file=sys.stdout, flush=True)
    assert capfd.readouterr().out == "rows\ntable\n"
    assert os.path.samestat(Path("/dev/stdout").lstat(), before)


def test_a_pipe_is_written_to_and_not_replaced(path: Path) -> None:
    os.mkfifo(path)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(path.read_text()))
    reader.start()
    with open_output(path) as file:
        file.write("rows")
    reader.join()
    assert (received, path.is_fifo()) == (["rows"], True)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_device_is_written_to_and_a_full_one_is_a_full_disk() -> None:
    with open_output(Path("/dev/null")) as output:
        output.write("rows\n")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(StorageError), open_output(Path("/dev/full")) as output:
        output.write("rows\n")


def test_the_target_of_a_link_is_replaced_in_one_step(path: Path) -> None:
    link = path.with_name("link.csv")
    link.symlink_to(path.name)
    path.write_text("earlier")
    with open_output(link) as output:
        output.write("rows")
        assert path.read_text() == "earlier"
    assert link.is_symlink()
    assert path.read_text() == "rows"
    assert sorted(path.parent.iterdir()) == [link, path]


@pytest.mark.parametrize(
    ("name", "encoding", "expected"),
    [
        ("ü.png", "utf-8", "ü.png"),
        ("ü.png", "ascii", "\\xfc.png"),
        ("🙂 é.png", "utf-8", "🙂 é.png"),
        ("8.9\N{NO-BREAK SPACE}%", "utf-8", "8.9\N{NO-BREAK SPACE}%"),
        ("1\N{NARROW NO-BREAK SPACE}259", "utf-8", "1\N{NARROW NO-BREAK SPACE}259"),
        ("\x1b[2J\n.png", "utf-8", "\\x1b[2J\\n.png"),
        ("a\r\n\t\x00\x7f\u2028\ud800b", "utf-8", "a\\r\\n\\t\\x00\\x7f\\u2028\\ud800b"),
        ("gpj.\u202egnp", "utf-8", "gpj.\\u202egnp"),
        (os.fsdecode(b"caf\xe9.png"), "utf-8", "caf\\udce9.png"),
    ],
)
def test_invisible_and_unencodable_characters_are_escaped(
    name: str, encoding: str, expected: str
) -> None:
    assert printable(name, encoding) == expected


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula_and_a_path_still_names_its_file(start: str) -> None:
    file, text = io.StringIO(newline=""), f"{start}cmd|'/c calc'!A1\x1b]0;title\x07\u202e"
    write_csv_rows(file, ["file", text], [[f"{start}1", text], ["a", -1.5], ["a", "a"]])
    assert file.getvalue().startswith("\ufefffile,")  # the mark that spreadsheets need
    header, first, second, third = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert header[1] == first[1]
    assert header[1].startswith(f"'{start.strip()}") and header[1].isprintable()
    assert third == ["a", "a"]
    assert first[0] == f"./{start}1"
    assert second == ["a", "-1.5"]


def test_a_terminal_receives_no_control_characters_of_names() -> None:
    terminal, other_end = os.openpty()
    try:
        with open(other_end, "w", encoding="utf-8", closefd=False) as file:
            write_csv_rows(file, ["file", "label"], [["=\x1b[2J.png", "\x1b[2J"]])
        shown = b""
        while shown.count(b"\n") < 2:  # a terminal may return a line at a time
            shown += os.read(terminal, 10_000)
    finally:
        os.close(terminal)
        os.close(other_end)
    assert shown.startswith(b"file,label")  # without a byte order mark
    assert b"'=\\x1b[2J.png,\\x1b[2J" in shown
    assert b"\x1b" not in shown


@pytest.mark.parametrize("dangling", [True, False])
def test_the_target_of_a_link_to_a_folder_is_replaced(tmp_path: Path, dangling: bool) -> None:
    target, link = tmp_path / "scratch" / "real", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(Path("scratch") / "real")
    if not dangling:
        target.mkdir()
    check_free(link)
    with new_folder(link) as partial:
        (partial / "file").touch()
    assert link.is_symlink()
    assert [path.name for path in target.iterdir()] == ["file"]
    with pytest.raises(CheckpointError):
        check_free(link)
