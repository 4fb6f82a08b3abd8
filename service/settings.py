"""What an operator can set about the service."""

from typing import Annotated

from pydantic import Field

from eulerlora.settings import PositiveInt, Settings

MAX_SAMPLES = 64
DEFAULT_SAMPLES = 4


class ImageLimits(Settings):
    """Which images are decoded at all; decided from the header.

    min_side, max_side: of width and height, in pixels. max_pixels: of their product.
    """

    min_side: PositiveInt = 32
    max_side: PositiveInt = 8192
    max_pixels: PositiveInt = 24_000_000


class ServiceSettings(Settings):
    """Limits of the service.

    max_body_bytes: of an upload, whole. max_batch_rows: rows (image, trajectory) in one forward
    pass; a single question may exceed it. decode_threads: images decoded at the same time.
    """

    images: ImageLimits = ImageLimits()
    max_body_bytes: PositiveInt = 20 * 1024 * 1024
    max_batch_rows: PositiveInt = 128
    decode_threads: Annotated[int, Field(ge=1, le=64)] = 2
