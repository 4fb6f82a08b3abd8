"""`POST /predict`, `POST /predict/batch` and `POST /embed`."""

from typing import Any

from fastapi import APIRouter, Request, Response

from eulerlora_contract.answers import ImageEmbedding, Prediction, PredictionBatch
from eulerlora_contract.queries import EmbedQuery, PredictQuery
from service.decoding.formats import MEDIA_TYPES
from service.http.requests import FILE_PART, FILES_PART, RequestRoute, parsed_query
from service.http.responses import batch_response, json_response
from service.prediction import Features, Pipeline
from service.routes.openapi import (
    PREDICTIONS,
    UPLOAD_PROBLEMS,
    documented,
    query_parameters,
)

PREDICT_PATH = "/predict"
BATCH_PATH = "/predict/batch"
EMBED_PATH = "/embed"

_BINARY = {"type": "string", "format": "binary"}


def _form(part: str, schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "object", "properties": {part: schema}, "required": [part]}
    return {"multipart/form-data": {"schema": form}}


UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            **_form(FILE_PART, _BINARY),
            "application/octet-stream": {"schema": _BINARY},
            **{media_type: {"schema": _BINARY} for media_type in MEDIA_TYPES},
        },
    }
}
UPLOADS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": _form(FILES_PART, {"type": "array", "items": _BINARY}),
    }
}


def predict_routes(pipeline: Pipeline) -> APIRouter:
    router = APIRouter(tags=[PREDICTIONS], route_class=RequestRoute)

    @router.post(
        PREDICT_PATH,
        response_model=Prediction,
        responses=documented("predict", UPLOAD_PROBLEMS, ["Server-Timing"]),
        openapi_extra=query_parameters(PredictQuery) | UPLOAD,
    )
    async def predict(request: Request) -> Response:
        """Returns class probabilities and uncertainty of one image."""
        query = parsed_query(request, PredictQuery)
        return json_response(await pipeline.predict(request, query))

    @router.post(
        BATCH_PATH,
        response_model=PredictionBatch,
        responses=documented("predict_batch", UPLOAD_PROBLEMS, ["Server-Timing"]),
        openapi_extra=query_parameters(PredictQuery) | UPLOADS,
    )
    async def predict_batch(request: Request) -> Response:
        """Returns a prediction or a problem for each of many images, in order."""
        query = parsed_query(request, PredictQuery)
        return batch_response(results=await pipeline.predict_batch(request, query))

    @router.post(
        EMBED_PATH,
        response_model=ImageEmbedding,
        responses=documented("embed", UPLOAD_PROBLEMS, ["Server-Timing"]),
        openapi_extra=query_parameters(EmbedQuery) | UPLOAD,
    )
    async def embed(request: Request) -> Response:
        """Returns the features of one image, for a search of similar ones and for drift."""
        asked = PredictQuery(model=parsed_query(request, EmbedQuery).model)
        return json_response(await pipeline.predict(request, asked, Features()))

    return router
