"""The way of a request: read, admit, decode, infer, answer, record."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from fastapi import Request
from pydantic import BaseModel

from eulerlora.answer import Predictions
from eulerlora.nn.network import FEATURES_PER_WIDTH
from eulerlora.sampling.adaptive import AdaptiveSampling, StoppingRule
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw
from eulerlora_contract.answers import (
    ImageEmbedding,
    ImageQuality,
    Prediction,
    PredictionWarning,
    ProblemDocument,
    item_id,
)
from eulerlora_contract.errors import NonFiniteError, SettingsError
from eulerlora_contract.problems import (
    BodyTooLarge,
    DeadlinePassed,
    InternalError,
    InvalidParameter,
    InvalidUpload,
    ModelFailure,
    Overloaded,
    Problem,
)
from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.sampling import AUTO
from service.decoding.formats import estimated_s, header_of
from service.decoding.messages import DecodedInput, DecodeJob
from service.decoding.pool import DecoderPool
from service.decoding.slots import DecodingSlots
from service.extensions import AnsweredImage, Extension, Interpretation, PredictRequest
from service.fair_sharing import client_of
from service.http.requests import Upload, read_file, read_files, while_connected
from service.http.responses import problem_document
from service.inference.engine import (
    InferenceItem,
    ServedModel,
    ServedModels,
    check_same_input,
)
from service.inference.queue import InferenceResult, RequestQueue, Ticket
from service.settings import ImageSettings, ServiceSettings
from service.telemetry.records import CompletedPrediction

logger = logging.getLogger(__name__)

PREDICTION = Interpretation()
"""That of a route that answers with predictions."""


@dataclass(frozen=True)
class _RequestImage:
    """An uploaded file.

    Attributes:
        index: In a batch.
        pixels: Width times height, from its header.
        estimated_s: CPU seconds to decode it.
        is_estimated: So is the number of pixels.
        problem: Of a file without a header; then the numbers are 0.
    """

    upload: Upload
    index: int | None
    pixels: int = 0
    estimated_s: float = 0.0
    is_estimated: bool = False
    problem: Problem | None = None

    @classmethod
    def of(cls, upload: Upload, index: int | None, limits: ImageSettings) -> Self:
        """Reads the header; nothing is decoded."""
        try:
            if not upload.content:
                raise InvalidUpload("the file is empty")
            header = header_of(upload.content, limits)
        except Problem as problem:
            return cls(upload, index, problem=problem)
        return cls(upload, index, header.pixels, estimated_s(header), header.is_estimated)


class Pipeline:
    """Answers requests with the served models; for use in one event loop.

    Args:
        slots: Grants the decoder to images.
        queue: Reserves the capacity of every request.
        extensions: See every answered image before its response is sent, in this order.
    """

    def __init__(
        self,
        models: ServedModels,
        settings: ServiceSettings,
        decoder: DecoderPool,
        slots: DecodingSlots,
        queue: RequestQueue,
        extensions: Sequence[Extension] = (),
    ) -> None:
        self._models = models
        self._settings = settings
        self._decoder = decoder
        self._slots = slots
        self._queue = queue
        self._extensions = extensions
        self._reads_files = any(extension.reads_files for extension in extensions)

    async def predict(
        self,
        request: Request,
        query: PredictQuery,
        interpretation: Interpretation = PREDICTION,
        upload: Upload | None = None,
    ) -> BaseModel:
        """The response body for the one image of a request: by default, a Prediction.

        Args:
            request: Its body is read unless `upload` is given.
            query: The validated parameters of the request.
            interpretation: Makes the response body of the prediction.
            upload: The image, if the body has been read already.

        Raises:
            Problem: If the request is refused or fails.
            ClientDisconnect: If the client leaves before its body is read.
        """

        async def read(request: Request) -> list[Upload]:
            return [await read_file(request) if upload is None else upload]

        (result,) = await self._run(request, query, interpretation, read)
        if isinstance(result, BaseException):
            raise result
        return result

    async def predict_batch(
        self, request: Request, query: PredictQuery, interpretation: Interpretation = PREDICTION
    ) -> list[BaseModel | ProblemDocument]:
        """A response body or a problem for every image of a request, in order.

        Raises:
            Problem: If the request as a whole fails.
            ClientDisconnect: If the client is gone.
        """

        async def read(request: Request) -> list[Upload]:
            return await read_files(request, self._settings.bodies.max_files)

        results = await self._run(request, query, interpretation, read, is_batch=True)
        request_id = request.state.request_id
        batch = [_batch_result(result, request_id, index) for index, result in enumerate(results)]
        request.state.observation.image_problems += [
            result.code for result in batch if isinstance(result, ProblemDocument)
        ]
        return batch

    async def _run(
        self,
        request: Request,
        query: PredictQuery,
        interpretation: Interpretation,
        read: Callable[[Request], Awaitable[list[Upload]]],
        is_batch: bool = False,
    ) -> list[BaseModel | BaseException]:
        """The way of a request up to its images: the result of each of them."""
        served = self._models.named(query.model)
        interpretation.check_model(served)
        try:  # refuses parameters before the body is read
            options = served.model.options(query.mode, query.samples, views=query.views)
        except SettingsError as error:
            raise InvalidParameter(str(error)) from error

        # Read
        limits = self._settings.images
        images = [
            _RequestImage.of(upload, index if is_batch else None, limits)
            for index, upload in enumerate(await read(request))
        ]
        interpretation.check_images(len(images))
        pixels = sum(image.pixels for image in images)
        if len(images) > 1 and pixels > limits.max_request_pixels:
            raise BodyTooLarge(
                f"expected images of at most {limits.max_request_pixels:,} pixels together; "
                f"these have {pixels:,}"
            )

        # Admit. The deadline starts now, so that a slow upload does not use it up.
        now, client = time.monotonic(), client_of(request.scope)
        accepted = PredictRequest(
            request.state,
            client,
            query,
            interpretation,
            served,
            options,
            accepted_at=now,
            deadline=now + self._settings.deadline_s,
            warnings=tuple(one for each in self._extensions for one in each.warnings(served)),
        )
        decoding_s = self._slots.wait_s(client, sum(image.estimated_s for image in images))
        if decoding_s > self._settings.deadline_s:
            raise Overloaded("decoding the images takes longer than the deadline", decoding_s)
        draw = Draw.of(options)
        rounds = draw.rounds() if options.samples == AUTO else [draw]
        rows = [served.adapters * part.count for part in rounds]
        tickets_rows = [count for count in rows for _ in images]
        with self._queue.reserve(client, served, tickets_rows) as tickets:
            by_image = [tickets[first :: len(images)] for first in range(len(images))]
            async with while_connected(request):
                return await asyncio.gather(
                    *(self._predicted(images.pop(0), accepted, of_image) for of_image in by_image),
                    return_exceptions=True,
                )

    async def _predicted(
        self, image: _RequestImage, request: PredictRequest, tickets: Sequence[Ticket]
    ) -> BaseModel:
        """The rest of the way of a request, for one image. `tickets` has one for each round."""
        interpretation = request.interpretation

        # Decode
        if image.problem is not None:
            raise image.problem
        decoded = await self._decoded(image, request)
        slot_wait_s = max(0.0, time.monotonic() - request.accepted_at - decoded.decode_s)
        index, file = image.index, image.upload.content if self._reads_files else b""
        del image  # frees the file while the request is queued, unless an extension needs it

        # Infer
        seed = decoded.content_seed if request.query.seed is None else request.query.seed
        item = InferenceItem(torch.from_numpy(decoded.pixels), Draw.of(request.options, seed))
        if request.options.samples == AUTO:
            rule = _stopping_rule(interpretation, request.served, decoded.quality)
            result = await _infer_in_rounds(self._queue, item, request.deadline, tickets, rule)
        else:
            (ticket,) = tickets
            result = await infer(self._queue, item, request.deadline, ticket)

        # Answer
        answered = _answered(
            request,
            index,
            file,
            item,
            decoded.warnings,
            decoded.quality,
            result.trajectories,
            result.summary,
        )
        body = interpretation.body(answered)

        # Record
        for extension in self._extensions:
            await extension.answered(answered, body)
        request.state.observation.predictions.append(
            CompletedPrediction(
                request.served.name,
                answered.prediction,
                decode_s=decoded.decode_s,
                queue_s=slot_wait_s + result.queued_s,
                model_s=result.ran_s,
            )
        )
        return body

    async def _decoded(self, image: _RequestImage, request: PredictRequest) -> DecodedInput:
        """Decodes an image.

        Raises:
            DeadlinePassed: If the deadline passes before it is decoded.
            Problem: As `DecodingSlots.run` and `DecoderPool.decode`.
        """
        served, upload = request.served, image.upload
        job = DecodeJob(
            upload.content,
            upload.declared,
            served.model.config.preprocessing,
            served.sampling_digest,
            with_quality=request.interpretation.needs_quality,
            pixels=None if image.is_estimated else image.pixels,
        )
        decode = partial(self._decoder.decode, job, client=request.client)
        try:
            async with asyncio.timeout(request.deadline - time.monotonic()) as timeout:
                return await self._slots.run(request.client, image.estimated_s, decode)
        except TimeoutError as error:
            if timeout.expired():
                raise DeadlinePassed("the deadline passed before the image was decoded") from error
            raise


async def infer(
    queue: RequestQueue,
    item: InferenceItem,
    deadline: float,
    ticket: Ticket,
    queued_at: float | None = None,
) -> InferenceResult:
    """Runs an item on a reserved ticket of the queue.

    `deadline` is on the monotonic clock; `queued_at` is as in `RequestQueue.enqueue`.

    Raises:
        DeadlinePassed: If its pass has not started by the deadline.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    ticket.future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
    # Cancelling has no effect on an item that already runs: it is finished.
    timer = loop.call_later(deadline - time.monotonic(), ticket.future.cancel)
    try:
        queue.enqueue(ticket, item, deadline, queued_at)
        await done.wait()
    finally:
        timer.cancel()
    if ticket.future.cancelled():
        raise DeadlinePassed("the deadline passed while the request was queued")
    return ticket.future.result()


async def _infer_in_rounds(
    queue: RequestQueue,
    item: InferenceItem,
    deadline: float,
    tickets: Sequence[Ticket],
    rule: StoppingRule,
) -> InferenceResult:
    """Runs the rounds of `samples=auto` for an item until its decisions are settled.

    Every round is queued at the position of the first one. `tickets` has one for each round; those
    of rounds that do not run are released. The deadline is as in `infer`; a result from fewer
    rounds would depend on the load. The rule is as in `AdaptiveSampling`.
    """
    queued_at = time.monotonic()
    sampling = AdaptiveSampling(item.draw, rule, tickets[0].served.model.feature_distance)
    results: list[InferenceResult] = []
    for ticket in tickets:
        if sampling.next_draw is None:
            queue.release(ticket)
        else:
            round_item = replace(item, draw=sampling.next_draw)
            results.append(await infer(queue, round_item, deadline, ticket, queued_at))
            sampling.add(results[-1].trajectories)
    ran_s = sum(result.ran_s for result in results)
    queued_s = results[-1].queued_s - (ran_s - results[-1].ran_s)  # counts from the first round
    return InferenceResult(sampling.trajectories, queued_s, ran_s, sampling.summary)


def answer_again(answered: AnsweredImage, served: ServedModel) -> AnsweredImage:
    """The answer of another model with the same input, to the same question.

    Raises:
        SettingsError: If the model has another input, or cannot answer with these options.
        Problem: As `Pipeline.predict`.
    """
    request, item, quality = answered.request, answered.item, answered.quality
    query = request.query
    check_same_input(served, request.served)
    request.interpretation.check_model(served)
    options = served.model.options(query.mode, query.samples, views=query.views)
    asked = replace(request, served=served, options=options, warnings=())
    rule = _stopping_rule(request.interpretation, served, quality)
    (trajectories,) = served.model.run([(item.pixels, item.draw.seed)], [options], rule=rule)
    return _answered(asked, None, b"", item, (), quality, trajectories)


def _stopping_rule(
    interpretation: Interpretation, served: ServedModel, quality: ImageQuality | None
) -> StoppingRule:
    """When the rounds of `samples=auto` end."""
    rule = served.model.config.stopping_rule(served.model.precision)
    return interpretation.stopping_rule(rule, served, quality)


def _answered(
    request: PredictRequest,
    index: int | None,
    file: bytes,
    item: InferenceItem,
    warnings: tuple[PredictionWarning, ...],
    quality: ImageQuality | None,
    trajectories: Trajectories,
    summary: Predictions | None = None,
) -> AnsweredImage:
    """The image with its predictions and their response body, if the interpretation wants one.

    `warnings` precede those of the request. `summary`: as in `InferenceModel.answer`.

    Raises:
        ModelFailure: For an output that is not finite.
    """
    predictions = body = None
    served, query, request_id = request.served, request.query, request.state.request_id
    if request.interpretation.is_prediction:
        try:
            predictions = served.model.answer(
                trajectories, request.options, query.coverage, summary
            )
        except NonFiniteError as error:
            reason = "the output of the model for this image is not finite"
            raise ModelFailure(reason) from error
        body = Prediction(
            request_id=request_id,
            model=served.name,
            revision=served.model.revision,
            seed=item.draw.seed,
            warnings=(*warnings, *predictions.warnings, *request.warnings),
            **_batch_item(request_id, index, type="prediction"),
            **predictions.response_fields(0, detail=query.detail is not None),
        )
    return AnsweredImage(
        request, index, file, item, warnings, quality, trajectories, predictions, body
    )


class Features(Interpretation):
    """Answers with the features of the images (`ImageEmbedding`)."""

    is_prediction = False

    def body(self, answered: AnsweredImage) -> ImageEmbedding:
        """The embedding of an image.

        Raises:
            ModelFailure: If a feature is not finite.
        """
        features = answered.trajectories.features.mean(dim=(1, 2))[0]
        if not features.isfinite().all():
            raise ModelFailure("the features of this image are not finite")
        embedding, texture, contrast = (
            tuple(part.tolist()) for part in features.chunk(FEATURES_PER_WIDTH)
        )
        request = answered.request
        return ImageEmbedding(
            request_id=request.state.request_id,
            model=request.served.name,
            revision=request.served.model.revision,
            embedding=embedding,
            texture=texture,
            contrast=contrast,
            warnings=answered.warnings,
        )


def _batch_result(
    result: BaseModel | BaseException, request_id: str, index: int
) -> BaseModel | ProblemDocument:
    """A batch's entry for one image; logs unexpected exceptions."""
    if isinstance(result, BaseModel):
        return result
    if not isinstance(result, Exception):
        raise result
    if not isinstance(result, Problem):
        logger.error("request %s failed for image %d", request_id, index, exc_info=result)
        result = InternalError("the failure was logged under the request id")
    document = problem_document(result, request_id)
    return document.model_copy(update=_batch_item(request_id, index))


def _batch_item(request_id: str, index: int | None, **others: str) -> dict[str, Any]:
    """The fields that an image has only in a batch; none without an index."""
    if index is None:
        return {}
    return {"index": index, "item_id": item_id(request_id, index), **others}
