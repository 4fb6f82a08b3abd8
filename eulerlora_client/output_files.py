"""Text files that appear complete or not at all."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from eulerlora_client.errors import StorageError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_text_file(path: Path, newline: str = "\n", errors: str = "strict") -> Iterator[TextIO]:
    """Opens a UTF-8 file that replaces `path` when the block ends without an error.

    A new file is readable for its owner only: it may name patients. After an error, `path` is
    unchanged. A link, a device or a pipe is written to, not replaced. newline, errors: as for
    `open`. Raises StorageError if the disk is full or fails.
    """
    if not is_replaceable(path):
        with _storage_errors(path), _open(path, newline, errors) as file:
            yield file
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _storage_errors(path):
            _create_private(partial, path)
            with _open(partial, newline, errors) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # network file systems report a full disk only here
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def is_replaceable(path: Path) -> bool:
    """Returns True for a regular file and for a path that does not exist."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def _open(path: Path, newline: str, errors: str) -> TextIO:
    def open_private(name: str, flags: int) -> int:
        return os.open(name, flags, mode=0o600)

    return open(path, "w", encoding="utf-8", newline=newline, errors=errors, opener=open_private)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Raises StorageError for a full or failing disk; other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*DISK_FULL, errno.EIO):
            raise
        reason = "disk full" if error.errno in DISK_FULL else "the disk failed"
        raise StorageError(path, f"{reason} ({os.strerror(error.errno).lower()})") from error


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
