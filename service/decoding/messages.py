"""The messages between the service and a decoder: a header, a JSON object, raw bytes.

Nothing in them is executed. The service trusts no message of a decoder: a damaged image may have
taken it over. The lengths are checked before memory is allocated, every field before it is used.
"""

import builtins
import json
import math
import re
import struct
from dataclasses import dataclass
from traceback import walk_tb
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from eulerlora.settings import Preprocessing
from eulerlora_contract.answers import ImageQuality, PredictionWarning, WarningCode
from eulerlora_contract.problems import Problem, UnsupportedMedia, UnusableImage
from eulerlora_contract.settings import Settings
from service.decoding.details import Detail
from service.decoding.formats import Declared

HEADER = struct.Struct("!IQ")
"""Bytes of the JSON object, and of what follows it."""
MAX_FIELDS_BYTES = 16 * 1024
_MAX_SHARPNESS = 1020.0**2
"""The variance of values from -1020 to 1020, which the Laplacian of 8 bits has, is lower."""
_PIXEL = np.dtype(np.float32)
_ROUNDING = 1e-3
"""Of pixels in [0, 1], after a filter."""


@dataclass(frozen=True)
class DecodeJob:
    """An image file to decode.

    Attributes:
        sampling_digest: Of the model, for the content seed.
        with_quality: Also measure the image quality.
        pixels: Width times height by the header, which the service has read; None if the
            header has an estimate.
    """

    content: bytes
    declared: Declared
    preprocessing: Preprocessing
    sampling_digest: str
    with_quality: bool = False
    pixels: int | None = None

    @property
    def pixel_bytes(self) -> int:
        return math.prod(self.preprocessing.shape) * _PIXEL.itemsize

    def message(self) -> bytes:
        fields = {
            "declared": [self.declared.media_type, self.declared.filename],
            "preprocessing": self.preprocessing.model_dump(),
            "sampling_digest": self.sampling_digest,
            "with_quality": self.with_quality,
        }
        return message(json.dumps(fields), self.content)

    @classmethod
    def of_message(cls, fields: bytes, content: bytes) -> Self:
        """The job in a message of the service."""
        values = json.loads(fields)
        values["declared"] = Declared(*values["declared"])
        values["preprocessing"] = Preprocessing(**values["preprocessing"])
        return cls(content, **values)

    def result_bytes(self, header: bytes | memoryview) -> int:
        """The length of a decoder's whole message, from its header.

        Raises:
            ValueError: If the job has no result of this length.
        """
        fields, data = HEADER.unpack(header)
        if fields > MAX_FIELDS_BYTES or data not in (0, self.pixel_bytes):
            raise ValueError(f"expected 0 or {self.pixel_bytes} bytes of pixels, got {data}")
        return HEADER.size + int(fields) + int(data)

    def result(self, received: memoryview) -> "DecodedInput | Failure":
        """The result in a whole message of a decoder, whose length `result_bytes` gave.

        Raises:
            ValueError: If it is not the message of a result of this job.
        """
        fields_bytes, pixel_bytes = HEADER.unpack(received[: HEADER.size])
        fields = bytes(received[HEADER.size : HEADER.size + fields_bytes])
        if not pixel_bytes:
            return Failure.model_validate_json(fields)
        decoded = _DecodedFields.model_validate_json(fields)
        quality = decoded.quality
        if (quality is not None) != self.with_quality:
            raise ValueError("expected the image quality if the job asks for it, and only then")
        if quality is not None and (
            quality.sharpness > _MAX_SHARPNESS
            or quality.width * quality.height != (self.pixels or quality.width * quality.height)
        ):
            raise ValueError(
                "expected the size of the header, and a sharpness that a picture can have"
            )
        values = np.frombuffer(received, _PIXEL, offset=HEADER.size + fields_bytes)
        if not (values.min() >= -_ROUNDING and values.max() <= 1 + _ROUNDING):  # false for NaN
            raise ValueError("expected pixels in [0, 1]")
        pixels = values.reshape(self.preprocessing.shape).copy()
        warnings = tuple(
            PredictionWarning(code=one.code, message=one.detail.text) for one in decoded.warnings
        )
        return DecodedInput(pixels, decoded.content_seed, warnings, quality)


@dataclass(frozen=True)
class DecodedInput:
    """The network's input of a decoded image, and what is measured on the image.

    Attributes:
        pixels: Of the shape of the job's preprocessing, float32 in [0, 1].
        content_seed: A seed derived from the decoded image and the model's sampling digest.
        quality: Of the whole image, None if not measured.
        decode_s: Seconds from bytes to pixels, which the service measures.
    """

    pixels: npt.NDArray[np.float32]
    content_seed: int
    warnings: tuple[PredictionWarning, ...]
    quality: ImageQuality | None = None
    decode_s: float = 0.0

    def message(self) -> bytes:
        warnings = tuple(
            _Warning(code=WarningCode(one.code), detail=Detail.of(one.message))
            for one in self.warnings
        )
        fields = _DecodedFields(
            content_seed=self.content_seed, warnings=warnings, quality=self.quality
        )
        return message(fields.model_dump_json(), self.pixels.tobytes())


class _Warning(Settings):
    """A warning about an image."""

    code: WarningCode
    detail: Detail


class _DecodedFields(Settings):
    """The JSON object before the pixels of a decoded image."""

    content_seed: Annotated[int, Field(ge=0, lt=2**32)]
    warnings: Annotated[tuple[_Warning, ...], Field(max_length=len(WarningCode))]
    quality: ImageQuality | None


_MODULE = re.compile(
    "^(PIL|eulerlora(_[a-z]{1,20})?|numpy|service|torch)"
    r"(\.[a-zA-Z0-9_]{1,40}){0,5}\Z"
)
_Line = tuple[Annotated[str, Field(pattern=_MODULE)], Annotated[int, Field(ge=0, le=99_999)]]
_MAX_LINES = 20
_PROBLEMS: dict[str, type[Problem]] = {
    "unsupported_media": UnsupportedMedia,
    "out_of_memory": UnusableImage,
    "unusable_image": UnusableImage,
}


class Failure(Settings):
    """The JSON object of a job without a result.

    Attributes:
        kind: A problem of the image, or a defect.
        detail: Of the problem.
        exception: The name of the exception of a defect, if it is one of Python's.
        lines: Modules and line numbers from which a defect was raised, the innermost last.
    """

    kind: Literal["unsupported_media", "out_of_memory", "unusable_image", "defect"]
    detail: Detail = Detail(number=0)
    exception: Annotated[str, Field(pattern="^[A-Za-z]{1,40}$")] = Exception.__name__
    lines: Annotated[tuple[_Line, ...], Field(max_length=_MAX_LINES)] = ()

    @classmethod
    def of_defect(cls, error: Exception) -> Self:
        """The failure of an exception that no image should cause."""
        frames = walk_tb(error.__traceback__)
        specs = [(frame.f_globals.get("__spec__"), line) for frame, line in frames]
        lines = [(spec.name, line) for spec, line in specs if spec and _MODULE.match(spec.name)]
        name = type(error).__name__
        exception = name if hasattr(builtins, name) else Exception.__name__
        return cls(kind="defect", exception=exception, lines=tuple(lines[-_MAX_LINES:]))

    def message(self) -> bytes:
        return message(self.model_dump_json())

    @property
    def error(self) -> Exception:
        if self.kind in _PROBLEMS:
            return _PROBLEMS[self.kind](self.detail.text)
        defect = RuntimeError("the decoder failed")
        known = self.exception if hasattr(builtins, self.exception) else Exception.__name__
        places = ", ".join(f"{module}:{line}" for module, line in self.lines)
        defect.add_note(f"{known} in {places}")
        return defect


def message(fields: str, data: bytes = b"") -> bytes:
    encoded = fields.encode()
    return b"".join((HEADER.pack(len(encoded), len(data)), encoded, data))
