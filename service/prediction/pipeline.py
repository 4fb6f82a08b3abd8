"""The path of a request: upload -> reservation -> pixels -> network output -> prediction."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from fastapi import Request

from eulerlora.settings import AUTO
from eulerlora_client.contract.predictions import Prediction, ProblemDocument
from eulerlora_client.contract.problems import DeadlinePassed, InvalidUpload
from eulerlora_client.contract.queries import PredictQuery
from eulerlora_client.policy.policy import Policy
from service.audit.log import AuditEntry, AuditLog
from service.decoding.pool import Decoded, Decoder
from service.http.disconnect import while_connected
from service.http.upload import Upload, read_file, read_files
from service.inference.engine import InferenceItem
from service.inference.models import ServedModels
from service.inference.queue import RequestQueue
from service.inference.ticket import Ticket
from service.prediction.answer import (
    Predicted,
    batch_result,
    prediction_of,
    triage_decision,
)
from service.prediction.request import PredictRequest, requested_samples
from service.prediction.rounds import AdaptiveRounds, SampledResult
from service.settings import ServiceSettings
from service.telemetry.events import Timing
from service.telemetry.request_id import request_id_of
from service.telemetry.shift_monitor import ShiftMonitors

HIGH_UTILIZATION = 0.5  # with `fewer_samples`, requests get fewer samples above this


class Pipeline:
    """Answers requests with the served models; for use in one event loop.

    queue: reserves the capacity of every request. shift: gets every prediction, and adds a warning
    after an alarm. on_prediction: called with every prediction.
    on_problem: called with the code of every problem of an image in a batch. audit: records every
    prediction before it is returned, if given.
    """

    def __init__(
        self,
        models: ServedModels,
        settings: ServiceSettings,
        decoder: Decoder,
        queue: RequestQueue,
        shift: ShiftMonitors,
        on_prediction: Callable[[Prediction, Timing], None],
        on_problem: Callable[[str], None],
        audit: AuditLog | None = None,
    ) -> None:
        self._models = models
        self._settings = settings
        self._decoder = decoder
        self._queue = queue
        self._rounds = AdaptiveRounds(queue)
        self._shift = shift
        self._on_prediction = on_prediction
        self._on_problem = on_problem
        self._audit = audit

    async def predict(
        self, request: Request, query: PredictQuery, policy: Policy | None = None
    ) -> Predicted:
        """Returns the prediction for the one image of a request; with `triage` for a policy.

        Raises Problem and ClientDisconnect, and PolicyError as `Policy.decide`.
        """
        valid = self._validated(request, query, policy)
        uploads = [await read_file(request)]
        accepted = self._accepted(valid)
        with self._queue.reserve(accepted.served.engine, self._rows(accepted)) as (ticket,):
            async with while_connected(request):
                return await self._predicted(uploads.pop(), accepted, ticket)

    async def predict_batch(
        self, request: Request, query: PredictQuery
    ) -> list[Predicted | ProblemDocument]:
        """Returns a prediction or a problem for every image of a request, in order.

        Raises Problem if the request as a whole fails, and ClientDisconnect.
        """
        valid = self._validated(request, query)
        uploads = await read_files(request, self._settings.bodies.max_files)
        accepted = self._accepted(valid)
        engine, rows = accepted.served.engine, self._rows(accepted)
        with self._queue.reserve(engine, rows, len(uploads)) as tickets:
            async with while_connected(request):
                results = await asyncio.gather(
                    *(self._predicted(uploads.pop(0), accepted, ticket) for ticket in tickets),
                    return_exceptions=True,
                )
        batch = [batch_result(result, accepted.request_id) for result in results]
        for result in batch:
            if isinstance(result, ProblemDocument):
                self._on_problem(result.code)
        return batch

    def _validated(
        self, request: Request, query: PredictQuery, policy: Policy | None = None
    ) -> PredictRequest:
        """Returns the validated request; the body has not been read yet.

        Raises UnknownModel and InvalidParameter.
        """
        served = self._models.named(query.model)
        return PredictRequest(
            query=query,
            served=served,
            samples=requested_samples(query),
            request_id=request_id_of(request),
            client=getattr(request.state, "client", None),
            policy=policy,
            warnings=self._shift.warnings(served.name, served.revision),
        )

    def _accepted(self, request: PredictRequest) -> PredictRequest:
        """Returns the request with a deadline, and under load with fewer samples if allowed.

        Call it when the body is complete, so that a slow upload does not use up the deadline.
        """
        request = replace(request, deadline=time.monotonic() + self._settings.deadline_s)
        busy = self._settings.fewer_samples and self._queue.utilization() > HIGH_UTILIZATION
        return request.with_fewer_samples() if busy else request

    def _rows(self, request: PredictRequest) -> int:
        """Returns the rows to reserve for every image."""
        return self._rounds.rows(request.served.engine, request.samples)

    async def _predicted(
        self, upload: Upload, request: PredictRequest, ticket: Ticket
    ) -> Predicted:
        if not upload.content:
            raise InvalidUpload("the file is empty")
        decoded = await self._decoded(upload, request)
        content = b"" if self._audit is None else upload.content
        del upload  # frees the file while the request is queued, unless the audit log needs it
        seed = decoded.content_seed if request.query.seed is None else request.query.seed
        item = InferenceItem(decoded.pixels, request.draw(seed))
        sampled = await self._sampled(request, item, ticket)
        prediction = prediction_of(sampled, request, decoded.warnings)
        triage = triage_decision(request.policy, prediction, decoded.quality)
        if self._audit is not None:
            decision = None if triage is None else triage.decision
            await self._audit.record(
                AuditEntry(prediction, request.client, content, decision, request.query.samples)
            )
        timing = Timing(decoded.decode_s, sampled.result.queued_s, sampled.result.ran_s)
        self._shift.record(prediction)
        self._on_prediction(prediction, timing)
        return Predicted(prediction, timing, triage)

    async def _decoded(self, upload: Upload, request: PredictRequest) -> Decoded:
        """Returns the pixels of the upload. Raises DeadlinePassed, and as `Decoder.decode`."""
        served = request.served
        size = served.model.config.preprocessing.size
        measures_quality = request.policy is not None
        try:
            async with asyncio.timeout(request.deadline - time.monotonic()) as timeout:
                return await self._decoder.decode(
                    upload.content, upload.declared, size, served.revision, measures_quality
                )
        except TimeoutError as error:
            if timeout.expired():
                raise DeadlinePassed("the deadline passed before the image was decoded") from error
            raise

    async def _sampled(
        self, request: PredictRequest, item: InferenceItem, ticket: Ticket
    ) -> SampledResult:
        if request.samples != AUTO:
            return await self._rounds.run(item, request.deadline, ticket)
        threshold = request.served.model.config.convergence_threshold()
        return await self._rounds.run_adaptive(item, threshold, request.deadline, ticket)
