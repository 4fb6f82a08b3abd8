"""eulerlora.atomic_files: files are complete or absent, and a full disk is one error."""

import errno
import os
from pathlib import Path

import pytest
import torch

from eulerlora.atomic_files import atomic_write, storage_errors
from eulerlora.checkpoint.files import save_checkpoint
from eulerlora.checkpoint.safetensor_files import write_tensors
from eulerlora.errors import StorageError
from tests.full_disk import file_size_limit

LARGE = {"a": torch.zeros(30_000)}  # 120 kB
SMALL = {"a": torch.ones(3)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def test_a_file_is_replaced_when_the_block_ends(path: Path) -> None:
    path.write_text("old")
    with atomic_write(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_a_private_file_is_never_readable_by_others(path: Path, private: bool, mode: int) -> None:
    path.with_name(f".{path.name}.partial").touch(mode=0o666)  # what a killed process left
    with atomic_write(path, private) as partial:
        partial.write_text("new")
        assert partial.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == mode


def test_a_failed_block_does_not_change_the_older_file(path: Path) -> None:
    path.write_text("old")
    with pytest.raises(ValueError, match="mine"), atomic_write(path) as partial:
        partial.write_text("ne")
        raise ValueError("mine")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_older_tensors_and_is_a_one_line_error(path: Path) -> None:
    write_tensors(path, SMALL, torch.float32, {})
    before = path.read_bytes()
    with file_size_limit(50_000), pytest.raises(StorageError) as caught:
        write_tensors(path, LARGE, torch.float32, {})
    assert str(caught.value) == f"disk full (file too large) while writing {path}"
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_the_same_error_for_text(path: Path) -> None:
    limited = file_size_limit(50_000)
    with limited, pytest.raises(StorageError, match="disk full"), atomic_write(path) as partial:
        partial.write_text("x" * 60_000)
    assert list(path.parent.iterdir()) == []


def test_a_full_disk_leaves_no_checkpoint_and_the_error_names_its_folder(
    make_network, make_config, tmp_path: Path
) -> None:
    network, folder = make_network(), tmp_path / "saved"
    with file_size_limit(2_000), pytest.raises(StorageError) as caught:
        save_checkpoint(folder, network, make_config(network), "# card\n")
    assert str(caught.value).endswith(f"while writing {folder}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (errno.ENOSPC, "disk full"),
        (errno.EDQUOT, "disk full"),
        (errno.EFBIG, "disk full"),
        (errno.EIO, "the disk failed"),
    ],
)
def test_disk_errors_become_storage_errors(path: Path, number: int, named: str) -> None:
    with pytest.raises(StorageError, match=named) as caught, storage_errors(path):
        raise OSError(number, os.strerror(number))
    assert str(path) in str(caught.value)


def test_other_system_errors_pass_unchanged(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent/weights\.safetensors"):
        write_tensors(path.parent / "absent" / path.name, SMALL, torch.float32, {})
    with pytest.raises(PermissionError), storage_errors(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_full_device_is_a_full_disk(path: Path) -> None:
    with pytest.raises(StorageError, match="no space left"), storage_errors(path):
        Path("/dev/full").write_text("x")
