"""`POST /predict` and `POST /predict/batch`."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from service.decode import MEDIA_TYPES
from service.errors import InvalidParameter
from service.events import Timing
from service.pipeline import Pipeline, Predicted
from service.problems import described
from service.schemas import PredictionBody, PredictionsBody, PredictQuery
from service.upload import FILE_PART, FILES_PART

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
    router = APIRouter(dependencies=[Depends(reject_repeated_parameters)])

    @router.post(
        "/predict",
        response_model_exclude_unset=True,
        responses=PROBLEMS,
        openapi_extra=UPLOAD,
    )
    async def predict(
        request: Request, response: Response, query: Annotated[PredictQuery, Query()]
    ) -> PredictionBody:
        """Class probabilities and uncertainty of one image."""
        predicted = await pipeline.predict(request, query)
        response.headers["Server-Timing"] = server_timing([predicted.timing])
        return predicted.body

    @router.post(
        BATCH_PATH,
        response_model_exclude_unset=True,
        responses=PROBLEMS,
        openapi_extra=UPLOADS,
    )
    async def predict_batch(
        request: Request, response: Response, query: Annotated[PredictQuery, Query()]
    ) -> PredictionsBody:
        """The same for many images; a problem in place of the answer for one that has none."""
        outcomes = await pipeline.predict_batch(request, query)
        predicted = [each for each in outcomes if isinstance(each, Predicted)]
        if predicted:
            response.headers["Server-Timing"] = server_timing([each.timing for each in predicted])
        return PredictionsBody(
            results=[each.body if isinstance(each, Predicted) else each for each in outcomes]
        )

    return router


async def reject_repeated_parameters(request: Request) -> None:
    """Raises InvalidParameter where a parameter of PredictQuery is given twice."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name in PredictQuery.model_fields:
        if counts[name] > 1:
            raise InvalidParameter(f"{name}: wanted once, given {counts[name]} times")


def server_timing(timings: Sequence[Timing]) -> str:
    """A Server-Timing header; of several answers, the longest that each of its parts took."""
    longest = {
        "decode": max(each.decode_s for each in timings),
        "queue": max(each.queue_s for each in timings),
        "model": max(each.model_s for each in timings),
    }
    return ", ".join(f"{name};dur={1000 * value:.2f}" for name, value in longest.items())
