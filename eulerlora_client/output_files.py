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

    The file is readable for its owner only: it may name patients. After an error, `path` is
    unchanged. A device or a pipe is written to, not replaced. newline, errors: as for `open`.
    Raises StorageError if the disk is full or fails.
    """
    replaces = path.is_file() or not path.exists()
    target = path.with_name(f".{path.name}.partial") if replaces else path
    try:
        with _storage_errors(path):
            if replaces:
                _create_private(target, path)
            with target.open("w", encoding="utf-8", newline=newline, errors=errors) as file:
                yield file
                file.flush()
                if replaces:
                    os.fsync(file.fileno())  # network file systems report a full disk only here
            if replaces:
                target.replace(path)
    finally:
        if replaces:
            with suppress(OSError):
                target.unlink(missing_ok=True)


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
    """Creates an empty file for its owner only. An OSError names `path`."""
    try:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
    except OSError as error:
        error.filename = str(path)
        raise
