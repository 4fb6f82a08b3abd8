"""Text files that appear complete or not at all."""

import os
import stat
import threading
from pathlib import Path

import pytest

from eulerlora_client.errors import StorageError
from eulerlora_client.output_files import atomic_text_file
from tests.full_disk import file_size_limit


def test_a_file_replaces_the_earlier_one_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("earlier")
    with atomic_text_file(path) as file:
        file.write("new")
        assert path.read_text() == "earlier"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_earlier_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("earlier")
    with pytest.raises(KeyError), atomic_text_file(path) as file:
        file.write("new")
        raise KeyError
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_a_storage_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with (
        file_size_limit(100),
        pytest.raises(StorageError, match=r"^disk full .* while writing .*rows\.csv$"),
        atomic_text_file(path) as file,
    ):
        file.write("x" * 1000)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"'.*gone/rows\.csv'"),
        atomic_text_file(tmp_path / "gone" / "rows.csv"),
    ):
        pass


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    with atomic_text_file(pipe) as file:
        file.write("rows")
    reader.join()
    assert (received, pipe.is_fifo()) == (["rows"], True)
