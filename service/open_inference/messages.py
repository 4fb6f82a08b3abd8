"""Requests and messages of the protocol: https://github.com/kserve/open-inference-protocol.

Unknown members of a request are ignored, unknown parameters are errors. The specification does not
say how BYTES that are no text are written in JSON; here they are base64.
`Inference-Header-Content-Length` announces the extension for binary tensor data.
"""

import struct
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eulerlora_client.contract.answers import WireModel
from eulerlora_client.contract.problems import (
    InvalidParameter,
    InvalidUpload,
    MalformedBody,
    UnsupportedMedia,
)
from eulerlora_client.contract.queries import PredictQuery
from eulerlora_client.settings import expected_value
from service.decoding.decode import without_parameters
from service.http.responses import JSON

DataType = Literal["BOOL", "BYTES", "FP64"]
Parameter = bool | int | float | str
Shape = tuple[int, ...]

IMAGE_INPUT = "image"

BINARY_OUTPUT = "binary_data_output"
MODEL, DETAIL = "model", "detail"
BINARY = "application/octet-stream"
HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_JSON_ITEMS = 1000
"""Members and elements in the JSON object; parsing millions of them would block the service."""
ELEMENT_LENGTH = struct.Struct("<I")  # before the bytes of each element of a BYTES tensor


class RequestMessage(BaseModel):
    """Base of the parts of a request: JSON types are not converted."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class ParametersMessage(RequestMessage):
    """Base of parameters, whose names are checked."""

    model_config = ConfigDict(extra="forbid")


class InputParameters(ParametersMessage):
    """Parameters of the input.

    binary_data_size: bytes of the tensor after the JSON object; None if the tensor is in `data`.
    content_type: of the strings in `data`.
    """

    binary_data_size: Annotated[int, Field(ge=0)] | None = None
    content_type: Literal["base64"] = "base64"


class RequestInput(RequestMessage):
    """The image. data: base64, flat or in the nested form of the shape."""

    name: Literal["image"]
    shape: tuple[Literal[1]] | tuple[Literal[1], Literal[1]]
    datatype: Literal["BYTES"]
    parameters: InputParameters = InputParameters()
    data: tuple[str | tuple[str, ...], ...] | None = None


class OutputParameters(ParametersMessage):
    """Parameters of an output. binary_data: None for the default of the request."""

    binary_data: bool | None = None


class RequestOutput(RequestMessage):
    """A requested output."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferRequest(RequestMessage):
    """The JSON object of an inference request. outputs: all if empty."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None = None
    parameters: dict[str, Parameter] = {}
    inputs: Annotated[tuple[RequestInput, ...], Field(min_length=1, max_length=1)]
    outputs: Annotated[tuple[RequestOutput, ...], Field(max_length=32)] = ()


class TensorMetadata(WireModel):
    """Name, type and shape of an input or output; -1 stands for any size."""

    name: str
    datatype: DataType
    shape: Shape


class ServerMetadata(WireModel):
    """The response of `/v2`."""

    name: str
    version: str
    extensions: tuple[str, ...]


class ModelMetadata(WireModel):
    """The response of `/v2/models/{name}`."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class ModelReady(WireModel):
    """The response of `/v2/models/{name}/ready`."""

    name: str
    ready: bool


class ResponseOutput(WireModel):
    """An output. data: absent if the tensor follows the JSON object."""

    name: str
    datatype: DataType
    shape: Shape
    parameters: dict[str, Parameter] | None = None
    data: tuple[Parameter, ...] | None = None


class InferResponse(WireModel):
    """The JSON object of a response. id: that of the request, if it has one."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Parameter]
    outputs: tuple[ResponseOutput, ...]


def query_of(model: str, parameters: Mapping[str, Parameter]) -> PredictQuery:
    """Returns the query for a prediction of `model`.

    Numbers and booleans must have their JSON type. Raises InvalidParameter and
    RequestValidationError.
    """
    sent = {name: value for name, value in parameters.items() if name != BINARY_OUTPUT}
    if MODEL in sent:
        raise InvalidParameter(f"{MODEL}: expected in the path")
    if DETAIL in sent:
        raise InvalidParameter(f"{DETAIL}: unknown parameter")
    try:
        return PredictQuery.model_validate({**sent, MODEL: model}, strict=True)
    except ValidationError as error:
        # Keeps only the parameter's name of each location; the rest names pydantic's types.
        errors = [{**fault, "loc": fault["loc"][:1]} for fault in error.errors()]
        raise RequestValidationError(errors) from error


def wants_binary_output(parameters: Mapping[str, Parameter]) -> bool:
    """Returns whether outputs without a parameter of their own are binary.

    Raises InvalidParameter.
    """
    value = parameters.get(BINARY_OUTPUT, False)
    if not isinstance(value, bool):
        raise InvalidParameter(f"{BINARY_OUTPUT}: expected true or false")
    return value


KNOWN_MEMBERS = frozenset().union(
    *(
        kind.model_fields
        for kind in (InferRequest, RequestInput, RequestOutput, InputParameters, OutputParameters)
    )
)


@dataclass(frozen=True)
class InferBody:
    """The JSON object of a request, and the image file."""

    request: InferRequest
    image: bytes


async def read_body(request: Request) -> InferBody:
    """Returns the content of an inference request.

    Raises UnsupportedMedia, MalformedBody, and InvalidUpload for an empty image.
    """
    media_type = without_parameters(request.headers.get("content-type", JSON))
    if media_type not in (JSON, BINARY) or "content-encoding" in request.headers:
        raise UnsupportedMedia(f"expected {JSON} or {BINARY}, not compressed")
    header_length = request.headers.get(HEADER_LENGTH)
    body = b"".join([chunk async for chunk in request.stream()])
    json_bytes = len(body) if header_length is None else _header_bytes(header_length, len(body))
    parsed = _parsed(body[:json_bytes])
    image = _image(parsed.inputs[0], memoryview(body)[json_bytes:])
    if not image:
        raise InvalidUpload("the image is empty")
    return InferBody(parsed, image)


def _header_bytes(sent: str, body_bytes: int) -> int:
    if not (sent.isascii() and sent.isdigit() and len(sent) < 16 and int(sent) <= body_bytes):
        raise MalformedBody(f"{HEADER_LENGTH}: expected at most the length of the body")
    return int(sent)


def _parsed(text: bytes) -> InferRequest:
    if text.count(b",") + text.count(b"{") + text.count(b"[") > MAX_JSON_ITEMS:
        raise MalformedBody(f"expected a JSON object with at most {MAX_JSON_ITEMS:,} items")
    try:
        return InferRequest.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"] if part in KNOWN_MEMBERS)
        expected = expected_value(fault)
        if fault["type"] == "missing":
            expected = "a value, got none"
        elif fault["type"] == "extra_forbidden":
            expected = "no other members"
        raise MalformedBody(f"{place or 'the body'}: expected {expected}") from None


def _image(sent: RequestInput, binary: memoryview) -> bytes:
    """Returns the file in the one element of the input. binary: what follows the JSON object."""
    size = sent.parameters.binary_data_size
    if (size is None) == (sent.data is None):
        raise MalformedBody(f"{IMAGE_INPUT}: expected data or binary_data_size, not both")
    if len(binary) != (size or 0):
        raise MalformedBody(f"{IMAGE_INPUT}: expected binary_data_size bytes after the JSON object")
    return _binary_element(binary) if sent.data is None else _text_element(sent)


def _binary_element(tensor: memoryview) -> bytes:
    prefix = ELEMENT_LENGTH.size
    if len(tensor) < prefix or ELEMENT_LENGTH.unpack_from(tensor)[0] != len(tensor) - prefix:
        raise MalformedBody(f"{IMAGE_INPUT}: expected the length of one element and its bytes")
    return bytes(tensor[prefix:])


def _text_element(sent: RequestInput) -> bytes:
    (element, *others) = sent.data or ("",)
    if isinstance(element, tuple) and len(element) == 1 and len(sent.shape) == 2:
        (element,) = element
    if others or isinstance(element, tuple):
        raise MalformedBody(f"{IMAGE_INPUT}: expected one element in data")
    try:
        return b64decode(element, validate=True)
    except ValueError:
        raise MalformedBody(f"{IMAGE_INPUT}: expected base64 in data") from None
