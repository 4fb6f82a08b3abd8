"""`POST /predict` and `POST /predict/batch`."""

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError

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


class PredictRoute(APIRoute):
    """Hands its endpoint the query, and sends the response as it is.

    FastAPI's own way, by dependencies and a second validation of the answer, takes three times as
    long; the description it gives is used.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""

        async def handle(request: Request) -> Response:
            response: Response = await self.endpoint(request, query_of(request))
            return response

        return handle


def predict_routes(pipeline: Pipeline) -> APIRouter:
    """The routes that answer for one image, and for many."""
    router = APIRouter(route_class=PredictRoute)

    @router.post(
        "/predict", response_model=PredictionBody, responses=PROBLEMS, openapi_extra=UPLOAD
    )
    async def predict(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """Class probabilities and uncertainty of one image."""
        predicted = await pipeline.predict(request, query)
        return answer(predicted.body, [predicted.timing])

    @router.post(
        BATCH_PATH, response_model=PredictionsBody, responses=PROBLEMS, openapi_extra=UPLOADS
    )
    async def predict_batch(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """The same for many images; a problem in place of the answer for one that has none."""
        outcomes = await pipeline.predict_batch(request, query)
        results = [each.body if isinstance(each, Predicted) else each for each in outcomes]
        timings = [each.timing for each in outcomes if isinstance(each, Predicted)]
        return answer(PredictionsBody(results=results), timings)

    return router


def query_of(request: Request) -> PredictQuery:
    """A request's parameters. Raises InvalidParameter and RequestValidationError."""
    sent = request.query_params.multi_items()
    counts = Counter(name for name, _ in sent)
    for name in PredictQuery.model_fields:
        if counts[name] > 1:
            raise InvalidParameter(f"{name}: wanted once, given {counts[name]} times")
    try:
        return PredictQuery.model_validate(dict(sent))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def answer(body: PredictionBody | PredictionsBody, timings: Sequence[Timing]) -> Response:
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
