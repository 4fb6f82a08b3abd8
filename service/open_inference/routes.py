"""`/v2` and the paths below it, and the outputs of a prediction as tensors.

The protocol has a description of its own, so that these routes are not in the OpenAPI document.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from eulerlora_client.contract.answers import Prediction
from eulerlora_client.contract.problems import InvalidParameter, UnknownModel
from service.decoding.decode import UNDECLARED
from service.http.requests import Upload
from service.http.responses import (
    JSON,
    OPEN_INFERENCE,
    json_response,
    rounded,
    server_timing,
)
from service.inference.engine import ServedModel, ServedModels
from service.open_inference.messages import (
    BINARY,
    ELEMENT_LENGTH,
    HEADER_LENGTH,
    IMAGE_INPUT,
    DataType,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelReady,
    Parameter,
    ResponseOutput,
    ServerMetadata,
    Shape,
    TensorMetadata,
    query_of,
    read_body,
    wants_binary_output,
)
from service.prediction.answer import Predicted
from service.prediction.pipeline import Pipeline
from service.routes.system import Readiness

ANY_SIZE = -1

PLATFORM = "eulerlora"
PREDICTION_SET = "prediction_set"
IMAGE = TensorMetadata(name=IMAGE_INPUT, datatype="BYTES", shape=(1,))
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


@dataclass(frozen=True)
class Output:
    """An output of every model.

    values: of a prediction, none if it is unknown. shape: of `classes` classes.
    """

    datatype: DataType
    values: Callable[[Prediction], Sequence[Parameter]]
    shape: Callable[[int], Shape]


@dataclass(frozen=True)
class EncodedOutput:
    """An output of a response, and its bytes after the JSON object, if any."""

    message: ResponseOutput
    binary: bytes = b""


def _scalar(datatype: DataType, value: Callable[[Prediction], Parameter]) -> Output:
    return Output(datatype, lambda prediction: (value(prediction),), lambda _: (1,))


def _optional(value: Callable[[Prediction], bool | None]) -> Output:
    def values(prediction: Prediction) -> Sequence[Parameter]:
        flag = value(prediction)
        return () if flag is None else (flag,)

    return Output("BOOL", values, lambda _: (ANY_SIZE,))


OUTPUTS: Mapping[str, Output] = {
    "label": _scalar("BYTES", lambda prediction: prediction.label),
    "classes": Output("BYTES", lambda prediction: prediction.classes, lambda classes: (classes,)),
    "probabilities": Output(
        "FP64",
        lambda prediction: tuple(prediction.probabilities.values()),
        lambda classes: (1, classes),
    ),
    "entropy": _scalar("FP64", lambda prediction: prediction.entropy),
    "expected_entropy": _scalar("FP64", lambda prediction: prediction.expected_entropy),
    "mutual_information": _scalar("FP64", lambda prediction: prediction.mutual_information),
    "msp": _scalar("FP64", lambda prediction: prediction.msp),
    "ood": _optional(lambda prediction: prediction.ood),
    "unfamiliar": _optional(lambda prediction: prediction.unfamiliar),
    "prediction_set": Output(
        "BYTES",
        lambda prediction: prediction.prediction_set.labels if prediction.prediction_set else (),
        lambda _: (ANY_SIZE,),
    ),
    "warnings": Output(
        "BYTES",
        lambda prediction: tuple(warning.code for warning in prediction.warnings),
        lambda _: (ANY_SIZE,),
    ),
}
"""By name, in the order of a response to a request that names none."""


def encoded(name: str, prediction: Prediction, binary: bool) -> EncodedOutput:
    """Returns one of OUTPUTS for a prediction, with the numbers of `/predict`."""
    output = OUTPUTS[name]
    values = tuple(rounded(output.values(prediction)))
    shape = tuple(
        len(values) if size == ANY_SIZE else size
        for size in output.shape(len(prediction.probabilities))
    )
    if not binary:
        message = ResponseOutput(name=name, datatype=output.datatype, shape=shape, data=values)
        return EncodedOutput(message)
    content = b"".join(_bytes_of(value) for value in values)
    message = ResponseOutput(
        name=name,
        datatype=output.datatype,
        shape=shape,
        parameters={"binary_data_size": len(content)},
    )
    return EncodedOutput(message, content)


def _bytes_of(value: Parameter) -> bytes:
    """Returns an element of a binary tensor, little-endian."""
    if isinstance(value, bool):
        return struct.pack("?", value)
    if isinstance(value, str):
        text = value.encode()
        return ELEMENT_LENGTH.pack(len(text)) + text
    return struct.pack("<d", value)


def requested_outputs(request: InferRequest) -> Mapping[str, bool]:
    """Returns the names of the requested outputs, in order, and whether each is binary.

    Raises InvalidParameter.
    """
    has_set = "coverage" in request.parameters
    default = wants_binary_output(request.parameters)
    if not request.outputs:
        return {name: default for name in OUTPUTS if has_set or name != PREDICTION_SET}
    names = [output.name for output in request.outputs]
    if not OUTPUTS.keys() >= set(names) or len(set(names)) < len(names):
        raise InvalidParameter(f"outputs: expected distinct names among {', '.join(OUTPUTS)}")
    if PREDICTION_SET in names and not has_set:
        raise InvalidParameter(f"outputs: expected {PREDICTION_SET} only with coverage")
    return {
        output.name: default
        if output.parameters.binary_data is None
        else output.parameters.binary_data
        for output in request.outputs
    }


def infer_response(
    predicted: Predicted, request_id: str | None, outputs: Mapping[str, bool]
) -> Response:
    """Returns the response for a prediction.

    request_id: that of the JSON object. outputs: as `requested_outputs`.
    """
    prediction = predicted.prediction
    parts = [encoded(name, prediction, binary) for name, binary in outputs.items()]
    message = InferResponse(
        model_name=prediction.model,
        model_version=prediction.revision,
        **({} if request_id is None else {"id": request_id}),
        parameters={
            "mode": prediction.mode,
            "samples": prediction.samples,
            "trajectories": prediction.trajectories,
            "seed": prediction.seed,
            **prediction.model_dump(include={"sampled", "rows"}, exclude_none=True),
        },
        outputs=tuple(part.message for part in parts),
    )
    content = to_json(message.model_dump(exclude_unset=True))
    headers = {"Server-Timing": server_timing([predicted.timing])}
    is_binary = any(outputs.values())
    if is_binary:
        headers[HEADER_LENGTH] = str(len(content))
        content += b"".join(part.binary for part in parts)
    return Response(content, headers=headers, media_type=BINARY if is_binary else JSON)


def metadata_of(served: ServedModel) -> ModelMetadata:
    """Returns the description of a model. Its only version is the revision that is served."""
    classes = len(served.model.classes)
    return ModelMetadata(
        name=served.name,
        versions=(served.revision,),
        platform=PLATFORM,
        inputs=(IMAGE,),
        outputs=tuple(
            TensorMetadata(name=name, datatype=output.datatype, shape=output.shape(classes))
            for name, output in OUTPUTS.items()
        ),
    )


class InferencePaths:
    """The paths of requests with images: `paths`, and that of `infer` for any model."""

    def __init__(self, *paths: str) -> None:
        self._paths = frozenset(paths)

    def __contains__(self, path: object) -> bool:
        return path in self._paths or INFER.fullmatch(str(path)) is not None


def open_inference_routes(
    pipeline: Pipeline, models: ServedModels, readiness: Readiness
) -> APIRouter:
    """Returns the routes of the protocol."""
    router = APIRouter(include_in_schema=False)
    _add_server_routes(router, readiness)
    for path in MODELS:
        _add_model_routes(router, path, pipeline, models, readiness)
    return router


def _add_server_routes(router: APIRouter, readiness: Readiness) -> None:
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
        readiness.check()
        return Response(to_json({"live": True, "ready": True}), media_type=JSON)


def _add_model_routes(
    router: APIRouter,
    path: str,
    pipeline: Pipeline,
    models: ServedModels,
    readiness: Readiness,
) -> None:
    @router.get(path)
    async def model_metadata(request: Request) -> Response:
        return json_response(metadata_of(requested_model(request, models)))

    @router.get(f"{path}/ready")
    async def model_ready(request: Request) -> Response:
        served = requested_model(request, models)
        readiness.check()
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
        upload = Upload(body.image, UNDECLARED)
        predicted = await pipeline.predict(request, query, upload=upload)
        return infer_response(predicted, body.request.id, outputs)


def requested_model(request: Request, models: ServedModels) -> ServedModel:
    """Returns the model in a request's path. Raises UnknownModel, also for another version."""
    served = models.named(request.path_params["name"])
    if request.path_params.get("version", served.revision) != served.revision:
        raise UnknownModel("expected the version that is served: its revision, or none")
    return served
