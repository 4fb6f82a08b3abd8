"""One audit file: held by one process, written whole lines at a time, continued after a restart."""

import fcntl
import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from eulerlora.atomic_files import storage_errors
from eulerlora.errors import SettingsError, StorageError
from service.audit.chain import (
    FORMAT,
    HEADER,
    MAX_LINE_BYTES,
    REPAIR,
    Link,
    Record,
    link_of,
    sealed,
    unsealed,
)

logger = logging.getLogger(__name__)


class AuditFile:
    """The end of a chain of lines, to which more are added.

    secret_id: tells secrets apart without telling them; a file belongs to one. sync: wait for the
    disk after each writing. after: the chain that an empty or absent file takes up.
    Raises SettingsError where the file is held by another process, is no audit log, or belongs
    to another secret, StorageError for a full disk, and OSError where it cannot be opened.

    A last line without an end was cut by a crash while it was written, before its answer was
    sent. It is taken off, and a record of kind `repair` says how many bytes, and their SHA-256.
    """

    def __init__(self, path: Path, secret_id: str, sync: bool, after: Link) -> None:
        self.path = path
        self.link = after
        self._sync = sync
        self._half_written = False
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _hold(self._descriptor, path)
            self._end, torn = _end_of_lines(self._descriptor)
            self._begin(secret_id) if self._size() == 0 else self._go_on(secret_id, torn)
        except BaseException:
            self.close()
            raise

    def append(self, records: Sequence[Record]) -> None:
        """Adds the records, all or none.

        Raises StorageError where the path no longer leads to the file as it was left, and for a
        full or failing disk.
        """
        self._check_place()
        link, lines = self.link, []
        for record in records:
            line, link = sealed({"time": _now(), **record}, link)
            lines.append(line)
        with storage_errors(self.path):
            self._write(b"".join(lines))
        self.link = link

    def moved_away(self) -> bool:
        """Whether the file has another name now and its place is free: missing, or empty."""
        held = os.fstat(self._descriptor)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return held.st_nlink > 0
        return held.st_nlink > 0 and there.st_size == 0 and not os.path.samestat(held, there)

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._descriptor)

    def _begin(self, secret_id: str) -> None:
        self.append([{"kind": HEADER, "format": FORMAT, "secret_id": secret_id}])
        _sync_folder(self.path.parent)

    def _go_on(self, secret_id: str, torn: bytes) -> None:
        try:
            header = unsealed(_first_line(self._descriptor))
            self.link = link_of(unsealed(_last_line(self._descriptor, self._end)))
        except ValueError as error:
            raise SettingsError(
                f"{self.path}: not an audit log that can be continued ({error}); "
                "see eulerlora audit verify, or begin another file"
            ) from error
        if header.get("format") != FORMAT or header.get("secret_id") != secret_id:
            raise SettingsError(
                f"{self.path}: begun with another secret or in another format; begin another file"
            )
        if torn:
            os.ftruncate(self._descriptor, self._end)
            digest = hashlib.sha256(torn).hexdigest()
            self.append([{"kind": REPAIR, "bytes": len(torn), "sha256": digest}])
            logger.warning("%s: a crash cut the last line; taken off, and noted there", self.path)

    def _check_place(self) -> None:
        with suppress(FileNotFoundError):
            if not os.path.samestat(os.fstat(self._descriptor), self.path.stat()):
                raise StorageError(self.path, "another file has taken its place")
            if self._size() != self._end and not self._half_written:
                raise StorageError(self.path, "somebody else has written to it or cut it")
            return
        raise StorageError(self.path, "it was deleted")

    def _write(self, content: bytes) -> None:
        """Writes at the end of the whole lines; what a failure leaves half is taken off again."""
        if self._half_written:
            self._take_back()
        at = self._end
        try:
            while content:
                written = os.pwrite(self._descriptor, content, at)
                at, content = at + written, content[written:]
            if self._sync:
                os.fdatasync(self._descriptor)
        except OSError:
            self._half_written = True
            with suppress(OSError):  # otherwise before the next writing
                self._take_back()
            raise
        self._end = at

    def _take_back(self) -> None:
        os.ftruncate(self._descriptor, self._end)
        self._half_written = False

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size


def _hold(descriptor: int, path: Path) -> None:
    """Locks the file until the descriptor is closed, by whatever end of the process."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SettingsError(f"{path}: another process writes this audit log") from error


def _end_of_lines(descriptor: int) -> tuple[int, bytes]:
    """Where the last whole line ends, and the bytes that come after it."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - MAX_LINE_BYTES)
    whole, newline, torn = os.pread(descriptor, size - start, start).rpartition(b"\n")
    return start + len(whole) + len(newline), torn


def _first_line(descriptor: int) -> bytes:
    head = os.pread(descriptor, MAX_LINE_BYTES, 0)
    return head[: head.find(b"\n") + 1]


def _last_line(descriptor: int, end: int) -> bytes:
    """The last whole line, which ends at `end`."""
    start = max(0, end - MAX_LINE_BYTES)
    lines = os.pread(descriptor, end - start, start)
    return lines[lines.rfind(b"\n", 0, -1) + 1 :]


def _sync_folder(folder: Path) -> None:
    """Waits until the disk knows the file's name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
