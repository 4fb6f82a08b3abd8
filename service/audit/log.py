"""The audit log: a decision is on the disk before its answer is sent, or there is no answer."""

import asyncio
import logging
import threading
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from eulerlora.errors import EulerLoRAError
from eulerlora.settings import Auto, Settings
from eulerlora_client.contract.problems import AuditUnavailable
from eulerlora_client.policy import policy
from service.audit.chain import DECISION, Link, Record
from service.audit.file import AuditFile
from service.audit.secret import image_hash, secret_id
from service.schemas import PredictionBody

RECORDED = {
    "request_id",
    "model",
    "revision",
    "mode",
    "samples",
    "seed",
    "label",
    "probabilities",
    "entropy",
    "mutual_information",
    "msp",
    "ood",
}

logger = logging.getLogger(__name__)


class AuditSettings(Settings):
    """Where decisions are recorded.

    secret_file: holds the secret of the image hashes; EULERLORA_AUDIT_SECRET where None.
    sync: wait for the disk, so that a record also outlives a power cut.
    """

    file: Path
    secret_file: Path | None = None
    sync: bool = True


@dataclass(frozen=True)
class Decision:
    """An answer, who gets it (None where there are no keys), and the file that it is about.

    triage: what a policy said of it, where one was asked. samples_asked: None where the request
    left their number open.
    """

    prediction: PredictionBody
    client: str | None
    image: bytes
    triage: policy.Decision | None = None
    samples_asked: int | Auto | None = None


@dataclass(frozen=True, eq=False)
class _Waiting:
    decision: Decision
    written: "Future[None]" = field(default_factory=Future)


class AuditLog:
    """Writes decisions in the order in which they come, in a thread of its own.

    While the disk is busy with some, others gather, and are written and waited for together.
    Raises what AuditFile raises where the file cannot be had at the start. A context manager:
    within the block the thread runs; at its end what waits is still written.
    """

    def __init__(self, settings: AuditSettings, secret: bytes) -> None:
        self._settings = settings
        self._secret = secret
        self._file = self._opened(Link())
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    async def record(self, decision: Decision) -> None:
        """Returns when the decision is in the log. Raises AuditUnavailable where it cannot be.

        The next decision is tried again. One whose client has left before it was written is not.
        """
        waiting = _Waiting(decision)
        self._queue.put(waiting)
        await asyncio.wrap_future(waiting.written)

    def _opened(self, after: Link) -> AuditFile:
        settings = self._settings
        return AuditFile(settings.file, secret_id(self._secret), settings.sync, after)

    def _work(self) -> None:
        ending = False
        while not ending:
            gathered = self._gathered()
            ending = None in gathered
            batch = [
                each for each in gathered if each and each.written.set_running_or_notify_cancel()
            ]
            if batch:
                self._settle(batch)

    def _gathered(self) -> list[_Waiting | None]:
        """What waits now; waits for one where nothing does."""
        gathered = [self._queue.get()]
        try:
            while True:
                gathered.append(self._queue.get_nowait())
        except Empty:
            return gathered

    def _settle(self, batch: list[_Waiting]) -> None:
        try:
            self._write([self._record_of(each.decision) for each in batch])
        except Exception as error:  # whatever it is, nothing is answered unrecorded
            self._tell(error)
            for each in batch:
                refusal = AuditUnavailable("the decision cannot be recorded, so it is not given")
                each.written.set_exception(refusal)
        else:
            self._tell(None)
            for each in batch:
                each.written.set_result(None)

    def _write(self, records: list[Record]) -> None:
        """Adds to the file, or to a new one that takes up the chain where it was moved away."""
        if self._file.moved_away():
            successor = self._opened(self._file.link)
            self._file.close()
            self._file = successor
            logger.info("%s: moved away; a new file takes up its chain", successor.path)
        self._file.append(records)

    def _record_of(self, decision: Decision) -> Record:
        return {
            "kind": DECISION,
            "client": decision.client,
            "image": image_hash(self._secret, decision.image),
            "warnings": len(decision.prediction.warnings),
            "samples_asked": decision.samples_asked,
            **decision.prediction.model_dump(mode="json", include=RECORDED),
            "triage": decision.triage and asdict(decision.triage),
        }

    def _tell(self, error: Exception | None) -> None:
        """Logs when writing begins to fail and when it works again, not every time."""
        if error and not self._failing:
            expected = isinstance(error, (OSError, EulerLoRAError))
            logger.error("the audit log: %s", error, exc_info=None if expected else error)
        if self._failing and not error:
            logger.info("the audit log can be written again")
        self._failing = error is not None
