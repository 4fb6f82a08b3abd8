"""Texts about an image as numbers, which is all that a decoder can say about it.

An image that has taken its decoder over could otherwise write anything into answers and logs. The
service makes the text from the number of a sentence and the numbers in it.
"""

import re
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Annotated, Self

from pydantic import Field, model_validator

from eulerlora_contract.settings import Settings
from service.containers import image_containers

_OTHER = "the image cannot be decoded"
_FORMATS = ("JPEG", "PNG", "WEBP")
_MODES = (
    "1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "LAB", "HSV",
    "I", "I;16", "I;16B", "I;16L", "F",
)  # fmt: skip
_WIDE_MODES = ("gray", "gray with alpha", "RGB", "RGB with alpha")
_SOURCES = ("PNG chunk cICP", "colour profile", "PNG chunk sRGB", "PNG chunk gAMA")
_REASONS = (
    "it is damaged, incomplete or there are several", "it is empty", "it has no rendering intent",
    "it is damaged", "its codes are unknown", "its exponent is none of an image",
    "its primaries span no colours", "it is not one of an RGB, gray or CMYK image",
    *(f"it is for {one} and the image is {other}"
      for one, other in product(("RGB", "L", "CMYK"), _MODES)),
)  # fmt: skip
_JPEG = "expected a baseline or progressive JPEG of 8 bits per sample in gray, RGB or CMYK; "
_SENTENCES = (
    _OTHER,
    "decoding the image takes too much memory",
    "the image is damaged or truncated",
    "the image contradicts its own header",
    "the image has indexed colours but no palette",
    "the image is fully transparent",
    "the image is nearly transparent",
    "expected a single frame; the image is animated",
    "expected sides of # to # pixels; the image is # x #",
    "expected at most # pixels; the image is # x #",
    "expected at least one byte for # pixels; the image is # x # and has # bytes",
    "expected at most # segments in a JPEG",
    "expected at most # scans in a JPEG",
    "expected at most # chunks in a file of this size",
    "expected at most # chunks in a WebP file",
    "expected at most # MiB of texts and colour profile in a PNG",
    *(f"{_JPEG}{one} JPEG is not supported"
      for one in ("lossless", "hierarchical", "lossless (JPEG-LS)")),
    *(f"{_JPEG.replace('8', '#')}# {one} are not supported"
      for one in ("bits per sample", "components")),
    "expected sampling factors that divide the largest ones; others are not supported",
    "expected 8 or 16 bits per sample, got floating point without a range",
    "expected gray of 0 to 65,535, got more than 16 bits",
    "expected samples from 0 to 65,535 in a file of 16 bits per sample; all samples are below "
    "4,096, as in data of 12 bits",
    *("expected a PNG of standard dynamic range; its transfer function is "
      f"{one}, whose look depends on the screen" for one in ("PQ", "HLG")),
    *(f"images of mode {mode} cannot be converted to RGB" for mode in _MODES),
    # Warnings
    *(f"converted from {mode} to RGB" for mode in _MODES),
    *(f"converted from 16 bits of {mode} to RGB" for mode in _WIDE_MODES),
    *(f"converted from the embedded {source} to sRGB" for source in _SOURCES),
    *(f"the {source} is ignored: {reason}" for source, reason in product(_SOURCES, _REASONS)),
    "bytes of the JPEG that belong to no pixels are ignored",
    "a chunk of the PNG with a wrong checksum is ignored",
    "the transparency of the PNG is ignored: it is damaged",
    "a frame surrounds the picture, which alone can make it unfamiliar: crop the frame and send "
    "the picture again",
    "the picture shows a ruler, which alone can make it unfamiliar: crop it, or take the picture "
    "without it, and send it again",
)  # fmt: skip
_DIGITS = re.compile(r"\d[\d,]*")


@cache
def sentences() -> Mapping[str, int]:
    """The numbers of the sentences, those of the installed containers included.

    `#` is a number that the image decides. The first sentence is for all others.
    """
    containers = image_containers().values()
    formats = (*_FORMATS, *(one.name for one in containers))
    texts = (
        *_SENTENCES,
        *(f"the {one} data is broken or truncated" for one in formats),
        *(f"declared as another type, decoded as {one}" for one in formats),
        *(sentence for one in containers for sentence in one.sentences),
    )
    return {text: number for number, text in enumerate(texts)}


class Detail(Settings):
    """A sentence by its number, and the values in it."""

    number: Annotated[int, Field(ge=0)]
    values: tuple[Annotated[int, Field(ge=0, lt=2**40)], ...] = ()

    @model_validator(mode="after")
    def _all_values(self) -> Self:
        if self.number >= len(sentences()):
            raise ValueError("expected the number of a sentence")
        if len(self.values) != self._sentence.count("#"):
            raise ValueError("expected a value for every number of the sentence")
        return self

    @classmethod
    def of(cls, text: str) -> Self:
        """The detail that says `text`; that of another sentence is the first."""
        numbers = sentences()
        if text in numbers:
            return cls(number=numbers[text])
        number = numbers.get(_DIGITS.sub("#", text))
        if number is None:
            return cls(number=0)
        values = tuple(int(digits.replace(",", "")) for digits in _DIGITS.findall(text))
        return cls(number=number, values=values)

    @property
    def _sentence(self) -> str:
        return list(sentences())[self.number]

    @property
    def text(self) -> str:
        values = iter(self.values)
        return re.sub("#", lambda _: f"{next(values):,}", self._sentence)
