"""Malformed bodies of all routes with images, made from valid ones by random changes."""

import json
import random
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

HEADER_LENGTH = "Inference-Header-Content-Length"
SIZE = (64, 48)
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**64, 10**400, -0.0, 1e308, 1.5, "", " ", "0", "a" * 5000,
    "\0", "\u202e", "é", "..", "🦠" * 50, [], {}, [[]], [None], [1, 1, 1], {"a": 1}, [{}] * 20,
)  # fmt: skip
TOKENS = (
    b"NaN", b"Infinity", b"-", b"[" * 3000, b'{"a":' * 400, b"\xff\xfe", b"\xef\xbb\xbf", b"\0",
    b'"\\ud800"', b"1e99999", b"9" * 5000, b",", b"}", b"]", b'"', b"\\u0000", b"//", b"\r\n\r\n",
)  # fmt: skip
LENGTHS = ("0", "1", "-1", "+5", "1e3", "99999999999999999999", "", "0x10", "7,7", "1.0")
BOUNDARY = b"frontier"
OPENING = (
    b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
)
CLOSING = b"\r\n--" + BOUNDARY + b"--\r\n"
IMAGES = tuple(
    (mode, file_format)
    for file_format, modes in (("JPEG", ("RGB", "CMYK", "L")), ("PNG", ("RGB", "L", "P", "LA")),
                               ("WEBP", ("RGB", "RGBA")))
    for mode in modes
)  # fmt: skip
CONTENT_TYPES = (
    "image/jpeg", "image/png", "image/webp", "multipart/form-data", "application/json", "",
)  # fmt: skip


class Draw(random.Random):
    """Draws values from bytes, so that a small change of the bytes is a small one of a body.

    After the last byte, every draw is the lowest one.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(0)
        self._content = BytesIO(content)

    def random(self) -> float:
        """A number in [0, 1), from two bytes."""
        return self.getrandbits(16) / 2**16

    def getrandbits(self, k: int, /) -> int:
        """`k` bits of the next bytes."""
        return int.from_bytes(self._content.read(-(-k // 8))) % 2**k


@dataclass(frozen=True)
class Body:
    """A request body with its headers; `path` is without the model's name."""

    path: str
    content: bytes
    headers: Mapping[str, str]


def json_body(draw: random.Random) -> Body:
    """An inference request with the image in the JSON object."""
    image = changed(draw, jpeg()) if draw.random() < 0.3 else jpeg()
    text = json.dumps(infer_object(draw, data=[b64encode(image).decode()])).encode()
    return Body("/infer", changed_text(draw, text), {"Content-Type": "application/json"})


def binary_body(draw: random.Random) -> Body:
    """An inference request with the image after the JSON object."""
    image = changed(draw, jpeg()) if draw.random() < 0.3 else jpeg()
    stated = len(image) if draw.random() < 0.8 else draw.choice((0, 1, 2**32 - 1, len(image) + 1))
    tensor = struct.pack("<I", stated) + image
    size: Any = len(tensor) if draw.random() < 0.8 else deepcopy(draw.choice(HOSTILE))
    sent = infer_object(draw, parameters={"binary_data_size": size})
    text = json.dumps(sent).encode()
    if draw.random() < 0.4:
        text = changed_text(draw, text)
    length = str(len(text)) if draw.random() < 0.7 else draw.choice((*LENGTHS, str(len(text) + 9)))
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: length}
    return Body("/infer", text + tensor, headers)


def image_body(draw: random.Random) -> Body:
    """A picture in one of the formats, as the whole body or in a form."""
    mode, file_format = draw.choice(IMAGES)
    image = changed(draw, encoded(file_format, mode))
    content = image[: draw.randrange(len(image))] if draw.random() < 0.2 else image
    if draw.random() < 0.5:
        return Body("/predict", content, {"Content-Type": draw.choice(CONTENT_TYPES)})
    opening, closing = (
        changed(draw, frame) if draw.random() < 0.3 else frame for frame in (OPENING, CLOSING)
    )
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    return Body("/predict", opening + content + closing, headers)


PROTOCOLS: Mapping[str, Callable[[random.Random], Body]] = {
    "json": json_body,
    "binary": binary_body,
    "image": image_body,
}


def infer_object(draw: random.Random, **of_input: Any) -> Any:
    """The JSON object of a request, with up to three changes of its values."""
    sent: Any = {
        "id": "a",
        "parameters": {"mode": "stoch", "samples": 2, "seed": 1, "binary_data_output": False},
        "inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", **of_input}],
        "outputs": [{"name": "label", "parameters": {"binary_data": True}}, {"name": "ood"}],
    }
    for _ in range(draw.randrange(4)):
        parent, key = draw.choice(list(places(sent)))
        if isinstance(parent, dict) and draw.random() < 0.3:
            parent[draw.choice((str(key) + "s", "", "raw", "content_type"))] = parent.pop(key)
        else:
            parent[key] = deepcopy(draw.choice(HOSTILE))
    return sent


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every container in a JSON value with each of its keys."""
    for key in range(len(value)) if isinstance(value, list) else tuple(value):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def changed_text(draw: random.Random, text: bytes) -> bytes:
    """A JSON text, half of the time with a change that JSON may not allow."""
    if draw.random() < 0.5:
        return text
    at = draw.randrange(min(len(text), 400))
    return draw.choice(
        (text[:at] + draw.choice(TOKENS) + text[at:], text[:at], changed(draw, text))
    )


def changed(draw: random.Random, content: bytes) -> bytes:
    """Bytes with some of them replaced or left out."""
    result = bytearray(content)
    for _ in range(draw.choice((1, 2, 8, 64))):
        at = draw.randrange(len(result))
        result[at : at + draw.choice((0, 1, 1, 2))] = bytes([draw.randrange(256)])
    return bytes(result)


@cache
def picture() -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(SIZE)


@cache
def jpeg() -> bytes:
    return encoded("JPEG")


def encoded(file_format: str, mode: str = "RGB", **options: Any) -> bytes:
    file = BytesIO()
    picture().convert(mode).save(file, file_format, **options)
    return file.getvalue()
