"""The audit log: every decision is on the disk before its response is sent.

It contains no image, only a keyed hash of each. The secret has a key for these hashes and another
one for the chain: uploaders choose what the former is applied to.
"""

import asyncio
import hashlib
import hmac
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from eulerlora_contract.answers import Prediction
from eulerlora_contract.errors import EulerLoRAError, SettingsError
from eulerlora_contract.policy import policy
from eulerlora_contract.problems import AuditUnavailable
from eulerlora_contract.sampling import Auto
from service.audit.file import DECISION, AuditFile, ChainEnd, Record
from service.auth.keys import warn_if_world_readable

_VARIABLE = "EULERLORA_AUDIT_SECRET"
_MIN_BYTES = 32
TRIAL_INTERVAL_S = 5.0  # of a log that cannot be written
_RECORDED_FIELDS = {
    "request_id",
    "item_id",
    "model",
    "revision",
    "mode",
    "samples",
    "views",
    "rows",
    "seed",
    "label",
    "probabilities",
    "entropy",
    "mutual_information",
    "msp",
    "ood",
    "unfamiliar",
}
logger = logging.getLogger(__name__)


def read_secret(file: Path | None, environment: Mapping[str, str]) -> bytes:
    """Returns the secret from a file, or from EULERLORA_AUDIT_SECRET if no file is given.

    Strips trailing line ends.

    Raises:
        SettingsError: For an unreadable file, and for fewer than 32 bytes.
    """
    if file is None:
        source, secret = (
            _VARIABLE,
            environment.get(_VARIABLE, "").encode("utf-8", "surrogateescape"),
        )
    else:
        source = str(file)
        try:
            secret = file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{file}: cannot read the secret ({error.strerror})") from error
        warn_if_world_readable(file)
    secret = secret.rstrip(b"\r\n")
    if len(secret) < _MIN_BYTES:
        raise SettingsError(
            f"{source}: expected an audit secret of at least {_MIN_BYTES} bytes, got "
            f"{len(secret)}; create one with: openssl rand -hex 32"
        )
    return secret


def chain_key(secret: bytes) -> bytes:
    """Returns the key of the chain of lines."""
    return hmac.digest(secret, b"eulerlora audit chain", hashlib.sha256)


def image_hash(secret: bytes, content: bytes) -> str:
    """Returns the HMAC-SHA-256 of an image file as uploaded, in hex.

    Without the secret, nobody can check whether a given image is in the log.
    """
    key = hmac.digest(secret, b"eulerlora audit image", hashlib.sha256)
    return hmac.digest(key, content, hashlib.sha256).hex()


@dataclass(frozen=True)
class AuditEntry:
    """A prediction and the uploaded image file.

    Attributes:
        key_name: The name of the API key; None without keys.
        triage: The decision of the triage policy, if one was applied.
        samples_asked: The requested number of samples; None if the request did not set it.
    """

    prediction: Prediction
    key_name: str | None
    image: bytes
    triage: policy.Decision | None = None
    samples_asked: int | Auto | None = None


@dataclass(frozen=True, eq=False)
class _PendingEntry:
    entry: AuditEntry
    written: "Future[None]" = field(default_factory=Future)


class AuditLog:
    """Writes entries to a file in order of arrival, in a dedicated thread.

    Entries that arrive during a write are written and synced together. A context manager: the
    thread runs within the block; on exit it writes the pending entries.

    Args:
        secret: Of the chain and of the image hashes.

    Raises:
        SettingsError: As `AuditFile`, at construction.
        StorageError: As `AuditFile`, at construction.
    """

    def __init__(self, path: Path, secret: bytes) -> None:
        self._path = path
        self._secret = secret
        self._file = self._open_file(ChainEnd())
        self._queue: SimpleQueue[_PendingEntry | None] = SimpleQueue()
        self._is_writable = True
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    @property
    def is_writable(self) -> bool:
        """False after the file or disk has failed, until a write or a trial succeeds."""
        return self._is_writable

    async def record(self, entry: AuditEntry) -> None:
        """Returns when the entry is in the log.

        Cancelling the call before the write starts drops the entry. After a failure, writing is
        tried again with the next entry, and every TRIAL_INTERVAL_S without one.

        Raises:
            AuditUnavailable: If writing fails.
        """
        pending = _PendingEntry(entry)
        self._queue.put(pending)
        await asyncio.wrap_future(pending.written)

    def _open_file(self, after: ChainEnd) -> AuditFile:
        return AuditFile(self._path, chain_key(self._secret), after)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            taken = self._take_all()
            stopping = None in taken
            batch = [
                pending
                for pending in taken
                if pending and pending.written.set_running_or_notify_cancel()
            ]
            if batch:
                self._write_batch(batch)
            elif not taken:
                self._try_file()

    def _take_all(self) -> list[_PendingEntry | None]:
        """Returns all queued entries; waits for one if the queue is empty.

        None means stop.

        Returns:
            [] if the log cannot be written and no entry arrives within TRIAL_INTERVAL_S.
        """
        taken: list[_PendingEntry | None] = []
        try:
            taken.append(self._queue.get(timeout=None if self._is_writable else TRIAL_INTERVAL_S))
            while True:
                taken.append(self._queue.get_nowait())
        except Empty:
            return taken

    def _write_batch(self, batch: list[_PendingEntry]) -> None:
        try:
            self._rotate()
            self._file.append([self._record_of(pending.entry) for pending in batch])
        except Exception as error:  # no response may be sent unrecorded, whatever the error is
            self._note_outcome(error)
            for pending in batch:
                problem = AuditUnavailable("the decision cannot be recorded and is not returned")
                pending.written.set_exception(problem)
        else:
            self._note_outcome(None)
            for pending in batch:
                pending.written.set_result(None)

    def _try_file(self) -> None:
        try:
            self._rotate()
            self._file.check_writable()
        except (OSError, EulerLoRAError) as error:
            self._note_outcome(error)
        else:
            self._note_outcome(None)

    def _rotate(self) -> None:
        """After a rotation, opens a new file that continues the chain."""
        if self._file.is_rotated():
            successor = self._open_file(self._file.end)
            self._file.close()
            self._file = successor
            logger.info("%s: rotated; a new file continues the chain", successor.path)

    def _record_of(self, entry: AuditEntry) -> Record:
        return {
            "kind": DECISION,
            "client": entry.key_name,
            "image": image_hash(self._secret, entry.image),
            "warnings": len(entry.prediction.warnings),
            "samples_asked": entry.samples_asked,
            **entry.prediction.model_dump(mode="json", include=_RECORDED_FIELDS),
            "triage": entry.triage and asdict(entry.triage),
        }

    def _note_outcome(self, error: Exception | None) -> None:
        """Stores whether the file can be written; logs a change, and every defect of an entry."""
        if error and not isinstance(error, (OSError, EulerLoRAError)):
            logger.error("cannot record a decision", exc_info=error)
            return
        if error and self._is_writable:
            logger.error("cannot write the audit log: %s", error)
        if not error and not self._is_writable:
            logger.info("the audit log is writable again")
        self._is_writable = error is None
