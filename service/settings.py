"""What an operator can set about the service."""

from typing import Annotated

from pydantic import Field

from eulerlora.settings import PositiveInt, Settings

MAX_SAMPLES = 64
DEFAULT_SAMPLES = 4

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ImageLimits(Settings):
    """Which images are decoded at all; decided from the header.

    min_side, max_side: of width and height, in pixels. max_pixels: of their product.
    """

    min_side: PositiveInt = 32
    max_side: PositiveInt = 8192
    max_pixels: PositiveInt = 24_000_000


class ServiceSettings(Settings):
    """Limits of the service.

    max_body_bytes: of an upload, whole. max_batch_files: images of one /predict/batch.
    max_batch_rows: rows (image, trajectory) in one forward pass; a single question may exceed it.
    max_batch_s: seconds after which a pass that has not ended means a lost device.
    max_waiting_rows: rows of accepted questions that do not run yet. deadline_s: from a request's
    arrival; what has not begun to run by then is not run. fewer_samples: under load, a question
    is run with fewer samples than were asked for, and its answer says so.
    decode_threads: images decoded at the same time.
    """

    images: ImageLimits = ImageLimits()
    max_body_bytes: PositiveInt = 20 * 1024 * 1024
    max_batch_files: PositiveInt = 32
    max_batch_rows: PositiveInt = 128
    max_batch_s: Seconds = 60
    max_waiting_rows: PositiveInt = 1024
    deadline_s: Seconds = 10
    fewer_samples: bool = False
    decode_threads: Annotated[int, Field(ge=1, le=64)] = 2
