"""Response bodies of `/models` and of the probes."""

from typing import Annotated, Any

from pydantic import Field

from eulerlora_client.contract.fields import PositiveInt, Probability, Revision, WireModel
from eulerlora_client.contract.sampling import Auto, Mode

Source = Annotated[
    str | None,
    Field(
        description="The repository of the Hugging Face Hub at the commit that is served, "
        "`hf://ORGANISATION/NAME@COMMIT`; null for a folder."
    ),
]

ServedPrecision = Annotated[
    str, Field(description="Data type of the matrix products, `float32` or `bfloat16`.")
]


class ModelSummary(WireModel):
    """One served model."""

    name: Annotated[str, Field(description="The value of the parameter `model`.")]
    revision: Revision
    source: Source = None
    classes: tuple[str, ...]
    precision: ServedPrecision = "float32"
    default: Annotated[bool, Field(description="It answers requests without `model`.")]


class ModelList(WireModel):
    """All served models, the default first."""

    models: Annotated[tuple[ModelSummary, ...], Field(min_length=1)]


class ClassName(WireModel):
    """A class of a model."""

    name: str
    description: Annotated[str, Field(description="For people.")]


class ImageLimits(WireModel):
    """The image sizes that the service decodes."""

    min_side: Annotated[PositiveInt, Field(description="Least width and height, in pixels.")]
    max_side: Annotated[PositiveInt, Field(description="Greatest width and height, in pixels.")]
    max_pixels: Annotated[PositiveInt, Field(description="Greatest width times height.")]
    max_jpeg_pixels: Annotated[
        PositiveInt,
        Field(description="Greatest width times height of a JPEG, which is reduced on decoding."),
    ]
    max_request_pixels: Annotated[
        PositiveInt, Field(description="Greatest sum over the images of a request.")
    ]
    dicom: Annotated[bool, Field(description="DICOM files are accepted.")] = False


class ScoreThreshold(WireModel):
    """The value of a score above which an image is flagged."""

    threshold: Annotated[float, Field(description="In the unit of the score.")]
    kept: Annotated[
        Probability,
        Field(description="Share of the in-distribution images that are not flagged."),
    ]
    upper_quartile: Annotated[
        float, Field(description="Value of the score that at most a quarter of them exceed.")
    ]


class Threshold(WireModel):
    """The MSP below which an image is flagged as out of distribution, for a mode and samples."""

    mode: Mode
    samples: PositiveInt | Auto
    msp: Annotated[Probability, Field(description="The threshold.")]
    kept: Annotated[
        Probability, Field(description="Share of the images with an MSP at or above it.")
    ]
    images: Annotated[PositiveInt, Field(description="Number of in-distribution images.")]
    data: Annotated[str, Field(description="Where the images come from.")]
    energy: Annotated[
        ScoreThreshold | None, Field(description="Null if it was not calibrated.")
    ] = None
    feature_distance: Annotated[
        ScoreThreshold | None, Field(description="Null if it was not calibrated.")
    ] = None
    label_shares: Annotated[
        tuple[Probability, ...] | None,
        Field(description="Share of the images with each label, in the order of the classes."),
    ] = None
    precision: Annotated[
        str, Field(description="Of the predictions that the thresholds were fitted to.")
    ] = "float32"


class PredictionSetOptions(WireModel):
    """Options of a prediction for which `coverage` gives a prediction set."""

    coverage: Probability
    mode: Mode
    samples: PositiveInt
    sampler: str
    precision: str
    unit: Annotated[str, Field(description="`lesion` or `image`.")]
    units: Annotated[
        dict[str, int], Field(description="Number of calibration units in `data`, by class.")
    ]
    always_included: Annotated[
        tuple[str, ...],
        Field(description="Classes in every set, because they have too few units."),
    ]
    data: Annotated[str, Field(description="The calibration data.")]


class ShiftSignal(WireModel):
    """One signal of the shift monitor, with the pictures since this revision is served."""

    name: Annotated[
        str,
        Field(
            description="`feature_distance` (the picture is `unfamiliar`), "
            "`feature_distance_quartile`, `msp` (it is `ood`), or `label` (the predicted class)."
        ),
    ]
    label: Annotated[
        str | None,
        Field(description="The class with the most evidence; null for other signals."),
    ]
    pictures: Annotated[int, Field(description="Number of pictures with this signal.")]
    rate: Annotated[Probability, Field(description="Share of them with the event.")]
    expected: Annotated[Probability, Field(description="Its share among calibration images.")]
    tolerated: Annotated[Probability, Field(description="The highest rate that is no shift.")]
    evidence: Annotated[
        float, Field(description="Log10 of the statistic of the test (docs/monitoring.md).")
    ]
    alarm: Annotated[bool, Field(description="The evidence has reached its limit.")]


class ModelShift(WireModel):
    """Comparison of the pictures since this revision is served with the calibration images."""

    pictures: Annotated[int, Field(description="Number of pictures.")]
    alarm: Annotated[bool, Field(description="One of the signals has an alarm.")]
    limit: Annotated[float, Field(description="The evidence that sets an alarm (log10).")]
    signals: Annotated[
        tuple[ShiftSignal, ...],
        Field(description="Those that the checkpoint has calibration data for."),
    ]


class ModelDetails(WireModel):
    """Details of a served model: classes, input limits, thresholds, shift and provenance."""

    name: str
    revision: Revision
    source: Source = None
    classes: tuple[ClassName, ...]
    adapters: Annotated[int, Field(description="Number of adapters.")]
    input_size: Annotated[int, Field(description="Side of the network's input, in pixels.")]
    precision: ServedPrecision = "float32"
    precision_reason: Annotated[str, Field(description="Why this precision was chosen.")] = ""
    image_limits: ImageLimits
    max_body_bytes: Annotated[int, Field(description="Greatest size of one upload, in bytes.")]
    max_samples: Annotated[int, Field(description="Greatest number of samples per adapter.")]
    thresholds: tuple[Threshold, ...]
    prediction_sets: tuple[PredictionSetOptions, ...] = ()
    shift: Annotated[
        ModelShift | None, Field(description="Null if the checkpoint has no thresholds.")
    ] = None
    provenance: Annotated[
        dict[str, Any], Field(description="Recipe, seed, commit and data of the training run.")
    ]


class ServiceStatus(WireModel):
    """The response of a probe."""

    status: Annotated[str, Field(description="`alive` or `ready`.")]
