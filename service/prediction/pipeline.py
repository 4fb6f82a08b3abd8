"""One request's way: room -> upload -> ticket -> pixels -> answer -> response body."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastapi import Request

from eulerlora.settings import AUTO
from eulerlora_client.contract.problems import DeadlinePassed, InternalError, InvalidUpload, Problem
from eulerlora_client.policy import policy
from eulerlora_client.contract.triage import ImageQuality
from service.audit.log import AuditEntry, AuditLog
from service.decoding.pool import Decoded, Decoder
from service.http.disconnect import while_connected
from service.http.problem_responses import problem_body
from service.http.upload import Upload, read_file, read_files
from service.inference.engine import InferenceItem
from service.inference.models import ServedModels
from service.inference.queue import RequestQueue
from service.inference.ticket import Ticket
from service.prediction.answer import fewer_samples, prediction_body, samples_of
from service.prediction.request import Asked
from service.prediction.rounds import Asking, Settled
from eulerlora_client.contract.predictions import Prediction, ProblemDocument
from eulerlora_client.contract.queries import PredictQuery
from service.settings import ServiceSettings
from service.telemetry.events import Timing
from service.telemetry.request_id import request_id_of

logger = logging.getLogger(__name__)

STRAINED = 0.5
"""Of a full waiting room: from here on, where it is allowed, questions get fewer samples."""


@dataclass(frozen=True)
class Triaged:
    """A picture's quality, and what a policy says of it and of the prediction."""

    quality: ImageQuality
    decision: policy.Decision


@dataclass(frozen=True)
class Predicted:
    """A response body and how long it took; with `triage` where a policy was to decide."""

    body: Prediction
    timing: Timing
    triage: Triaged | None = None


class Pipeline:
    """Answers requests with the served models; must be used in one event loop.

    answered: told of every prediction. refused: told the code of every problem that one of many
    images has. audit: has every decision before it is given, if there is one.
    """

    def __init__(
        self,
        models: ServedModels,
        settings: ServiceSettings,
        decoder: Decoder,
        queue: RequestQueue,
        answered: Callable[[Prediction, Timing], None],
        refused: Callable[[str], None],
        audit: AuditLog | None = None,
    ) -> None:
        self._models = models
        self._settings = settings
        self._decoder = decoder
        self._queue = queue
        self._asking = Asking(queue)
        self._answered = answered
        self._refused = refused
        self._audit = audit

    async def predict(
        self, request: Request, query: PredictQuery, decider: policy.Policy | None = None
    ) -> Predicted:
        """The answer for the one image of a request; with `triage` where there is a decider.

        Raises Problem and ClientDisconnect, and PolicyError as `Policy.decide`.
        """
        asked = replace(self._asked(request, query), decider=decider)
        uploads = [await read_file(request)]
        asked = self._under_load(asked)
        with self._queue.reserve(asked.served.engine, self._rows(asked)) as (ticket,):
            async with while_connected(request):
                predicted = await self._predicted(uploads.pop(), asked, ticket)
        return predicted

    async def predict_batch(
        self, request: Request, query: PredictQuery
    ) -> list[Predicted | ProblemDocument]:
        """An answer or a problem for each image of a request, in order.

        Raises Problem where the request as a whole cannot be met, and ClientDisconnect.
        """
        asked = self._asked(request, query)
        uploads = await read_files(request, self._settings.bodies.max_files)
        asked = self._under_load(asked)
        rows = self._rows(asked)
        with self._queue.reserve(asked.served.engine, rows, len(uploads)) as tickets:
            async with while_connected(request):
                results = await asyncio.gather(
                    *(self._predicted(uploads.pop(0), asked, ticket) for ticket in tickets),
                    return_exceptions=True,
                )
        outcomes = [outcome(result, asked.request_id) for result in results]
        for each in outcomes:
            if isinstance(each, ProblemDocument):
                self._refused(each.code)
        return outcomes

    def _asked(self, request: Request, query: PredictQuery) -> Asked:
        """What a request asks; raises, before its body is read, where it cannot be answered."""
        served = self._models.named(query.model)
        return Asked(
            query=query,
            served=served,
            samples=samples_of(query),
            deadline=time.monotonic() + self._settings.deadline_s,
            request_id=request_id_of(request),
            client=getattr(request.state, "client", None),
        )

    def _rows(self, asked: Asked) -> int:
        """Rows of each image."""
        return self._asking.rows(asked.served.engine, asked.samples)

    def _under_load(self, asked: Asked) -> Asked:
        """The same with fewer samples, where that is allowed and the queue is long."""
        strained = self._settings.fewer_samples and self._queue.utilization() > STRAINED
        if not strained or asked.query.mode == "det":
            return asked
        samples = fewer_samples(asked.served, asked.samples)
        if samples == asked.samples:
            return asked
        warning = f"samples reduced from {asked.samples} to {samples} under load"
        return replace(asked, samples=samples, warnings=(warning,))

    async def _predicted(self, upload: Upload, asked: Asked, ticket: Ticket) -> Predicted:
        if not upload.content:
            raise InvalidUpload("the file is empty")
        found = await self._decoded(upload, asked)
        image = b"" if self._audit is None else upload.content
        del upload  # its bytes are not kept while the question waits, unless they are recorded
        seed = found.content_seed if asked.query.seed is None else asked.query.seed
        settled = await self._settled(asked, InferenceItem(found.pixels, asked.draw(seed)), ticket)
        answered = settled.answered
        body = prediction_body(
            answered.log_probabilities,
            settled.draw,
            asked.served,
            (*found.warnings, *asked.warnings),
            asked.request_id,
            detailed=asked.query.detail is not None,
            auto=asked.samples == AUTO,
        )
        triage = _triaged(asked.decider, body, found.quality)
        if self._audit is not None:
            decided = None if triage is None else triage.decision
            await self._audit.record(
                AuditEntry(body, asked.client, image, decided, asked.query.samples)
            )
        timing = Timing(found.decode_s, answered.queued_s, answered.ran_s)
        self._answered(body, timing)
        return Predicted(body, timing, triage)

    async def _decoded(self, upload: Upload, asked: Asked) -> Decoded:
        """The upload as pixels. Raises DeadlinePassed, and as `Decoder.decode`."""
        served = asked.served
        size = served.model.config.preprocessing.size
        try:
            async with asyncio.timeout(asked.deadline - time.monotonic()) as end:
                return await self._decoder.decode(
                    upload.content,
                    upload.declared,
                    size,
                    served.revision,
                    asked.decider is not None,
                )
        except TimeoutError as error:
            if end.expired():
                raise DeadlinePassed("the deadline passed before the image was decoded") from error
            raise

    async def _settled(self, asked: Asked, question: InferenceItem, ticket: Ticket) -> Settled:
        if asked.samples != AUTO:
            answered = await self._asking.answer(question, asked.deadline, ticket)
            return Settled(answered, question.draw)
        threshold = asked.served.model.config.convergence_threshold()
        return await self._asking.settle(question, threshold, asked.deadline, ticket)


def _triaged(
    decider: policy.Policy | None, body: Prediction, quality: ImageQuality | None
) -> Triaged | None:
    if decider is None or quality is None:
        return None
    return Triaged(quality, decider.decide(body, quality))


def outcome(result: Predicted | BaseException, request_id: str) -> Predicted | ProblemDocument:
    """What the answer to many images tells of one of them."""
    if isinstance(result, Predicted):
        return result
    if isinstance(result, Problem):
        return problem_body(result, request_id)
    if not isinstance(result, Exception):
        raise result
    logger.error("request %s failed for one image", request_id, exc_info=result)
    return problem_body(InternalError("the failure was logged under the request id"), request_id)
