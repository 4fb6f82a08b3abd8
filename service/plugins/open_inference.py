"""The Open Inference Protocol, version 2, over HTTP: another form of `/predict`.

https://github.com/kserve/open-inference-protocol. Unknown members of a request are ignored, unknown
parameters are errors. The specification does not say how BYTES that are no text are written in
JSON; here they are base64. `Inference-Header-Content-Length` announces the extension for binary
tensor data. The protocol has a description of its own, so that these routes are not in the OpenAPI
document.
"""

import asyncio
import struct
import time
from base64 import b64decode
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from eulerlora import __version__
from eulerlora_contract.answers import Prediction, ProblemDocument
from eulerlora_contract.problems import (
    DeadlinePassed,
    InvalidParameter,
    InvalidUpload,
    MalformedBody,
    UnknownModel,
    UnsupportedMedia,
)
from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.settings import Count, error_without_input
from service.decoding.formats import Declared, without_parameters
from service.extensions import Extension, Service
from service.http.requests import Upload, query_errors
from service.http.responses import JSON, json_response, rounded
from service.inference.engine import ServedModel, ServedModels

_DataType = Literal["BOOL", "BYTES", "FP64"]
_Parameter = bool | int | float | str

_IMAGE_INPUT = "image"
_PREDICTION_SET = "prediction_set"
_BINARY_OUTPUT = "binary_data_output"
_BINARY = "application/octet-stream"
_HEADER_LENGTH = "Inference-Header-Content-Length"
_MAX_JSON_ITEMS = 1000
"""Members and elements in the JSON object; parsing millions of them would block the service."""
_ELEMENT_LENGTH = struct.Struct("<I")  # before the bytes of each element of a BYTES tensor

_PLATFORM = "eulerlora"
_OPEN_INFERENCE = "/v2"
_MODELS = (
    f"{_OPEN_INFERENCE}/models/{{name}}",
    f"{_OPEN_INFERENCE}/models/{{name}}/versions/{{version}}",
)
_INFER_PATHS = tuple(f"{path}/infer" for path in _MODELS)
_EXTENSIONS = ("binary_tensor_data", "schedule_policy", "statistics")


class _RequestMessage(BaseModel):
    """Base of the parts of a request: JSON types are not converted."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class _ParametersMessage(_RequestMessage):
    """Base of parameters, whose names are checked."""

    model_config = ConfigDict(extra="forbid")


class _InputParameters(_ParametersMessage):
    """Parameters of the input.

    Attributes:
        binary_data_size: Bytes of the tensor after the JSON object; None if the tensor is in
            `data`.
        content_type: Of the strings in `data`.
    """

    binary_data_size: Count | None = None
    content_type: Literal["base64"] = "base64"


class _RequestInput(_RequestMessage):
    """The image.

    Attributes:
        data: Base64, flat or in the nested form of the shape.
    """

    name: Literal["image"]
    shape: tuple[Literal[1]] | tuple[Literal[1], Literal[1]]
    datatype: Literal["BYTES"]
    parameters: _InputParameters = _InputParameters()
    data: tuple[str | tuple[str, ...], ...] | None = None


class _OutputParameters(_ParametersMessage):
    """Parameters of an output; None stands for the default of the request."""

    binary_data: bool | None = None


class _RequestOutput(_RequestMessage):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class _Scheduling(_RequestMessage):
    """Parameters of Triton's scheduler, in a request of its clients.

    Attributes:
        timeout: Microseconds until the answer is 504, 0 for none. The others have no effect: the
            order of requests is a fair one, and the models keep no state between the requests of a
            sequence.
    """

    timeout: Annotated[int, Field(ge=0, lt=2**63)] = 0
    priority: Count = 0
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False


class _InferRequest(_RequestMessage):
    """The JSON object of an inference request; without `outputs`, all are answered."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None = None
    parameters: dict[str, _Parameter] = {}
    inputs: Annotated[tuple[_RequestInput, ...], Field(min_length=1, max_length=1)]
    outputs: Annotated[tuple[_RequestOutput, ...], Field(max_length=32)] = ()


_MESSAGES = (_InferRequest, _RequestInput, _RequestOutput, _InputParameters, _OutputParameters)


async def _read_body(request: Request) -> tuple[_InferRequest, bytes]:
    """The JSON object of an inference request, and the image file.

    Raises:
        UnsupportedMedia: For another media type.
        MalformedBody: For a body that is not such a request.
        InvalidUpload: For an empty image.
    """
    media_type = without_parameters(request.headers.get("content-type", JSON))
    if media_type not in (JSON, _BINARY):
        raise UnsupportedMedia(f"expected {JSON} or {_BINARY}")
    header_length = request.headers.get(_HEADER_LENGTH)
    body = b"".join([chunk async for chunk in request.stream()])
    json_bytes = len(body)
    if header_length is not None:
        is_number = header_length.isascii() and header_length.isdigit() and len(header_length) < 16
        if not is_number or int(header_length) > len(body):
            raise MalformedBody(f"{_HEADER_LENGTH}: expected at most the length of the body")
        json_bytes = int(header_length)
    text = body[:json_bytes]
    if text.count(b",") + text.count(b"{") + text.count(b"[") > _MAX_JSON_ITEMS:
        raise MalformedBody(f"expected a JSON object with at most {_MAX_JSON_ITEMS:,} items")
    try:
        parsed = _InferRequest.model_validate_json(text)
    except ValidationError as error:
        raise MalformedBody(error_without_input(error, *_MESSAGES)) from None
    image = _image(parsed.inputs[0], memoryview(body)[json_bytes:])
    if not image:
        raise InvalidUpload("the image is empty")
    return parsed, image


def _image(sent: _RequestInput, binary: memoryview) -> bytes:
    """The file in the one element of the input. `binary`: what follows the JSON object."""
    size = sent.parameters.binary_data_size
    if (size is None) == (sent.data is None):
        raise MalformedBody(f"{_IMAGE_INPUT}: expected data or binary_data_size, not both")
    if len(binary) != (size or 0):
        raise MalformedBody(f"{_IMAGE_INPUT}: expected binary_data_size bytes after the JSON")
    if sent.data is None:
        prefix = _ELEMENT_LENGTH.size
        if len(binary) < prefix or _ELEMENT_LENGTH.unpack_from(binary)[0] != len(binary) - prefix:
            raise MalformedBody(f"{_IMAGE_INPUT}: expected the length of one element and its bytes")
        return bytes(binary[prefix:])
    (element, *others) = sent.data or ("",)
    if isinstance(element, tuple) and len(element) == 1 and len(sent.shape) == 2:
        (element,) = element
    if others or isinstance(element, tuple):
        raise MalformedBody(f"{_IMAGE_INPUT}: expected one element in data")
    try:
        return b64decode(element, validate=True)
    except ValueError:
        raise MalformedBody(f"{_IMAGE_INPUT}: expected base64 in data") from None


def _query_of(model: str, parameters: Mapping[str, _Parameter]) -> PredictQuery:
    """The query for a prediction of `model`.

    Numbers and booleans must have their JSON type. Raises InvalidParameter and
    RequestValidationError.
    """
    others = {_BINARY_OUTPUT, *_Scheduling.model_fields}
    sent = {name: value for name, value in parameters.items() if name not in others}
    if "model" in sent:
        raise InvalidParameter("model: expected in the path")
    if "detail" in sent:
        raise InvalidParameter("detail: unknown parameter")
    if isinstance(sent.get("views"), str):
        raise InvalidParameter("views: expected a whole number")
    with query_errors():
        return PredictQuery.model_validate({**sent, "model": model}, strict=True)


_ANY_SIZE, _CLASSES = -1, 0


@dataclass(frozen=True)
class _Output:
    """An output of every model.

    Attributes:
        shape: With _CLASSES for the number of classes.
        values: Of a prediction, in the last dimension.
    """

    datatype: _DataType
    shape: tuple[int, ...]
    values: Callable[[Prediction], Sequence[_Parameter]]


def _known(flag: bool | None) -> tuple[bool, ...]:
    return () if flag is None else (flag,)


_OUTPUTS: Mapping[str, _Output] = {
    "label": _Output("BYTES", (1,), lambda body: (body.label,)),
    "classes": _Output("BYTES", (_CLASSES,), lambda body: body.classes),
    "probabilities": _Output(
        "FP64", (1, _CLASSES), lambda body: tuple(body.probabilities.values())
    ),
    "entropy": _Output("FP64", (1,), lambda body: (body.entropy,)),
    "expected_entropy": _Output("FP64", (1,), lambda body: (body.expected_entropy,)),
    "mutual_information": _Output("FP64", (1,), lambda body: (body.mutual_information,)),
    "msp": _Output("FP64", (1,), lambda body: (body.msp,)),
    "ood": _Output("BOOL", (_ANY_SIZE,), lambda body: _known(body.ood)),
    "unfamiliar": _Output("BOOL", (_ANY_SIZE,), lambda body: _known(body.unfamiliar)),
    _PREDICTION_SET: _Output(
        "BYTES",
        (_ANY_SIZE,),
        lambda body: body.prediction_set.labels if body.prediction_set else (),
    ),
    "warnings": _Output(
        "BYTES", (_ANY_SIZE,), lambda body: tuple(warning.code for warning in body.warnings)
    ),
}
"""By name, in the order of a response to a request that names none."""


def _requested_outputs(request: _InferRequest) -> Mapping[str, bool]:
    """The names of the requested outputs, in order, and whether each is binary.

    Raises InvalidParameter.
    """
    has_set = "coverage" in request.parameters
    default = request.parameters.get(_BINARY_OUTPUT, False)
    if not isinstance(default, bool):
        raise InvalidParameter(f"{_BINARY_OUTPUT}: expected true or false")
    if not request.outputs:
        return {name: default for name in _OUTPUTS if has_set or name != _PREDICTION_SET}
    names = [output.name for output in request.outputs]
    if not _OUTPUTS.keys() >= set(names) or len(set(names)) < len(names):
        raise InvalidParameter(f"outputs: expected distinct names among {', '.join(_OUTPUTS)}")
    if _PREDICTION_SET in names and not has_set:
        raise InvalidParameter(f"outputs: expected {_PREDICTION_SET} only with coverage")
    return {
        output.name: default
        if output.parameters.binary_data is None
        else output.parameters.binary_data
        for output in request.outputs
    }


def _infer_response(
    prediction: Prediction, request_id: str | None, outputs: Mapping[str, bool]
) -> Response:
    """The response for a prediction, with the numbers of `/predict`.

    `request_id`: that of the JSON object. `outputs`: as `_requested_outputs`.
    """
    tensors = b""
    messages = []
    for name, is_binary in outputs.items():
        output = _OUTPUTS[name]
        values = rounded(output.values(prediction))
        shape = [*output.shape[:-1], len(values)]
        message: dict[str, Any] = {"name": name, "datatype": output.datatype, "shape": shape}
        if is_binary:
            content = b"".join(map(_bytes_of, values))
            message["parameters"] = {"binary_data_size": len(content)}
            tensors += content
        else:
            message["data"] = values
        messages.append(message)
    options = {"mode", "samples", "sampler", "views", "precision"}
    fields = options | {"trajectories", "seed", "rows"}
    answer = {
        "model_name": prediction.model,
        "model_version": prediction.revision,
        **({} if request_id is None else {"id": request_id}),
        "parameters": prediction.model_dump(include=fields, exclude_unset=True),
        "outputs": messages,
    }
    text = to_json(answer)
    if any(outputs.values()):
        return Response(
            text + tensors, headers={_HEADER_LENGTH: str(len(text))}, media_type=_BINARY
        )
    return Response(text, media_type=JSON)


def _bytes_of(value: _Parameter) -> bytes:
    """An element of a binary tensor, little-endian."""
    if isinstance(value, bool):
        return struct.pack("?", value)
    if isinstance(value, str):
        text = value.encode()
        return _ELEMENT_LENGTH.pack(len(text)) + text
    return struct.pack("<d", value)


def _metadata_of(served: ServedModel) -> dict[str, Any]:
    """The description of a model. Its only version is the revision that is served."""
    classes = len(served.model.classes)
    return {
        "name": served.name,
        "versions": [served.model.revision],
        "platform": _PLATFORM,
        "inputs": [{"name": _IMAGE_INPUT, "datatype": "BYTES", "shape": [1]}],
        "outputs": [
            {
                "name": name,
                "datatype": output.datatype,
                "shape": [classes if size == _CLASSES else size for size in output.shape],
            }
            for name, output in _OUTPUTS.items()
        ],
    }


@dataclass
class _Durations:
    """Requests and their total time in nanoseconds, as Triton's statistics state them."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += round(1e9 * seconds)


@dataclass
class _Statistics:
    """Requests of this protocol for one revision of a model since the start of the process.

    Attributes:
        last: Milliseconds since 1970 of the last answer, 0 without one.
    """

    last: int = 0
    durations: defaultdict[str, _Durations] = field(default_factory=lambda: defaultdict(_Durations))

    @asynccontextmanager
    async def counting(self, request: Request) -> AsyncIterator[None]:
        """Counts the request of the block, and the stages of its answer."""
        started_s, outcome = time.monotonic(), "fail"
        try:
            yield
            outcome = "success"
        finally:
            self.durations[outcome].add(time.monotonic() - started_s)
            self.last = round(1e3 * time.time())
            for completed in request.state.observation.predictions:
                for stage, seconds in completed.stages_s.items():
                    self.durations[_STAGES[stage]].add(seconds)

    def message(self, served: ServedModel) -> dict[str, Any]:
        return {
            "name": served.name,
            "version": served.model.revision,
            "last_inference": self.last,
            "inference_count": self.durations["success"].count,
            "execution_count": self.durations["compute_infer"].count,
            "inference_stats": {name: vars(self.durations[name]) for name in _OUTCOMES},
            "batch_stats": [],
        }


_STAGES = {"decode": "compute_input", "queue": "queue", "model": "compute_infer"}
_OUTCOMES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


def _open_inference_routes(service: Service) -> APIRouter:
    pipeline, models = service.pipeline, service.models
    router = APIRouter(include_in_schema=False)
    statistics: defaultdict[tuple[str, str], _Statistics] = defaultdict(_Statistics)

    @router.get(_OPEN_INFERENCE)
    async def server_metadata() -> Response:
        metadata = {"name": _PLATFORM, "version": __version__, "extensions": list(_EXTENSIONS)}
        return json_response(metadata)

    @router.get(f"{_OPEN_INFERENCE}/health/live")
    async def live() -> Response:
        return json_response({"live": True})

    @router.get(f"{_OPEN_INFERENCE}/health/ready")
    async def ready() -> Response:
        service.check_ready()
        return json_response({"live": True, "ready": True})

    async def model_metadata(request: Request) -> Response:
        return json_response(_metadata_of(_requested_model(request, models)))

    async def model_ready(request: Request) -> Response:
        served = _requested_model(request, models)
        service.check_ready()
        return json_response({"name": served.name, "ready": True})

    async def infer(request: Request) -> Response:
        if request.query_params:
            raise InvalidParameter("expected parameters in the body, got a query")
        _requested_model(request, models)  # before the body is read
        sent, image = await _read_body(request)
        served = _requested_model(request, models)  # may have been replaced since
        query = _query_of(served.name, sent.parameters)
        with query_errors():
            scheduling = _Scheduling.model_validate(sent.parameters)
        outputs = _requested_outputs(sent)
        upload = Upload(image, Declared())
        async with (
            statistics[served.name, served.model.revision].counting(request),
            _ended_by(scheduling.timeout),
        ):
            prediction = await pipeline.predict(request, query, upload=upload)
        assert isinstance(prediction, Prediction)
        return _infer_response(prediction, sent.id, outputs)

    async def model_statistics(request: Request) -> Response:
        one = request.path_params.get("name")
        chosen = models.values() if one is None else [_requested_model(request, models)]
        messages = [
            statistics[served.name, served.model.revision].message(served) for served in chosen
        ]
        return json_response({"model_stats": messages})

    router.get(f"{_OPEN_INFERENCE}/models/stats")(model_statistics)  # before a model of this name
    for path in _MODELS:
        router.get(f"{path}/stats")(model_statistics)
        router.get(path)(model_metadata)
        router.get(f"{path}/ready")(model_ready)
    for path in _INFER_PATHS:
        router.post(path)(infer)
    return router


@asynccontextmanager
async def _ended_by(timeout_us: int) -> AsyncIterator[None]:
    """Raises DeadlinePassed if the block takes longer than a timeout; 0 for none."""
    try:
        async with asyncio.timeout(timeout_us / 1e6 or None) as timeout:
            yield
    except TimeoutError as error:
        if timeout.expired():
            raise DeadlinePassed("the timeout of the request passed") from error
        raise


def _requested_model(request: Request, models: ServedModels) -> ServedModel:
    """The model in a request's path. Raises UnknownModel, also for another version."""
    served = models.named(request.path_params["name"])
    if request.path_params.get("version", served.model.revision) != served.model.revision:
        raise UnknownModel("expected the version that is served: its revision, or none")
    return served


class OpenInference(Extension):
    """The Open Inference Protocol."""

    uploads = _INFER_PATHS
    prefix = _OPEN_INFERENCE

    @staticmethod
    def problem_body(document: ProblemDocument) -> Mapping[str, str]:
        return {"error": f"{document.code}: {document.detail}"}

    def routes(self, service: Service) -> APIRouter:
        return _open_inference_routes(service)
