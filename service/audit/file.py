"""An audit file: a hash chain of lines, appended by one process, and its verification.

Every line contains the hash of the previous line. A line is a record in canonical JSON: sorted
keys, no spaces, ASCII, numbers in Python's shortest representation. `hash` is the SHA-256 of the
record without `hash`; `previous` is the `hash` of the previous line. Changing, removing or moving a
line therefore invalidates all later lines.
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eulerlora_contract.errors import EulerLoRAError, SettingsError, StorageError
from eulerlora_contract.output_files import storage_errors

FORMAT = 1
FIRST_PREVIOUS = "0" * 64  # `previous` of the first line of a chain
MAX_LINE_BYTES = 1 << 20
TRIAL_BYTES = 1 << 16  # as a batch of decisions
HEADER, DECISION, REPAIR = "header", "decision", "repair"
KINDS = (HEADER, DECISION, REPAIR)
HEADER_START = b'{"format":%d,"hash":"' % FORMAT
Record = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChainEnd:
    """The end of a chain: its number of lines, and the hash of the last one."""

    lines: int = 0
    hash: str = FIRST_PREVIOUS


def canonical(record: Mapping[str, Any]) -> bytes:
    """Returns a record as canonical JSON.

    Raises:
        ValueError: For NaN and infinities.
    """
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def encode_line(record: Mapping[str, Any], end: ChainEnd) -> tuple[bytes, ChainEnd]:
    """Returns the line of a record appended at `end`, and the new end of the chain.

    Raises:
        ValueError: For a line longer than MAX_LINE_BYTES.
    """
    chained = {**record, "sequence": end.lines, "previous": end.hash}
    digest = hashlib.sha256(canonical(chained)).hexdigest()
    line = canonical({**chained, "hash": digest}) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"expected a line of at most {MAX_LINE_BYTES:,} bytes, got {len(line):,}")
    return line, ChainEnd(end.lines + 1, digest)


def decode_line(line: bytes) -> Record:
    """Returns the record of one line after checking its hash.

    Raises:
        ValueError: With a reason.
    """
    if not line.endswith(b"\n"):
        raise ValueError("the line is truncated or longer than the limit")
    try:
        record: Record = dict(json.loads(line))
        intact = canonical(record) + b"\n" == line
    except (ValueError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise ValueError("not in the canonical form of this service")
    unhashed = {name: value for name, value in record.items() if name != "hash"}
    if record.get("hash") != hashlib.sha256(canonical(unhashed)).hexdigest():
        raise ValueError("the hash does not match the line")
    if not {"kind", "time", "sequence", "previous"} <= record.keys() or record["kind"] not in KINDS:
        raise ValueError("not a record of a known kind")
    return record


def end_after(record: Record) -> ChainEnd:
    """Returns the end of the chain after this record."""
    return ChainEnd(record["sequence"] + 1, record["hash"])


class AuditFile:
    """Appends records to the hash chain in a file.

    Every write waits for the disk, so that records survive a power failure.

    An incomplete last line is the result of a crash during a write, before the response was sent.
    It is removed, and a record of kind `repair` states its length and SHA-256.

    Args:
        secret_id: Identifies the secret of the file's image hashes.
        after: The chain that an empty or missing file continues. Raises SettingsError if another
            process has locked the file, if it is not an audit log, or if it belongs to another
            secret; StorageError if the disk is full; OSError if it cannot be opened.
    """

    def __init__(self, path: Path, secret_id: str, after: ChainEnd) -> None:
        self.path = path
        self.end = after
        self._has_partial_write = False
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._descriptor, path)
            self._size, torn = _size_of_lines(self._descriptor)
            if self._size == 0 and HEADER_START.startswith(torn[: len(HEADER_START)]):
                self._start(secret_id)
                self._repair(torn)
            else:
                self._continue(secret_id, torn)
        except BaseException:
            self.close()
            raise

    def append(self, records: Sequence[Record]) -> None:
        """Appends all of the records or none.

        Raises:
            StorageError: If the file was replaced, deleted or modified by another program, and for
                a full or failing disk.
        """
        self._check_unmodified()
        end, lines = self.end, []
        for record in records:
            line, end = encode_line({"time": _now(), **record}, end)
            lines.append(line)
        with storage_errors(self.path):
            self._write(b"".join(lines))
        self.end = end

    def check_writable(self) -> None:
        """Writes TRIAL_BYTES after the last line and removes them. Raises as `append`."""
        self._check_unmodified()
        size = self._size
        with storage_errors(self.path):
            self._write(bytes(TRIAL_BYTES))
            self._size, self._has_partial_write = size, True
            self._truncate()

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
        self._truncate()  # an incomplete header
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
        self._repair(torn)

    def _repair(self, torn: bytes) -> None:
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


class ChainError(EulerLoRAError):
    """A line of an audit file does not match the hash chain."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}: line {line}: {reason}")


def records(path: Path) -> Iterator[Record]:
    """Yields the records of an audit file after checking each against the previous one.

    Lines missing at the end of the file cannot be detected without the expected last hash.

    Raises:
        ChainError: At the first invalid line.
        OSError: For an unreadable file.
    """
    end: ChainEnd | None = None
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            try:
                record = decode_line(line)
                _check_first(record) if end is None else _check_next(record, end)
            except ValueError as error:
                raise ChainError(path, number, str(error)) from error
            end = end_after(record)
            yield record
    if end is None:
        raise ChainError(path, 1, "expected a header, got an empty file")


def _check_first(record: Record) -> None:
    if record["kind"] != HEADER:
        raise ValueError(f"expected a header, got a record of kind {record['kind']}")
    if record.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got another one")
    if (record["sequence"] == 0) != (record["previous"] == FIRST_PREVIOUS):
        raise ValueError("the header neither starts a chain nor continues one")


def _check_next(record: Record, end: ChainEnd) -> None:
    if record["kind"] == HEADER:
        raise ValueError("expected one header per file, got a second one")
    if record["sequence"] != end.lines:
        raise ValueError(f"expected sequence number {end.lines}, got {record['sequence']}")
    if record["previous"] != end.hash:
        raise ValueError("does not match the previous line, which was changed or inserted")
