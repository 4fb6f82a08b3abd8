"""An audit file: locked by one process, appended in whole lines, continued after a restart."""

import fcntl
import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from eulerlora.errors import SettingsError, StorageError
from eulerlora_client.output_files import storage_errors
from service.audit.chain import (
    FORMAT,
    HEADER,
    MAX_LINE_BYTES,
    REPAIR,
    ChainEnd,
    Record,
    decode_line,
    encode_line,
    end_after,
)

logger = logging.getLogger(__name__)


class AuditFile:
    """Appends records to the hash chain in a file.

    secret_id: identifies the secret of the file's image hashes. sync: waits for the disk after
    every write. after: the chain that an empty or missing file continues.
    Raises SettingsError if another process has locked the file, if it is not an audit log, or if
    it belongs to another secret; StorageError if the disk is full; OSError if it cannot be opened.

    An incomplete last line is the result of a crash during a write, before the response was sent.
    It is removed, and a record of kind `repair` states its length and SHA-256.
    """

    def __init__(self, path: Path, secret_id: str, sync: bool, after: ChainEnd) -> None:
        self.path = path
        self.end = after
        self._sync = sync
        self._has_partial_write = False
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._descriptor, path)
            self._size, torn = _size_of_lines(self._descriptor)
            if self._file_size() == 0:
                self._start(secret_id)
            else:
                self._continue(secret_id, torn)
        except BaseException:
            self.close()
            raise

    def append(self, records: Sequence[Record]) -> None:
        """Appends all of the records or none.

        Raises StorageError if the file was replaced, deleted or modified by another program, and
        for a full or failing disk.
        """
        self._check_unmodified()
        end, lines = self.end, []
        for record in records:
            line, end = encode_line({"time": _now(), **record}, end)
            lines.append(line)
        with storage_errors(self.path):
            self._write(b"".join(lines))
        self.end = end

    def is_rotated(self) -> bool:
        """Returns whether the file was renamed and its path is now missing or an empty file."""
        opened = os.fstat(self._descriptor)
        try:
            current = self.path.stat()
        except FileNotFoundError:
            return opened.st_nlink > 0
        return (
            opened.st_nlink > 0 and current.st_size == 0 and not os.path.samestat(opened, current)
        )

    def close(self) -> None:
        """Closes the file and releases its lock."""
        os.close(self._descriptor)

    def _start(self, secret_id: str) -> None:
        self.append([{"kind": HEADER, "format": FORMAT, "secret_id": secret_id}])
        _sync_folder(self.path.parent)

    def _continue(self, secret_id: str, torn: bytes) -> None:
        try:
            header = decode_line(_first_line(self._descriptor))
            self.end = end_after(decode_line(_last_line(self._descriptor, self._size)))
        except ValueError as error:
            raise SettingsError(
                f"{self.path}: cannot continue this audit log ({error}); "
                "check it with eulerlora audit verify, or choose another file"
            ) from error
        if header.get("format") != FORMAT or header.get("secret_id") != secret_id:
            raise SettingsError(
                f"{self.path}: was written with another secret or format; choose another file"
            )
        if torn:
            os.ftruncate(self._descriptor, self._size)
            digest = hashlib.sha256(torn).hexdigest()
            self.append([{"kind": REPAIR, "bytes": len(torn), "sha256": digest}])
            logger.warning("%s: removed an incomplete last line and recorded the repair", self.path)

    def _check_unmodified(self) -> None:
        with suppress(FileNotFoundError):
            if not os.path.samestat(os.fstat(self._descriptor), self.path.stat()):
                raise StorageError(self.path, "was replaced by another file")
            if self._file_size() != self._size and not self._has_partial_write:
                raise StorageError(self.path, "was modified by another program")
            return
        raise StorageError(self.path, "was deleted")

    def _write(self, content: bytes) -> None:
        """Writes after the last whole line; removes the partial content of a failed write."""
        if self._has_partial_write:
            self._truncate()
        position = self._size
        try:
            while content:
                written = os.pwrite(self._descriptor, content, position)
                position, content = position + written, content[written:]
            if self._sync:
                os.fdatasync(self._descriptor)
        except OSError:
            self._has_partial_write = True
            with suppress(OSError):  # otherwise the next write does it
                self._truncate()
            raise
        self._size = position

    def _truncate(self) -> None:
        os.ftruncate(self._descriptor, self._size)
        self._has_partial_write = False

    def _file_size(self) -> int:
        return os.fstat(self._descriptor).st_size


def _lock(descriptor: int, path: Path) -> None:
    """Locks the file until the descriptor is closed or the process ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SettingsError(f"{path}: is in use by another process") from error


def _size_of_lines(descriptor: int) -> tuple[int, bytes]:
    """Returns the size of all whole lines, and the bytes after them."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - MAX_LINE_BYTES)
    whole, newline, torn = os.pread(descriptor, size - start, start).rpartition(b"\n")
    return start + len(whole) + len(newline), torn


def _first_line(descriptor: int) -> bytes:
    head = os.pread(descriptor, MAX_LINE_BYTES, 0)
    return head[: head.find(b"\n") + 1]


def _last_line(descriptor: int, size: int) -> bytes:
    """Returns the last whole line, which ends at byte `size`."""
    start = max(0, size - MAX_LINE_BYTES)
    lines = os.pread(descriptor, size - start, start)
    return lines[lines.rfind(b"\n", 0, -1) + 1 :]


def _sync_folder(folder: Path) -> None:
    """Waits until the directory entry is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
