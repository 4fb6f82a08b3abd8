"""Response bodies of `/models` and of the probes."""

from typing import Annotated, Any

from pydantic import Field

from eulerlora_client.contract.fields import PositiveInt, Probability, WireModel
from eulerlora_client.contract.sampling import Auto, Mode


class ModelSummary(WireModel):
    """One served model."""

    name: str
    revision: str
    classes: tuple[str, ...]
    default: bool


class ModelList(WireModel):
    """All served models, the default first."""

    models: Annotated[tuple[ModelSummary, ...], Field(min_length=1)]


class ClassName(WireModel):
    """A class of a model: its short name, and a description for people."""

    name: str
    description: str


class ImageLimits(WireModel):
    """The image sizes that the service decodes.

    min_side, max_side: width and height in pixels. max_pixels: width times height.
    """

    min_side: PositiveInt
    max_side: PositiveInt
    max_pixels: PositiveInt


class Threshold(WireModel):
    """The MSP below which an image is flagged as out of distribution, for a mode and samples.

    kept: share of the `images` in-distribution images of `data` with an MSP at or above `msp`.
    """

    mode: Mode
    samples: PositiveInt | Auto
    msp: Probability
    kept: Probability
    images: PositiveInt
    data: str


class ModelDetails(WireModel):
    """Details of a served model: classes, input limits, thresholds and provenance.

    max_body_bytes: of a request body. max_samples: per adapter.
    """

    name: str
    revision: str
    classes: tuple[ClassName, ...]
    adapters: int
    input_size: int
    image_limits: ImageLimits
    max_body_bytes: int
    max_samples: int
    thresholds: tuple[Threshold, ...]
    provenance: dict[str, Any]


class ServiceStatus(WireModel):
    """The response of a probe: "alive" or "ready"."""

    status: str
