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
    unchanged. A device or a pipe is written to, not replaced, and so is an open file such as
    /dev/stdout. Of a link, the target is replaced. newline, errors: as for `open`. Raises
    StorageError if the disk is full or fails.
    """
    if not is_replaceable(path):
        with _storage_errors(path), _open(path, newline, errors) as file:
            yield file
        return
    real = Path(os.path.realpath(path))  # unlike Path.resolve, accepts broken links
    partial = real.with_name(f".{real.name}.partial")
    try:
        with _storage_errors(path):
            _create_private(partial, path)
            with _open(partial, newline, errors) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # network file systems report a full disk only here
            partial.replace(real)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def is_replaceable(path: Path) -> bool:
    """Returns True for a regular file and for a path that does not exist, also behind a link."""
    return open_descriptor(path) is None and (path.is_file() or not path.exists())


def open_descriptor(path: Path) -> int | None:
    """Returns the open file descriptor that a path such as /dev/stdout or /dev/fd/3 names."""
    named = path.readlink() if path.parent == Path("/dev") and path.is_symlink() else path
    if named.name.isdecimal() and named.parent.resolve() == Path("/proc/self/fd").resolve():
        return int(named.name)
    return None


def _open(path: Path, newline: str, errors: str) -> TextIO:
    def open_private(name: str, flags: int) -> int:
        descriptor = open_descriptor(path)
        # A duplicate continues where the output of the process ends; opening would start anew.
        return os.open(name, flags, mode=0o600) if descriptor is None else os.dup(descriptor)

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
