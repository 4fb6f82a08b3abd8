"""Files that appear whole or not at all, and one error for a disk that takes no more."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eulerlora.errors import StorageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def whole_file(path: Path, private: bool = False) -> Iterator[Path]:
    """Yields a place to write to, which replaces `path` in one step when the block ends well.

    Until then an older file at `path` stays; after a failure nothing of the new one is left.
    private: none but the user may read it, at any time; otherwise all may, once it is whole.
    Raises StorageError for a full or failing disk.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with storage_errors(path):
            _begin(partial, path)
            yield partial
            partial.chmod(0o600 if private else 0o644)
            _sync(partial)
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Within the block, an OSError that is the disk's fault becomes a StorageError on `path`.

    Those are a full disk, a used-up quota, a file over the size limit, and a failed write. Other
    errors, such as a missing permission, pass as they are. Of nested blocks the outermost names
    what could not be written.
    """
    try:
        yield
    except StorageError as error:
        raise StorageError(path, error.reason) from error
    except OSError as error:
        if error.errno not in (*FULL, errno.EIO):
            raise
        what = "disk full" if error.errno in FULL else "the disk failed"
        raise StorageError(path, f"{what} ({os.strerror(error.errno).lower()})") from error


def _begin(partial: Path, path: Path) -> None:
    try:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
    except OSError as error:
        error.filename = str(path)
        raise


def _sync(path: Path) -> None:
    """Waits for the disk: network file systems tell of a full one only then."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
