"""`POST /predict` and `POST /predict/batch`."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from eulerlora_client.contract.predictions import Prediction, PredictionBatch
from eulerlora_client.contract.queries import PredictQuery
from service.decoding.decode import MEDIA_TYPES
from service.http.problem_responses import described
from service.http.upload import FILE_PART, FILES_PART
from service.prediction.pipeline import Pipeline, Predicted
from service.routes.query import question_route
from service.telemetry.events import Timing

PREDICT_PATH = "/predict"
BATCH_PATH = "/predict/batch"

_BINARY = {"type": "string", "format": "binary"}


def _form(part: str, schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "object", "properties": {part: schema}, "required": [part]}
    return {"multipart/form-data": {"schema": form}}


UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            **_form(FILE_PART, _BINARY),
            **{media_type: {"schema": _BINARY} for media_type in MEDIA_TYPES},
        },
    }
}
UPLOADS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": _form(FILES_PART, {"type": "array", "items": _BINARY, "minItems": 1}),
    }
}
PROBLEMS = described(400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504)


def predict_routes(pipeline: Pipeline) -> APIRouter:
    """The routes that answer for one image, and for many."""
    router = APIRouter(route_class=question_route(PredictQuery))

    @router.post(PREDICT_PATH, response_model=Prediction, responses=PROBLEMS, openapi_extra=UPLOAD)
    async def predict(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """Class probabilities and uncertainty of one image."""
        predicted = await pipeline.predict(request, query)
        return answer(predicted.body, [predicted.timing])

    @router.post(
        BATCH_PATH, response_model=PredictionBatch, responses=PROBLEMS, openapi_extra=UPLOADS
    )
    async def predict_batch(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """The same for many images; a problem in place of the answer for one that has none."""
        outcomes = await pipeline.predict_batch(request, query)
        results = tuple(each.body if isinstance(each, Predicted) else each for each in outcomes)
        timings = [each.timing for each in outcomes if isinstance(each, Predicted)]
        return answer(PredictionBatch(results=results), timings)

    return router


def answer(body: BaseModel, timings: Sequence[Timing]) -> Response:
    """The response with a body, and with the timings of its predictions if there are any."""
    content = body.model_dump_json(exclude_unset=True)
    headers = {"Server-Timing": server_timing(timings)} if timings else {}
    return Response(content, headers=headers, media_type="application/json")


def server_timing(timings: Sequence[Timing]) -> str:
    """A Server-Timing header; of several answers, the longest that each of its parts took."""
    longest = {
        "decode": max(each.decode_s for each in timings),
        "queue": max(each.queue_s for each in timings),
        "model": max(each.model_s for each in timings),
    }
    return ", ".join(f"{name};dur={1000 * value:.2f}" for name, value in longest.items())
