"""Files and folders that appear complete or not at all; one error for a full or failing disk."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from eulerlora_contract.errors import CheckpointError, StorageError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_write(path: Path, private: bool = False) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` in one step when the block succeeds.

    Until then an older file at `path` stays. After a failure the temporary file is removed.

    Args:
        path: Of the file; its folder must exist.
        private: True for permissions 0600, which also hold while the file is written; False for
            0644.

    Raises:
        StorageError: For a full or failing disk.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with storage_errors(path):
            _create_private(partial, path)
            yield partial
            partial.chmod(0o600 if private else 0o644)
            _sync(partial)
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def open_output(path: Path, private: bool = False) -> Iterator[TextIO]:
    """Opens a UTF-8 text file for writing without newline translation, as `atomic_write` does.

    A device, a pipe or an open file such as /dev/stdout is written to directly, and the target of a
    link is replaced, not the link. Bytes of file names that are not UTF-8 are written as escapes.

    Args:
        path: A file, a device, a pipe or a link.
        private: True for a file that may name patients.

    Raises:
        StorageError: For a full or failing disk.
    """
    if is_replaceable(path):
        real = Path(os.path.realpath(path))  # unlike Path.resolve, accepts broken links
        with atomic_write(real, private) as partial, _open_text(partial) as file:
            yield file
        return
    descriptor = open_descriptor(path)
    # A duplicate continues where the output of the process ends; opening would start anew.
    target = path if descriptor is None else os.dup(descriptor)
    with storage_errors(path), _open_text(target) as file:
        yield file


def is_replaceable(path: Path) -> bool:
    """Returns True for a regular file and for a path that does not exist, also behind a link."""
    return open_descriptor(path) is None and (path.is_file() or not path.exists())


def open_descriptor(path: Path) -> int | None:
    """Returns the open file descriptor that a path such as /dev/stdout or /dev/fd/3 names."""
    named = path.readlink() if path.parent == Path("/dev") and path.is_symlink() else path
    if named.name.isdecimal() and named.parent.resolve() == Path("/proc/self/fd").resolve():
        return int(named.name)
    return None


def check_free(folder: Path) -> None:
    """Raises CheckpointError unless `folder` is empty or does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(folder, "expected an empty or new folder, got existing files")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `folder` when the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield partial
        partial.chmod(0o755)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Converts an OSError that the disk causes into a StorageError on `path`.

    Converted are a full disk, an exceeded quota, a file over the size limit and a failed write.
    Other errors, such as a missing permission, pass unchanged. Of nested blocks the outermost one
    determines the path in the message.
    """
    try:
        yield
    except StorageError as error:
        raise StorageError(path, error.reason) from error
    except OSError as error:
        if error.errno not in (*DISK_FULL, errno.EIO):
            raise
        cause = "disk full" if error.errno in DISK_FULL else "the disk failed"
        raise StorageError(path, f"{cause} ({os.strerror(error.errno).lower()})") from error


def _open_text(path: Path | int) -> TextIO:
    return open(  # noqa: PTH123 - a descriptor has no Path
        path, "w", encoding="utf-8", errors="backslashreplace", newline=""
    )


def _create_private(partial: Path, path: Path) -> None:
    """Creates an empty file with permissions 0600, also over one of a killed run.

    An OSError names `path`.
    """
    try:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
    except OSError as error:
        error.filename = str(path)
        raise


def _sync(path: Path) -> None:
    """Waits until the file is on the disk: network file systems report a full disk only then."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
