"""`POST /predict`."""

from collections import Counter
from typing import Annotated, Any

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response

from service.decode import MEDIA_TYPES
from service.errors import InvalidParameter
from service.predictions import prediction_body, prepare, samples_of
from service.request_id import request_id_of
from service.schemas import PredictionBody, PredictQuery, ProblemBody
from service.served_model import ServedModels
from service.settings import ServiceSettings
from service.upload import FILE_PART, read_upload

_BINARY = {"type": "string", "format": "binary"}
_MULTIPART = {"type": "object", "properties": {FILE_PART: _BINARY}, "required": [FILE_PART]}
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": _MULTIPART},
            **{media_type: {"schema": _BINARY} for media_type in MEDIA_TYPES},
        },
    }
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemBody} for status in (400, 404, 413, 415, 422, 500, 503)
}


def predict_routes(models: ServedModels, settings: ServiceSettings) -> APIRouter:
    """The route that answers for one image."""
    router = APIRouter()
    decoding = anyio.CapacityLimiter(settings.decode_threads)

    @router.post(
        "/predict",
        dependencies=[Depends(reject_repeated_parameters)],
        response_model_exclude_unset=True,
        responses=PROBLEMS,
        openapi_extra=UPLOAD,
    )
    async def predict(
        request: Request, response: Response, query: Annotated[PredictQuery, Query()]
    ) -> PredictionBody:
        """Class probabilities and uncertainty of one image."""
        served = models.named(query.model)
        samples_of(query)  # refused before the body is read
        upload = await read_upload(request, settings.max_body_bytes)
        prepared = await run_sync(prepare, upload, query, served, settings.images, limiter=decoding)
        answered = await served.answer(prepared.question)
        response.headers["Server-Timing"] = server_timing(
            decode=prepared.decoded_s, queue=answered.queued_s, model=answered.ran_s
        )
        return prediction_body(answered.answer, prepared, query, served, request_id_of(request))

    return router


def reject_repeated_parameters(request: Request) -> None:
    """Raises InvalidParameter where a parameter of PredictQuery is given twice."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name in PredictQuery.model_fields:
        if counts[name] > 1:
            raise InvalidParameter(f"{name}: wanted once, given {counts[name]} times")


def server_timing(**seconds: float) -> str:
    """A Server-Timing header of named durations."""
    return ", ".join(f"{name};dur={1000 * value:.2f}" for name, value in seconds.items())
