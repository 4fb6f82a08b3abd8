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


class ScoreThreshold(WireModel):
    """The value of a score above which an image is flagged.

    kept: share of the in-distribution images that are not flagged. upper_quartile: value that at
    most a quarter of them exceed.
    """

    threshold: float
    kept: Probability
    upper_quartile: float


class Threshold(WireModel):
    """The MSP below which an image is flagged as out of distribution, for a mode and samples.

    kept: share of the `images` in-distribution images of `data` with an MSP at or above `msp`.
    energy, feature_distance: thresholds of the other scores, null if they were not calibrated.
    label_shares: share of the images with each label, in the order of the classes.
    """

    mode: Mode
    samples: PositiveInt | Auto
    msp: Probability
    kept: Probability
    images: PositiveInt
    data: str
    energy: ScoreThreshold | None = None
    feature_distance: ScoreThreshold | None = None
    label_shares: tuple[Probability, ...] | None = None


class PredictionSetOptions(WireModel):
    """Options of a prediction for which `coverage` gives a prediction set.

    unit: "lesion" or "image". units: number of calibration units in `data`, by class.
    always_included: classes that are in every set, because they have too few units.
    """

    coverage: Probability
    mode: Mode
    samples: PositiveInt
    sampler: str
    precision: str
    unit: str
    units: dict[str, int]
    always_included: tuple[str, ...]
    data: str


class ShiftSignal(WireModel):
    """One signal of the shift monitor, with the pictures since this revision is served.

    name: "feature_distance" (the picture is `unfamiliar`), "msp" (it is `ood`), or "label" (the
    predicted class). label: the class with the most evidence; null for other signals. pictures:
    pictures with this signal. rate: share of them with the event. expected: its share among the
    calibration images. tolerated: the highest rate that is no shift. evidence: log10 of the
    statistic of the test (docs/monitoring.md). alarm: the evidence has reached its limit.
    """

    name: str
    label: str | None
    pictures: int
    rate: Probability
    expected: Probability
    tolerated: Probability
    evidence: float
    alarm: bool


class ModelShift(WireModel):
    """Comparison of the pictures since this revision is served with the calibration images.

    signals: those that the checkpoint has calibration data for. alarm: one of them has an alarm.
    limit: the evidence that sets an alarm.
    """

    pictures: int
    alarm: bool
    limit: float
    signals: tuple[ShiftSignal, ...]


class ModelDetails(WireModel):
    """Details of a served model: classes, input limits, thresholds, shift and provenance.

    max_body_bytes: of a request body. max_samples: per adapter. shift: null if the checkpoint has
    no thresholds.
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
    prediction_sets: tuple[PredictionSetOptions, ...] = ()
    shift: ModelShift | None = None
    provenance: dict[str, Any]


class ServiceStatus(WireModel):
    """The response of a probe: "alive" or "ready"."""

    status: str
