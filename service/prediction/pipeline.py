"""The path of a request: upload -> reservation -> pixels -> network output -> prediction."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from fastapi import Request

from eulerlora.sampling.adaptive import StoppingRule
from eulerlora_client.contract.answers import Disposition, Prediction, ProblemDocument
from eulerlora_client.contract.problems import DeadlinePassed, Overloaded, Problem
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
from service.prediction.images import RequestImage, images_of
from service.prediction.request import (
    PredictRequest,
    check_mode,
    requested_samples,
    rule_of,
)
from service.prediction.rounds import AdaptiveRounds, SampledResult
from service.scheduling.clients import Flow, client_of
from service.scheduling.decoding_slots import Charge, DecodingSlots
from service.settings import ServiceSettings
from service.telemetry.logs import request_id_of
from service.telemetry.metrics import Timing
from service.telemetry.shift_monitor import ShiftMonitors

HIGH_UTILIZATION = 0.5  # with `fewer_samples`, requests get fewer samples above this


class Pipeline:
    """Answers requests with the served models; for use in one event loop.

    slots: grants the decoder to images. queue: reserves the capacity of every request. shift: gets
    every prediction, and adds a warning after an alarm. on_prediction: called with every
    prediction, and its disposition if a policy was applied. on_problem: called with the code of
    every problem of an image in a batch. audit: records every prediction before it is returned, if
    given.
    """

    def __init__(
        self,
        models: ServedModels,
        settings: ServiceSettings,
        decoder: Decoder,
        slots: DecodingSlots,
        queue: RequestQueue,
        shift: ShiftMonitors,
        on_prediction: Callable[[Prediction, Timing, Disposition | None], None],
        on_problem: Callable[[str], None],
        audit: AuditLog | None = None,
    ) -> None:
        self._models = models
        self._settings = settings
        self._decoder = decoder
        self._slots = slots
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
        return await self._answered(request, valid, await read_file(request))

    async def predict_upload(
        self, request: Request, query: PredictQuery, upload: Upload
    ) -> Predicted:
        """Returns the prediction for the image of a request whose body has been read.

        Raises as `predict`.
        """
        return await self._answered(request, self._validated(request, query), upload)

    async def _answered(self, request: Request, valid: PredictRequest, upload: Upload) -> Predicted:
        images = images_of([upload], self._settings.images)
        del upload  # freed once the image is decoded
        accepted = self._accepted(valid)
        with self._reserve(accepted, images) as (ticket,):
            async with while_connected(request):
                return await self._predicted(images.pop(), accepted, ticket)

    async def predict_batch(
        self, request: Request, query: PredictQuery, policy: Policy | None = None
    ) -> list[Predicted | ProblemDocument]:
        """Returns a prediction or a problem for every image of a request, in order.

        Raises Problem if the request as a whole fails, and ClientDisconnect.
        """
        valid = self._validated(request, query, policy)
        uploads = await read_files(request, self._settings.bodies.max_files)
        images = images_of(uploads, self._settings.images)
        uploads.clear()
        accepted = self._accepted(valid)
        with self._reserve(accepted, images) as tickets:
            async with while_connected(request):
                results = await asyncio.gather(
                    *(
                        self._predicted(images.pop(0), replace(accepted, index=index), ticket)
                        for index, ticket in enumerate(tickets)
                    ),
                    return_exceptions=True,
                )
        batch = [
            batch_result(result, accepted.request_id, index) for index, result in enumerate(results)
        ]
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
        check_mode(query, served)
        return PredictRequest(
            query=query,
            served=served,
            samples=requested_samples(query),
            request_id=request_id_of(request),
            client=getattr(request.state, "client", None),
            policy=policy,
            flow=Flow(client_of(request.scope)),
            warnings=self._shift.warnings(served.name, served.revision),
        )

    def _accepted(self, request: PredictRequest) -> PredictRequest:
        """Returns the request with a deadline, and under load with fewer samples if allowed.

        Call it when the body is complete, so that a slow upload does not use up the deadline.
        """
        now = time.monotonic()
        request = replace(request, accepted_at=now, deadline=now + self._settings.deadline_s)
        used = self._queue.utilization(request.flow)
        busy = self._settings.fewer_samples and used > HIGH_UTILIZATION
        return request.with_fewer_samples() if busy else request

    def _reserve(
        self, request: PredictRequest, images: Sequence[RequestImage]
    ) -> AbstractContextManager[list[Ticket]]:
        """Returns the reservation of a ticket for every image.

        Raises Overloaded if they cannot be decoded before the deadline.
        """
        decoding_s = self._slots.wait_s(request.flow, sum(image.estimated_s for image in images))
        if decoding_s > self._settings.deadline_s:
            raise Overloaded("decoding the images takes longer than the deadline", decoding_s)
        engine = request.served.engine
        rows = self._rounds.rows(engine, request.samples)
        return self._queue.reserve(request.flow, engine, rows, len(images))

    async def _predicted(
        self, image: RequestImage, request: PredictRequest, ticket: Ticket
    ) -> Predicted:
        if isinstance(image.header, Problem):
            raise image.header
        decoded = await self._decoded(image, request)
        waited_s = max(0.0, time.monotonic() - request.accepted_at - decoded.decode_s)
        content = b"" if self._audit is None else image.upload.content
        del image  # frees the file while the request is queued, unless the audit log needs it
        seed = decoded.content_seed if request.query.seed is None else request.query.seed
        item = InferenceItem(decoded.pixels, request.draw(seed))
        sampled = await self._sampled(request, item, rule_of(request, decoded.quality), ticket)
        prediction = prediction_of(sampled, request, decoded.warnings)
        triage = triage_decision(request.policy, prediction, decoded.quality)
        decision = None if triage is None else triage.decision
        if self._audit is not None:
            await self._audit.record(
                AuditEntry(prediction, request.client, content, decision, request.query.samples)
            )
        queued_s = waited_s + sampled.result.queued_s
        timing = Timing(decoded.decode_s, queued_s, sampled.result.ran_s)
        self._shift.record(prediction)
        self._on_prediction(prediction, timing, None if decision is None else decision.disposition)
        return Predicted(prediction, timing, triage)

    async def _decoded(self, image: RequestImage, request: PredictRequest) -> Decoded:
        """Returns the pixels of an image.

        Raises DeadlinePassed, and as `DecodingSlots.run` and `Decoder.decode`.
        """
        served, upload = request.served, image.upload
        preprocessing = served.model.config.preprocessing
        measures_quality = request.policy is not None

        async def decode(charge: Charge) -> Decoded:
            return await self._decoder.decode(
                upload.content,
                upload.declared,
                preprocessing,
                served.revision,
                measures_quality,
                on_cpu_s=charge,
            )

        try:
            async with asyncio.timeout(request.deadline - time.monotonic()) as timeout:
                return await self._slots.run(request.flow, image.estimated_s, decode)
        except TimeoutError as error:
            if timeout.expired():
                raise DeadlinePassed("the deadline passed before the image was decoded") from error
            raise

    async def _sampled(
        self, request: PredictRequest, item: InferenceItem, rule: StoppingRule, ticket: Ticket
    ) -> SampledResult:
        if not request.adaptive:
            return await self._rounds.run(item, request.deadline, ticket)
        return await self._rounds.run_adaptive(
            item, rule, request.deadline, ticket, request.det_first
        )
