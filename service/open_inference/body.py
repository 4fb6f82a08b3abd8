"""Bodies of inference requests: a JSON object, and the image in it or after it.

The specification does not say how BYTES that are no text are written in JSON; here they are base64.
`Inference-Header-Content-Length` announces the extension for binary tensor data.
"""

import struct
from base64 import b64decode
from dataclasses import dataclass

from fastapi import Request
from pydantic import ValidationError

from eulerlora_client.contract.problems import InvalidUpload, MalformedBody, UnsupportedMedia
from eulerlora_client.settings import expected_value
from service.open_inference.messages import (
    IMAGE_INPUT,
    InferRequest,
    InputParameters,
    OutputParameters,
    RequestInput,
    RequestOutput,
)

JSON, BINARY = "application/json", "application/octet-stream"
HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_JSON_ITEMS = 1000
"""Members and elements in the JSON object; parsing millions of them would block the service."""

ELEMENT_LENGTH = struct.Struct("<I")  # before the bytes of each element of a BYTES tensor
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
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
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
