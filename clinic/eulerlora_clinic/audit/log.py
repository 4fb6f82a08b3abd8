"""The audit log: every answer and decision is on the disk before its response is sent.

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

from eulerlora_clinic.audit.file import (
    ANSWER,
    DECISION,
    AuditFile,
    ChainEnd,
    Record,
    canonical,
    newest_records,
)
from eulerlora_clinic.policy import policy
from eulerlora_contract.answers import Prediction, RecordedDecision, item_id
from eulerlora_contract.errors import EulerLoRAError, SettingsError
from eulerlora_contract.problems import AuditUnavailable, InvalidParameter, UnknownRequest
from eulerlora_contract.sampling import Auto
from service.auth.keys import warn_if_world_readable

SECRET_VARIABLE = "EULERLORA_AUDIT_SECRET"
_MIN_BYTES = 32
_TRIAL_INTERVAL_S = 5.0
_RECORDED_FIELDS = {
    "request_id",
    "item_id",
    "model",
    "revision",
    "mode",
    "samples",
    "sampler",
    "views",
    "precision",
    "runtime",
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


def read_secret(file: Path | None, environment: Mapping[str, str], option: str) -> bytes:
    """The secret from a file, or from EULERLORA_AUDIT_SECRET if no file is given.

    Strips trailing line ends. `option`: that of the program for the file, for the message.

    Raises:
        SettingsError: For an unreadable file, and for fewer than 32 bytes.
    """
    if file is None:
        source, secret = (
            f"{option} FILE or {SECRET_VARIABLE}",
            environment.get(SECRET_VARIABLE, "").encode("utf-8", "surrogateescape"),
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
    """The key of the chain of lines."""
    return hmac.digest(secret, b"eulerlora audit chain", hashlib.sha256)


def image_hash(secret: bytes, content: bytes) -> str:
    """The HMAC-SHA-256 of an image file as uploaded, in hex.

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
        lesion: Equal for the images of a lesion of one request, and for no others; None without.
    """

    prediction: Prediction
    key_name: str | None
    image: bytes
    triage: policy.Decision | None = None
    samples_asked: int | Auto | None = None
    lesion: str | None = None


@dataclass(frozen=True)
class AuditedAnswer:
    """An answer of `/triage` in the log, and what was decided about it so far."""

    answer: Record
    decided: RecordedDecision


@dataclass(frozen=True, eq=False)
class _PendingEntry:
    entry: AuditEntry | Record
    written: "Future[None]" = field(default_factory=Future)


class AuditLog:
    """Writes entries to a file in order of arrival, in a dedicated thread.

    Entries that arrive during a write are written and synced together. A context manager: the
    thread runs within the block; on exit it writes the pending entries.

    Args:
        secret: Of the chain and of the image hashes.
        retention_months: As in `AuditFile`.
        trial_interval_s: Time without entries after which writing is tried.

    Attributes:
        is_writable: False after a write or a trial has failed, until one succeeds.

    Raises:
        SettingsError: As `AuditFile`, at construction.
        StorageError: As `AuditFile`, at construction.
    """

    def __init__(
        self,
        path: Path,
        secret: bytes,
        retention_months: int = 0,
        trial_interval_s: float = _TRIAL_INTERVAL_S,
    ) -> None:
        self._path = path
        self._secret = secret
        self._retention_months = retention_months
        self._trial_interval_s = trial_interval_s
        self._file = self._open_file(ChainEnd())
        self._queue: SimpleQueue[_PendingEntry | None] = SimpleQueue()
        self.is_writable = True
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    async def record(self, entry: AuditEntry | Record) -> None:
        """Returns when the entry, an answer or the record of a decision, is in the log.

        Cancelling the call before the write starts drops the entry. Without entries, writing is
        tried every `trial_interval_s`, so that a full disk is known before a request finds it.

        Raises:
            AuditUnavailable: If writing fails.
        """
        pending = _PendingEntry(entry)
        self._queue.put(pending)
        await asyncio.wrap_future(pending.written)

    async def answered(
        self, request_id: str, index: int | None, client: str | None
    ) -> AuditedAnswer:
        """The last answer of `/triage` to a client with this request id, of this image.

        Reads the log from its end, in a thread.

        Raises:
            UnknownRequest: If there is none.
            InvalidParameter: If it has several images and no index is given.
            AuditUnavailable: If the log cannot be read.
        """
        try:
            return await asyncio.to_thread(self._answered, request_id, index, client)
        except OSError as error:
            logger.error("cannot read the audit log: %s", error)
            raise AuditUnavailable("the answer cannot be looked up") from error

    def _answered(self, request_id: str, index: int | None, client: str | None) -> AuditedAnswer:
        item = None if index is None else item_id(request_id, index)
        part = canonical({"request_id": request_id})[1:-1]
        decisions: list[Record] = []
        for record in newest_records(self._path, chain_key(self._secret), part):
            if record["client"] != client or record["request_id"] != request_id:
                continue
            if record["kind"] == DECISION:
                decisions.append(record)
            elif record["triage"] is not None and item is None and record["item_id"] is not None:
                raise InvalidParameter("index: expected the position of the image in its batch")
            elif record["triage"] is not None and item == record["item_id"]:
                of_item = (one for one in reversed(decisions) if one["answer"] == record["mac"])
                return AuditedAnswer(record, RecordedDecision.of(record, of_item))
        raise UnknownRequest("expected the request id of an answer of /triage to this client")

    def _open_file(self, after: ChainEnd) -> AuditFile:
        return AuditFile(self._path, chain_key(self._secret), after, self._retention_months)

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
        """All queued entries; waits for one if the queue is empty.

        None means stop.

        Returns:
            [] if no entry arrives within `trial_interval_s`.
        """
        taken: list[_PendingEntry | None] = []
        try:
            taken.append(self._queue.get(timeout=self._trial_interval_s))
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
                problem = AuditUnavailable("the answer or decision cannot be recorded")
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

    def _record_of(self, entry: AuditEntry | Record) -> Record:
        if not isinstance(entry, AuditEntry):
            return entry
        return {
            "kind": ANSWER,
            "client": entry.key_name,
            "image": image_hash(self._secret, entry.image),
            "warnings": len(entry.prediction.warnings),
            "samples_asked": entry.samples_asked,
            "lesion": entry.lesion,
            **entry.prediction.model_dump(mode="json", include=_RECORDED_FIELDS),
            "triage": entry.triage and asdict(entry.triage),
        }

    def _note_outcome(self, error: Exception | None) -> None:
        """Stores whether the file can be written; logs a change, and every defect of an entry."""
        if error and not isinstance(error, (OSError, EulerLoRAError)):
            logger.error("cannot write a record", exc_info=error)
            return
        if error and self.is_writable:
            logger.error("cannot write the audit log: %s", error)
        if not error and not self.is_writable:
            logger.info("the audit log is writable again")
        self.is_writable = error is None
