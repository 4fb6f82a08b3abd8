"""Audit files: a chain of authenticated lines, appended by one process, and its verification.

A line is a record in canonical JSON: sorted keys, no spaces, ASCII, numbers in Python's shortest
representation. `mac` is the HMAC-SHA-256 of the record without `mac`, under a key that is not in
the file; `previous` is the `mac` of the previous line, and `sequence` counts the lines of the
chain. Without the key, nobody can change, insert or move a line, or chain the lines again; only
lines at the end can be removed. After a rotation, the header of the next file continues the chain.

The contract: `AuditFile` appends records to the chain, all or none, and they survive a power
failure. `records` yields those of all files of a chain, or raises ChainError at the first line that
was changed, inserted, moved or removed before the end; nobody can forge a line without the key.
"""

import hashlib
import hmac
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from eulerlora_clinic.monitoring import LogFile, oldest_first
from eulerlora_contract.errors import EulerLoRAError, SettingsError, StorageError
from eulerlora_contract.output_files import lock, storage_errors, sync_folder

__all__ = [
    "ANSWER", "DECISION", "FIRST_PREVIOUS", "HEADER", "REPAIR", "AuditFile", "ChainEnd",
    "ChainError", "Record", "audit_files", "canonical", "newest_records", "records",
]  # fmt: skip

_FORMAT = 4
FIRST_PREVIOUS = "0" * 64  # `previous` of the first line of a chain
_MAX_LINE_BYTES = 1 << 20
_TRIAL_BYTES = 1 << 16  # as a batch of answers
_BLOCK_BYTES = 1 << 20
HEADER, ANSWER, DECISION, REPAIR = "header", "answer", "decision", "repair"
_KINDS = (HEADER, ANSWER, DECISION, REPAIR)
_FILE_START = b'{"format":'
"""Of the header, in every format."""
_HEADER_START = _FILE_START + b'%d,"kind":"header","mac":"' % _FORMAT
Record = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChainEnd:
    """The end of a chain.

    Attributes:
        lines: Its number of lines.
        mac: Of the last one.
    """

    lines: int = 0
    mac: str = FIRST_PREVIOUS


def _key_id(key: bytes) -> str:
    """16 hex digits that identify a key without revealing it."""
    return hmac.digest(key, b"identifier", hashlib.sha256).hex()[:16]  # no line is so short


def canonical(record: Mapping[str, Any]) -> bytes:
    """A record as canonical JSON.

    Raises:
        ValueError: For NaN and infinities.
    """
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _encode_line(record: Mapping[str, Any], end: ChainEnd, key: bytes) -> tuple[bytes, ChainEnd]:
    """The line of a record appended at `end`, and the new end of the chain.

    Raises:
        ValueError: For a line longer than _MAX_LINE_BYTES.
    """
    chained = {**record, "sequence": end.lines, "previous": end.mac}
    mac = _mac(key, chained)
    line = canonical({**chained, "mac": mac}) + b"\n"
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"expected a line of at most {_MAX_LINE_BYTES:,} bytes, got {len(line):,}")
    return line, ChainEnd(end.lines + 1, mac)


def _decode_line(line: bytes, key: bytes) -> Record:
    """The record of one line after checking its `mac`.

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
    if record.get("format", _FORMAT) != _FORMAT:
        raise ValueError(f"expected an audit log of format {_FORMAT}, got another format")
    if "secret_id" in record and record["secret_id"] != _key_id(key):
        raise ValueError("was written with another secret")
    mac = record.pop("mac", None)
    if not isinstance(mac, str) or not hmac.compare_digest(_mac(key, record), mac):
        raise ValueError("the line was changed, or was not written with this secret")
    record["mac"] = mac
    if (
        not {"kind", "time", "sequence", "previous"} <= record.keys()
        or record["kind"] not in _KINDS
    ):
        raise ValueError("not a record of a known kind")
    return record


def _end_after(record: Record) -> ChainEnd:
    return ChainEnd(record["sequence"] + 1, record["mac"])


def _mac(key: bytes, record: Mapping[str, Any]) -> str:
    return hmac.digest(key, canonical(record), hashlib.sha256).hex()


class AuditFile:
    """Appends records to the chain in a file.

    Every write waits for the disk, so that records survive a power failure.

    An incomplete last line is the result of a crash during a write, before the response was sent.
    It is removed, and a record of kind `repair` states its length and SHA-256.

    Args:
        key: Of the chain.
        after: The chain that an empty or missing file continues.
        retention_months: What the header of a new file states; 0 for no limit.

    Raises:
        SettingsError: If another process has locked the file, if it is not an audit log, or if it
            belongs to another secret.
        StorageError: If the disk is full.
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path, key: bytes, after: ChainEnd, retention_months: int = 0) -> None:
        self.path = path
        self._key = key
        self._retention_months = retention_months
        self.end = after
        self._has_partial_write = False
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._descriptor, path)
            self._size, torn = _size_of_lines(self._descriptor)
            if self._size == 0 and _HEADER_START.startswith(torn[: len(_HEADER_START)]):
                self._start()
                self._repair(torn)
            else:
                self._continue(torn)
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
            line, end = _encode_line({"time": _now(), **record}, end, self._key)
            lines.append(line)
        with storage_errors(self.path):
            self._write(b"".join(lines))
        self.end = end

    def check_writable(self) -> None:
        """Writes _TRIAL_BYTES to a temporary file beside the log, of which readers see nothing.

        Raises:
            StorageError: As `append`.
            OSError: If the folder cannot be written; the log then cannot be rotated either.
        """
        self._check_unmodified()
        with storage_errors(self.path), TemporaryFile(dir=self.path.resolve().parent) as trial:
            if self._has_partial_write:
                self._truncate()
            trial.write(bytes(_TRIAL_BYTES))
            trial.flush()
            os.fdatasync(trial.fileno())

    def is_rotated(self) -> bool:
        """True if the file was renamed and its path is now missing or an empty file."""
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

    def _start(self) -> None:
        self._truncate()  # an incomplete header
        header = {
            "kind": HEADER, "format": _FORMAT, "secret_id": _key_id(self._key),
            "retention_months": self._retention_months,
        }  # fmt: skip
        self.append([header])
        sync_folder(self.path.parent)

    def _continue(self, torn: bytes) -> None:
        try:
            head = os.pread(self._descriptor, _MAX_LINE_BYTES, 0)
            _decode_line(head[: head.find(b"\n") + 1], self._key)
            start = max(0, self._size - _MAX_LINE_BYTES)
            tail = os.pread(self._descriptor, self._size - start, start)
            last = tail[tail.rfind(b"\n", 0, -1) + 1 :]
            self.end = _end_after(_decode_line(last, self._key))
        except ValueError as error:
            raise SettingsError(
                f"{self.path}: cannot continue this audit log ({error}); "
                "check it with eulerlora audit verify, or choose another file"
            ) from error
        self._repair(torn)

    def _repair(self, torn: bytes) -> None:
        if torn:
            os.ftruncate(self._descriptor, self._size)
            digest = hashlib.sha256(torn).hexdigest()
            self.append([{"kind": REPAIR, "bytes": len(torn), "sha256": digest}])
            logger.warning("%s: removed an incomplete last line and recorded the repair", self.path)

    def _check_unmodified(self) -> None:
        with suppress(FileNotFoundError):
            opened = os.fstat(self._descriptor)
            if not os.path.samestat(opened, self.path.stat()):
                raise StorageError(self.path, "was replaced by another file")
            if opened.st_size != self._size and not self._has_partial_write:
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
            with suppress(OSError):  # otherwise the next write does it
                self._truncate()
            raise
        self._size = position

    def _truncate(self) -> None:
        self._has_partial_write = True
        os.ftruncate(self._descriptor, self._size)
        self._has_partial_write = False


def _lock(descriptor: int, path: Path) -> None:
    """Locks the file until the descriptor is closed or the process ends."""
    locked = lock(descriptor)
    if locked is None:  # two services would overwrite the lines of each other
        raise SettingsError(f"{path}: expected a file system with locks for the audit log")
    if not locked:
        raise SettingsError(f"{path}: is in use by another process")


def _size_of_lines(descriptor: int) -> tuple[int, bytes]:
    """The size of all whole lines, and the bytes after them."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - _MAX_LINE_BYTES)
    whole, newline, torn = os.pread(descriptor, size - start, start).rpartition(b"\n")
    return start + len(whole) + len(newline), torn


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


class ChainError(EulerLoRAError):
    """A line of an audit file is not the next one of the chain."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}: line {line}: {reason}")


def audit_files(folder: Path) -> list[Path]:
    """The audit files in a folder, of any format; other files are left out."""
    return [path for path in sorted(folder.iterdir()) if _is_audit_file(path)]


def _is_audit_file(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_FILE_START)) == _FILE_START


def newest_records(path: Path, key: bytes, part: bytes) -> Iterator[Record]:
    """Yields the records whose lines contain `part`, the last one first, while the log grows.

    Reads the files of the key in the folder of the log, the newest first (`oldest_first`), and
    leaves out those that this process may not read, and lines that were changed. Memory is bounded
    by a block and a line.

    Args:
        path: The log; rotated files are beside it.
        key: Of the chain.
        part: Of a line.

    Raises:
        OSError: If a file cannot be read to its start.
    """
    files = {}
    for other in path.parent.iterdir():
        with suppress(ChainError, PermissionError, FileNotFoundError):
            if _is_audit_file(other):
                files[other] = LogFile.of(_header(other, key), _last_mac(other))
    for file in reversed(oldest_first(files)):
        for line in _lines_with(file, part):
            with suppress(ValueError):
                yield _decode_line(line, key)


def _last_mac(path: Path) -> str:
    """The `mac` of the last whole line, unchecked; empty if it has none."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        return str(json.loads(next(_lines_with(path, b"\n")))["mac"])
    return ""


def _lines_with(path: Path, part: bytes) -> Iterator[bytes]:
    """Yields the lines of a file that contain `part`, the last one first."""
    with path.open("rb") as file:
        start, rest = file.seek(0, os.SEEK_END), b""
        while start > 0:
            end, start = start, max(0, start - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(end - start) + rest
            # What precedes the first line end may belong to a line that begins in another block.
            first = 0 if start == 0 else block.find(b"\n") + 1 or len(block)
            rest, lines = block[:first], block[first:]
            if part in lines:
                yield from (line for line in reversed(lines.splitlines(True)) if part in line)


def records(paths: Iterable[Path], key: bytes, after: str = FIRST_PREVIOUS) -> Iterator[Record]:
    """Yields the records of a chain after checking each against the previous one.

    Lines missing at the end of the last file cannot be detected without the expected last `mac`.

    Args:
        paths: All files of the chain, rotated ones and the present one, in any order.
        key: Of the chain.
        after: The `mac` of the line that the first file continues, if earlier files were archived.

    Raises:
        ChainError: At the first invalid line, which is the header of a file if one before it is
            missing.
        OSError: For an unreadable file.
    """
    end: ChainEnd | None = None
    for path in sorted(paths, key=lambda path: _header(path, key)["sequence"]):
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE_BYTES):
                number += 1
                try:
                    record = _decode_line(line, key)
                    _check_kind(record, number)
                    if end is None:
                        _check_start(record, after)
                    else:
                        _check_next(record, end)
                except ValueError as error:
                    raise ChainError(path, number, str(error)) from error
                end = _end_after(record)
                yield record


def _header(path: Path, key: bytes) -> Record:
    try:
        with path.open("rb") as file:
            line = file.readline(_MAX_LINE_BYTES)
        if not line:
            raise ValueError("expected a header, got an empty file")
        record = _decode_line(line, key)
        _check_kind(record, 1)
    except ValueError as error:
        raise ChainError(path, 1, str(error)) from error
    return record


def _check_kind(record: Record, number: int) -> None:
    if (record["kind"] == HEADER) != (number == 1):
        raise ValueError(
            "expected a header as the first line of a file and nowhere else, got a record of kind "
            f"{record['kind']}"
        )


def _check_start(record: Record, after: str) -> None:
    if record["previous"] != after:
        expected = "the start of a chain" if after == FIRST_PREVIOUS else f"the line after {after}"
        raise ValueError(
            f"expected {expected}, got line {record['sequence']:,} of a chain: a file before this "
            "one is missing"
        )


def _check_next(record: Record, end: ChainEnd) -> None:
    if (record["sequence"], record["previous"]) != (end.lines, end.mac):
        raise ValueError(
            f"expected line {end.lines:,} of the chain, got line {record['sequence']:,} of it or "
            "of another one: lines or files before this one are missing, or were inserted"
        )
