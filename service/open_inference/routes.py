"""`/v2` and the paths below it.

The protocol has a description of its own, so that these routes are not in the OpenAPI document.
"""

import re
from collections.abc import Callable
from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from eulerlora_client.contract.problems import InvalidParameter, UnknownModel
from service.decoding.decode import UNDECLARED
from service.http.problem_responses import OPEN_INFERENCE
from service.http.upload import Upload
from service.inference.models import ServedModel, ServedModels
from service.open_inference.answer import (
    PLATFORM,
    infer_response,
    metadata_of,
    requested_outputs,
)
from service.open_inference.body import JSON, read_body
from service.open_inference.messages import ModelReady, ServerMetadata
from service.open_inference.parameters import query_of
from service.prediction.pipeline import Pipeline
from service.routes.responses import json_response

LIVE, READY = f"{OPEN_INFERENCE}/health/live", f"{OPEN_INFERENCE}/health/ready"
MODELS = (
    f"{OPEN_INFERENCE}/models/{{name}}",
    f"{OPEN_INFERENCE}/models/{{name}}/versions/{{version}}",
)
PATHS = (
    OPEN_INFERENCE,
    LIVE,
    READY,
    *(path + end for path in MODELS for end in ("", "/ready", "/infer")),
)
INFER = re.compile(re.escape(OPEN_INFERENCE) + r"/models/[^/]+(/versions/[^/]+)?/infer")
EXTENSION = "binary_tensor_data"


class InferencePaths:
    """The paths of requests with images: `paths`, and that of `infer` for any model."""

    def __init__(self, *paths: str) -> None:
        self._paths = frozenset(paths)

    def __contains__(self, path: object) -> bool:
        return path in self._paths or INFER.fullmatch(str(path)) is not None


def open_inference_routes(
    pipeline: Pipeline, models: ServedModels, check_ready: Callable[[], None]
) -> APIRouter:
    """Returns the routes of the protocol. check_ready: raises NotReady."""
    router = APIRouter(include_in_schema=False)
    _add_server_routes(router, check_ready)
    for path in MODELS:
        _add_model_routes(router, path, pipeline, models, check_ready)
    return router


def _add_server_routes(router: APIRouter, check_ready: Callable[[], None]) -> None:
    @router.get(OPEN_INFERENCE)
    async def server_metadata() -> Response:
        return json_response(
            ServerMetadata(name=PLATFORM, version=version(PLATFORM), extensions=(EXTENSION,))
        )

    @router.get(LIVE)
    async def live() -> Response:
        return Response(to_json({"live": True}), media_type=JSON)

    @router.get(READY)
    async def ready() -> Response:
        check_ready()
        return Response(to_json({"live": True, "ready": True}), media_type=JSON)


def _add_model_routes(
    router: APIRouter,
    path: str,
    pipeline: Pipeline,
    models: ServedModels,
    check_ready: Callable[[], None],
) -> None:
    @router.get(path)
    async def model_metadata(request: Request) -> Response:
        return json_response(metadata_of(requested_model(request, models)))

    @router.get(f"{path}/ready")
    async def model_ready(request: Request) -> Response:
        served = requested_model(request, models)
        check_ready()
        return json_response(ModelReady(name=served.name, ready=True))

    @router.post(f"{path}/infer")
    async def infer(request: Request) -> Response:
        if request.query_params:
            raise InvalidParameter("expected parameters in the body, got a query")
        requested_model(request, models)  # before the body is read
        body = await read_body(request)
        served = requested_model(request, models)  # may have been replaced since
        query = query_of(served.name, body.request.parameters)
        outputs = requested_outputs(body.request)
        predicted = await pipeline.predict_upload(request, query, Upload(body.image, UNDECLARED))
        return infer_response(predicted, body.request.id, outputs)


def requested_model(request: Request, models: ServedModels) -> ServedModel:
    """Returns the model in a request's path. Raises UnknownModel, also for another version."""
    served = models.named(request.path_params["name"])
    if request.path_params.get("version", served.revision) != served.revision:
        raise UnknownModel("expected the version that is served: its revision, or none")
    return served
