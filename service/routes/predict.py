"""`POST /predict` and `POST /predict/batch`."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from eulerlora_client.contract.predictions import Prediction, PredictionBatch
from eulerlora_client.contract.queries import PredictQuery
from service.decoding.decode import MEDIA_TYPES
from service.http.problem_responses import documented_problems
from service.http.upload import FILE_PART, FILES_PART
from service.prediction.answer import Predicted
from service.prediction.pipeline import Pipeline
from service.routes.query import strict_query_route
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
PROBLEMS = documented_problems(400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504)


def predict_routes(pipeline: Pipeline) -> APIRouter:
    """Returns the routes for one image and for many."""
    router = APIRouter(route_class=strict_query_route(PredictQuery))

    @router.post(PREDICT_PATH, response_model=Prediction, responses=PROBLEMS, openapi_extra=UPLOAD)
    async def predict(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """Returns class probabilities and uncertainty of one image."""
        predicted = await pipeline.predict(request, query)
        return json_response(predicted.prediction, [predicted.timing])

    @router.post(
        BATCH_PATH, response_model=PredictionBatch, responses=PROBLEMS, openapi_extra=UPLOADS
    )
    async def predict_batch(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """Returns a prediction or a problem for each of many images, in order."""
        batch = await pipeline.predict_batch(request, query)
        results = tuple(
            result.prediction if isinstance(result, Predicted) else result for result in batch
        )
        timings = [result.timing for result in batch if isinstance(result, Predicted)]
        return json_response(PredictionBatch(results=results), timings)

    return router


def json_response(body: BaseModel, timings: Sequence[Timing]) -> Response:
    """Returns the response with a body, and a Server-Timing header if there are predictions."""
    content = body.model_dump_json(exclude_unset=True)
    headers = {"Server-Timing": server_timing(timings)} if timings else {}
    return Response(content, headers=headers, media_type="application/json")


def server_timing(timings: Sequence[Timing]) -> str:
    """Returns a Server-Timing header; of several predictions, the maximum of every stage."""
    longest = {
        "decode": max(timing.decode_s for timing in timings),
        "queue": max(timing.queue_s for timing in timings),
        "model": max(timing.model_s for timing in timings),
    }
    return ", ".join(f"{name};dur={1000 * value:.2f}" for name, value in longest.items())
