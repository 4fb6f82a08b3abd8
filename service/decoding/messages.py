"""The messages between the service and a decoder: a header, a JSON object, raw bytes.

Nothing in them is executed. The service trusts no message of a decoder: a damaged image may have
taken it over. The lengths are checked before memory is allocated, every field before it is used.
"""

import json
import math
import struct
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from eulerlora.settings import Preprocessing
from eulerlora_contract.answers import ImageQuality, PredictionWarning
from eulerlora_contract.problems import Problem, UnsupportedMedia, UnusableImage
from eulerlora_contract.settings import Settings
from service.decoding.decode import Declared

HEADER = struct.Struct("!IQ")
"""Bytes of the JSON object, and of what follows it."""
MAX_FIELDS_BYTES = 16 * 1024
MAX_TRACEBACK = 4000
_PIXEL = np.dtype(np.float32)
_ROUNDING = 1e-3
"""Of pixels in [0, 1], after a filter."""


@dataclass(frozen=True)
class DecodeJob:
    """An image file to decode.

    Attributes:
        sampling_digest: Of the model, for the content seed.
        with_quality: Also measure the image quality.
    """

    content: bytes
    declared: Declared
    preprocessing: Preprocessing
    sampling_digest: str
    with_quality: bool = False

    @property
    def pixel_bytes(self) -> int:
        return math.prod(self.preprocessing.shape) * _PIXEL.itemsize


@dataclass(frozen=True)
class DecodedInput:
    """The network's input of a decoded image, and what is measured on the image.

    Attributes:
        pixels: Of the shape of the job's preprocessing, float32 in [0, 1].
        content_seed: A seed derived from the decoded image and the model's sampling digest.
        decode_s: Seconds from bytes to pixels.
        quality: Of the whole image, None if not measured.
    """

    pixels: npt.NDArray[np.float32]
    content_seed: int
    warnings: tuple[PredictionWarning, ...]
    decode_s: float
    quality: ImageQuality | None = None


class _DecodedFields(Settings):
    """The JSON object before the pixels of a decoded image."""

    content_seed: Annotated[int, Field(ge=0, lt=2**32)]
    warnings: tuple[PredictionWarning, ...]
    decode_s: Annotated[float, Field(ge=0, le=86_400)]
    quality: ImageQuality | None


_PROBLEMS: dict[str, type[Problem]] = {
    "unsupported_media": UnsupportedMedia,
    "out_of_memory": UnusableImage,
    "unusable_image": UnusableImage,
}


class Failure(Settings):
    """The JSON object of a job without a result.

    Attributes:
        kind: A problem of the image, or a defect.
        text: The detail of the problem, or the traceback of the defect.
    """

    kind: Literal["unsupported_media", "out_of_memory", "unusable_image", "defect"]
    text: Annotated[str, Field(max_length=MAX_TRACEBACK)]

    @property
    def error(self) -> Exception:
        if self.kind in _PROBLEMS:
            return _PROBLEMS[self.kind](self.text)
        defect = RuntimeError("the decoder failed")
        defect.add_note(self.text)
        return defect


def message(fields: str, data: bytes = b"") -> bytes:
    encoded = fields.encode()
    return b"".join((HEADER.pack(len(encoded), len(data)), encoded, data))


def job_message(job: DecodeJob) -> bytes:
    fields = {
        "declared": [job.declared.media_type, job.declared.filename],
        "preprocessing": job.preprocessing.model_dump(),
        "sampling_digest": job.sampling_digest,
        "with_quality": job.with_quality,
    }
    return message(json.dumps(fields), job.content)


def job_of(fields: bytes, content: bytes) -> DecodeJob:
    """The job in a message of the service."""
    values = json.loads(fields)
    values["declared"] = Declared(*values["declared"])
    values["preprocessing"] = Preprocessing(**values["preprocessing"])
    return DecodeJob(content, **values)


def result_message(result: DecodedInput | Failure) -> bytes:
    if isinstance(result, Failure):
        return message(result.model_dump_json())
    values = {name: getattr(result, name) for name in _DecodedFields.model_fields}
    return message(_DecodedFields(**values).model_dump_json(), result.pixels.tobytes())


def message_bytes(header: bytes | memoryview, job: DecodeJob) -> int:
    """The length of a decoder's whole message, from its header.

    Raises:
        ValueError: If the job has no result of this length.
    """
    fields, data = HEADER.unpack(header)
    if fields > MAX_FIELDS_BYTES or data not in (0, job.pixel_bytes):
        raise ValueError(f"expected 0 or {job.pixel_bytes} bytes of pixels, got {data}")
    return HEADER.size + int(fields) + int(data)


def result_of(received: memoryview, job: DecodeJob) -> DecodedInput | Failure:
    """The result in a whole message of a decoder, whose length `message_bytes` gave.

    Raises:
        ValueError: If it is not the message of a result of this job.
    """
    fields_bytes, pixel_bytes = HEADER.unpack(received[: HEADER.size])
    fields = bytes(received[HEADER.size : HEADER.size + fields_bytes])
    if not pixel_bytes:
        return Failure.model_validate_json(fields)
    decoded = _DecodedFields.model_validate_json(fields)
    if (decoded.quality is not None) != job.with_quality:
        raise ValueError("expected the image quality if the job asks for it, and only then")
    values = np.frombuffer(received, _PIXEL, offset=HEADER.size + fields_bytes)
    if not (values.min() >= -_ROUNDING and values.max() <= 1 + _ROUNDING):  # false for NaN
        raise ValueError("expected pixels in [0, 1]")
    pixels = values.reshape(job.preprocessing.shape).copy()
    return DecodedInput(
        pixels, **{name: getattr(decoded, name) for name in type(decoded).model_fields}
    )
