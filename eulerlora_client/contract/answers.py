"""Response bodies: `/predict`, `/triage`, `/models`, their batches, problems and probes."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from eulerlora_client.contract.problems import SENT_BY_SERVICE
from eulerlora_client.contract.sampling import MAX_SEED, Auto, Mode, Precision
from eulerlora_client.settings import PositiveInt, Probability, Settings, optional

NonEmpty = Annotated[str, Field(min_length=1)]
Nats = Annotated[float, Field(ge=0)]
Revision = Annotated[
    str, Field(description="SHA-256 of the model's files; changes whenever its answers may.")
]
RequestId = Annotated[
    str, Field(description="The value of the header X-Request-ID; the log and the audit have it.")
]
Index = Annotated[
    int | None,
    Field(ge=0, description="Position of the image in its batch, from 0; only in a batch."),
]
ItemId = Annotated[
    str | None,
    Field(description="Request id, colon, index; the audit log has it. Only in a batch."),
]


class WireModel(BaseModel):
    """Base of all response bodies: immutable, and unknown keys of later servers are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


def item_id(request_id: str, index: int) -> str:
    """Returns the id of one image of a batch. No request id contains a colon."""
    return f"{request_id}:{index}"


class StandardError(WireModel):
    """Standard errors of a result that ran in rounds, compared with unlimited samples.

    Rounds are those of `samples=auto`. The value plus and minus two errors is a 95% interval that
    accounts for the adaptive number of samples.
    """

    msp: Annotated[float, Field(ge=0, description="Of the highest probability.")]
    entropy: Annotated[Nats, Field(description="Of the entropy, in nats.")]


class OodScore(WireModel):
    """An out-of-distribution score of one image."""

    value: Annotated[float, Field(description="The score; `OodScores` states its unit.")]
    threshold: Annotated[
        float | None,
        Field(
            description="Limit in the unit of the score: `msp` is flagged below it, the other "
            "scores above theirs. Null, with a warning, if the checkpoint has no threshold of this "
            "score for the mode and the number of samples."
        ),
    ]
    flagged: Annotated[
        bool | None,
        Field(description="The score is beyond its threshold; null without a threshold."),
    ]


class OodScores(WireModel):
    """The out-of-distribution scores of one image."""

    msp: Annotated[OodScore, Field(description="The highest probability, 0 to 1.")]
    energy: Annotated[
        OodScore,
        Field(
            description="Minus the mean over trajectories of the log-sum-exp of their logits, in "
            "nats."
        ),
    ]
    feature_distance: Annotated[
        OodScore | None,
        Field(
            description="Mahalanobis distance of the image's features to the nearest class of the "
            "training data, in standard deviations; absent if the checkpoint has no feature "
            "statistics."
        ),
    ] = None


class PredictionSet(WireModel):
    """A set of classes that contains the true one with a stated probability."""

    labels: Annotated[
        tuple[str, ...],
        Field(description="Class names in the order of the model's classes; may be empty."),
    ]
    coverage: Annotated[
        Probability,
        Field(
            description="For each class, the least probability that the sets of all images of a "
            "new lesion of this class contain it, if the lesion comes from the distribution of the "
            "calibration data."
        ),
    ]
    unit: Annotated[
        str,
        Field(description="`lesion`, or `image` if the calibration data do not state lesions."),
    ]
    calibrated_on: Annotated[str, Field(description="The calibration data.")]


class WarningCode(StrEnum):
    """The codes of the warnings that this version of the service gives."""

    CONVERTED_TO_RGB = "converted_to_rgb"
    CONVERTED_TO_SRGB = "converted_to_srgb"
    PROFILE_IGNORED = "profile_ignored"
    DECLARED_TYPE_DIFFERS = "declared_type_differs"
    SAMPLES_REDUCED = "samples_reduced"
    NO_OOD_THRESHOLD = "no_ood_threshold"
    NO_PREDICTION_SET = "no_prediction_set"
    OTHER_PRECISION = "other_precision"
    DISTRIBUTION_SHIFT = "distribution_shift"


class PredictionWarning(WireModel):
    """A warning about an answer: a stable code and a text for people."""

    code: Annotated[
        str,
        Field(
            description="Stable; later versions of the service may have more codes.",
            json_schema_extra={"enum": [code.value for code in WarningCode]},
        ),
    ]
    message: Annotated[str, Field(description="For people; may change.")]


class Prediction(WireModel):
    """The result for one image. A null has its reason in the warnings.

    Fields with a default are absent unless the request asks for them or the model supports them.
    """

    request_id: RequestId
    model: Annotated[str, Field(description="Name of the model.")]
    revision: Revision
    mode: Annotated[
        Mode,
        Field(description="`det`: one pass per adapter; `stoch`: sampled passes."),
    ]
    samples: Annotated[
        PositiveInt,
        Field(
            description="Samples per adapter of the answer: 1 in mode det; with `samples=auto` the "
            "number that was drawn, 1 if none was; fewer than requested with the warning "
            "`samples_reduced`."
        ),
    ]
    trajectories: Annotated[PositiveInt, Field(description="Adapters times samples.")]
    seed: Annotated[
        int,
        Field(
            description="Seed of the draws; repeats the answer with the same image and model.",
            json_schema_extra={"minimum": 0, "maximum": MAX_SEED},
        ),
    ]
    label: Annotated[str, Field(description="The class with the highest probability.")]
    probabilities: Annotated[
        dict[str, Probability],
        Field(
            description="Mean over trajectories, by class name, in the order of the model's "
            "classes; the sum is 1 within 1e-5."
        ),
    ]
    entropy: Annotated[Nats, Field(description="Entropy of the mean prediction, in nats.")]
    expected_entropy: Annotated[
        Nats, Field(description="Mean over trajectories of their entropies, in nats.")
    ]
    mutual_information: Annotated[
        Nats,
        Field(description="Entropy minus expected entropy, in nats: trajectories disagree."),
    ]
    msp: Annotated[Probability, Field(description="The highest probability.")]
    ood: Annotated[
        bool | None,
        Field(
            description="`msp` is below `ood_threshold`; null, with the warning "
            "`no_ood_threshold`, if the checkpoint has no threshold for this mode and number of "
            "samples."
        ),
    ]
    ood_threshold: Annotated[
        float | None, Field(description="Limit of `msp`, 0 to 1; null if `ood` is.")
    ]
    warnings: tuple[PredictionWarning, ...]
    ood_scores: Annotated[
        OodScores | None, Field(description="All out-of-distribution scores.")
    ] = None
    unfamiliar: Annotated[
        bool | None,
        Field(
            description="The flag of `feature_distance`: the image differs from the training "
            "images. Null, with a warning, without a threshold; absent if the checkpoint has no "
            "feature statistics."
        ),
    ] = None
    prediction_set: Annotated[
        PredictionSet | None,
        Field(
            description="Only with `coverage`; null, with the warning `no_prediction_set`, if the "
            "checkpoint is not calibrated for it."
        ),
    ] = None
    sampled: Annotated[
        bool | None,
        Field(
            description="Only with `samples=auto`: false if the pass in det settled the answer, "
            "which is then that of det; true if the answer is a mean over samples."
        ),
    ] = None
    rows: Annotated[
        PositiveInt | None,
        Field(
            description="Only with `samples=auto`: the passes that ran, with those in det; "
            "`trajectories` are those of the answer."
        ),
    ] = None
    standard_error: Annotated[
        StandardError | None,
        Field(description="Only for sampled answers of `samples=auto`."),
    ] = None
    trajectory_probabilities: Annotated[
        tuple[tuple[Probability, ...], ...] | None,
        Field(
            description="Trajectories x classes, in the order of the class names; only with "
            "`detail=trajectories`."
        ),
    ] = None
    index: Index = None
    item_id: ItemId = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in order."""
        return tuple(self.probabilities)

    @property
    def shows_figures(self) -> bool:
        """As the function of this name, for this prediction."""
        return shows_figures(self.unfamiliar)

    @property
    def is_auto(self) -> bool:
        """True for `samples=auto`: the number of samples differs between images."""
        return self.sampled is not None or self.standard_error is not None

    @property
    def trajectory_labels(self) -> tuple[str, ...]:
        """The most probable class of each trajectory; () without trajectory_probabilities."""
        rows = self.trajectory_probabilities or ()
        return tuple(self.classes[row.index(max(row))] for row in rows)


def shows_figures(unfamiliar: bool | None) -> bool:
    """Returns False for an unfamiliar image, about which its probabilities say nothing.

    Everything made for people then omits them, the label and the entropies: page, report, table,
    CSV, terminal and FHIR. JSON has them. unfamiliar: the field of a prediction.
    """
    return not unfamiliar


class ProblemDocument(WireModel):
    """A problem document (RFC 9457)."""

    type: Annotated[str, Field(description="A URN that ends with the code.")]
    title: Annotated[str, Field(description="The kind of problem, for people; may change.")]
    status: Annotated[int, Field(description="The HTTP status; in a batch, of this item alone.")]
    detail: Annotated[
        str, Field(description="This occurrence, for people; may change. Repeats no input.")
    ]
    code: Annotated[
        str,
        Field(
            description="Stable; later versions of the service may have more codes.",
            json_schema_extra={"enum": sorted(kind.code for kind in SENT_BY_SERVICE)},
        ),
    ]
    request_id: RequestId
    index: Index = None
    item_id: ItemId = None


class PredictionBatch(WireModel):
    """The results for many images."""

    results: Annotated[
        tuple[Prediction | ProblemDocument, ...],
        Field(description="A prediction or a problem for each image, in order."),
    ]


class Disposition(StrEnum):
    """The suggested next step for an image (`eulerlora_client.policy.policy` has their order)."""

    URGENT = "urgent"
    UNFAMILIAR = "unfamiliar"
    REFER = "refer"
    RETAKE = "retake"
    ROUTINE = "routine"


class Reason(StrEnum):
    """A code for each rule that applies, in the order of the rules."""

    TOO_SMALL = "too_small"
    TOO_DARK = "too_dark"
    TOO_BRIGHT = "too_bright"
    BLURRED = "blurred"
    UNFAMILIAR = "unfamiliar"
    OUT_OF_DISTRIBUTION = "out_of_distribution"
    OOD_UNKNOWN = "ood_unknown"
    TARGET_CLASSES = "target_classes"
    HIGH_ENTROPY = "high_entropy"
    TRAJECTORIES_DISAGREE = "trajectories_disagree"
    TRAJECTORIES_UNKNOWN = "trajectories_unknown"


WITHOUT_FIGURES = {
    Reason.TOO_SMALL, Reason.TOO_DARK, Reason.TOO_BRIGHT, Reason.BLURRED, Reason.UNFAMILIAR,
}  # fmt: skip
"""The reasons that rest on no probability of the model."""


class ImageQuality(WireModel):
    """Quality measurements of one image."""

    width: Annotated[PositiveInt, Field(description="Of the original image, in pixels.")]
    height: Annotated[PositiveInt, Field(description="Of the original image, in pixels.")]
    brightness: Annotated[Probability, Field(description="Mean luma, from 0 (black) to 1 (white).")]
    dark_share: Annotated[
        Probability, Field(description="Share of pixels with a luma of at most 5 of 255.")
    ]
    bright_share: Annotated[
        Probability, Field(description="Share of pixels with a luma of at least 250 of 255.")
    ]
    sharpness: Annotated[
        float,
        Field(
            ge=0,
            description="Variance of the Laplacian of the luma, in squared levels of 255; 0 for a "
            "uniform image.",
        ),
    ]


class TriageReason(WireModel):
    """A rule that applies."""

    code: Reason
    words: Annotated[str, Field(description="For people; may change.")]


class PolicyPerformance(WireModel):
    """The measured performance of a policy on one data set; brackets hold exact 95% intervals."""

    data: Annotated[str, Field(description="The data set.")]
    critical: Annotated[
        str, Field(description="A word for the classes whose sensitivity is stated.")
    ]
    sensitivity: Annotated[
        Probability,
        Field(description="Share of its lesions with urgent or unfamiliar images only."),
    ]
    sensitivity_low: Annotated[Probability, Field(description="Lower end of its interval.")]
    sensitivity_high: Annotated[Probability, Field(description="Upper end of its interval.")]
    specificity: Annotated[
        Probability,
        Field(description="Share of other lesions without urgent and unfamiliar images."),
    ]
    specificity_low: Annotated[Probability, Field(description="Lower end of its interval.")]
    specificity_high: Annotated[Probability, Field(description="Upper end of its interval.")]


class PolicyReference(WireModel):
    """The policy that decided."""

    version: Annotated[int, Field(description="Raised with every change of the policy.")]
    hash: Annotated[str, Field(description="SHA-256 of the policy's values.")]
    established: Annotated[
        bool,
        Field(
            description="True if the urgent threshold was set for this model, mode and samples, "
            "and the lower bound of its sensitivity reached the required one."
        ),
    ]
    notice: Annotated[
        str | None,
        Field(description="What is not known; to be shown with the result if not established."),
    ] = None
    measured: Annotated[
        tuple[PolicyPerformance, ...],
        Field(
            description="One for each data set; empty if the threshold was set for another model, "
            "mode or samples, and if not measured."
        ),
    ] = ()


class TargetGroup(WireModel):
    """The classes that count for the policy."""

    name: Annotated[str, Field(description="A word for them, such as malignant.")]
    classes: tuple[str, ...]
    probability: Annotated[float, Field(description="Sum of their probabilities, 0 to 1.")]
    urgent: Annotated[
        Probability, Field(description="The probability at and above which the image is urgent.")
    ]


class TriageResult(WireModel):
    """The suggested next step for an image, its reasons, and the prediction behind it."""

    disposition: Disposition
    title: Annotated[str, Field(description="The disposition as a word with a capital.")]
    pathway: Annotated[str, Field(description="The suggested next step, for people.")]
    reasons: Annotated[
        tuple[TriageReason, ...],
        Field(description="Every rule that applies, in the order of the rules; none for routine."),
    ]
    warning: Annotated[str, Field(description="To be shown with every result.")]
    policy: PolicyReference
    target: TargetGroup
    quality: ImageQuality
    prediction: Prediction
    class_names: Annotated[
        dict[str, str], Field(description="The name of every class for people, by its code.")
    ] = {}
    index: Index = None
    item_id: ItemId = None

    @property
    def label_name(self) -> str:
        """The name of the most probable class, such as melanoma for mel."""
        return self.name_of(self.prediction.label)

    @property
    def shown_reasons(self) -> tuple[TriageReason, ...]:
        """The reasons for people; of an unfamiliar image, those that rest on no figure."""
        if self.prediction.shows_figures:
            return self.reasons
        return tuple(reason for reason in self.reasons if reason.code in WITHOUT_FIGURES)

    def name_of(self, label: str) -> str:
        """Returns the name of a class without its remarks in brackets; its code without a name."""
        return self.class_names.get(label, label).partition(" (")[0]


class TriageBatch(WireModel):
    """The results for many images."""

    results: Annotated[
        tuple[TriageResult | ProblemDocument, ...],
        Field(description="A disposition or a problem for each image, in order."),
    ]


class DispositionText(WireModel):
    """A disposition in words."""

    disposition: Disposition
    title: Annotated[str, Field(description="A word.")]
    pathway: Annotated[str, Field(description="The suggested next step.")]


class PolicyDescription(WireModel):
    """The policy of the service, and what `/triage` does if a request does not say."""

    version: Annotated[int, Field(description="Raised with every change of the policy.")]
    hash: Annotated[str, Field(description="SHA-256 of the policy's values.")]
    mode: Annotated[Mode, Field(description="The default of `mode`.")]
    samples: Annotated[
        PositiveInt | None, Field(description="The default of `samples`; null for mode det.")
    ]
    policy: Annotated[dict[str, Any], Field(description="The policy file as JSON.")]
    dispositions: Annotated[
        tuple[DispositionText, ...], Field(description="The most urgent first.")
    ]
    warning: Annotated[str, Field(description="To be shown with every result.")]


HubSource = Annotated[
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
    source: HubSource = None
    classes: tuple[str, ...]
    precision: ServedPrecision = "float32"
    default: Annotated[bool, Field(description="It answers requests without `model`.")]


class ModelList(WireModel):
    """All served models, the default first."""

    models: Annotated[tuple[ModelSummary, ...], Field(min_length=1)]


class ClassName(Settings):
    """A class of a model: its short name and its description for people."""

    name: NonEmpty
    description: Annotated[str, Field(min_length=1, description="For people.")]


class ClassGroup(Settings):
    """Classes that count together."""

    name: NonEmpty
    """A word for the classes that people read, such as malignant."""
    classes: Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
    """Names of classes."""

    @model_validator(mode="after")
    def _unique_classes(self) -> Self:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"expected unique classes, got {', '.join(self.classes)}")
        return self


class TargetClasses(ClassGroup):
    """The classes that count for triage: an image is urgent by their summed probability."""

    critical: ClassGroup
    """Those of them whose lesions a required sensitivity counts; all of them by default."""

    @model_validator(mode="before")
    @classmethod
    def _all_are_critical(cls, values: Any) -> Any:
        if isinstance(values, dict) and "critical" not in values:
            group = {key: values[key] for key in ClassGroup.model_fields if key in values}
            return {**values, "critical": group}
        return values

    @model_validator(mode="after")
    def _critical_within_all(self) -> Self:
        if not set(self.critical.classes) <= set(self.classes):
            raise ValueError(f"expected critical classes of {', '.join(self.classes)}")
        return self


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


class ScoreThreshold(Settings):
    """The threshold of an OOD score that is high out of distribution; checkpoints contain it too.

    An image with a score above `threshold` is flagged.
    """

    threshold: Annotated[float, Field(description="In the unit of the score.")]
    kept: Annotated[
        Probability, Field(description="Share of the in-distribution images that are not flagged.")
    ]
    upper_quartile: Annotated[
        float,
        Field(
            description="Value of the score that at most a quarter of them exceed, by which a "
            "monitor finds smaller shifts."
        ),
    ]


class Tolerance(Settings):
    """What a threshold keeps of new images like those of its calibration."""

    share: Annotated[Probability, Field(description="Of new units, all images of which are kept.")]
    confidence: Annotated[
        Probability,
        Field(
            description="That at least this share is kept; below 0.95 if there were too few units "
            "(59 for a share of 0.95)."
        ),
    ]
    units: Annotated[PositiveInt, Field(description="Number of independent units.")]
    unit: Annotated[str, Field(description="`lesion`, or `image` if no lesions are known.")]

    @property
    def summary(self) -> str:
        """The statement in words."""
        return (
            f"at least {self.share:.0%} of new {self.unit}s with a confidence of "
            f"{self.confidence:.0%} ({self.units:,} {self.unit}s)"
        )


class Threshold(Settings):
    """The OOD thresholds of a mode and a number of samples; checkpoints contain them too.

    An image with an MSP below `msp` is flagged as out of distribution.
    """

    mode: Mode
    samples: Annotated[PositiveInt | Auto, Field(description="Per adapter.")]
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
    tolerance: Tolerance | None = optional(
        None, description="Of each score alone; null if it was not computed."
    )
    label_shares: Annotated[
        tuple[Probability, ...] | None,
        Field(
            description="Share of the images with each label, in the order of the classes; null "
            "if it was not recorded."
        ),
    ] = None
    precision: Annotated[
        Precision, Field(description="Of the predictions that the thresholds were fitted to.")
    ] = "float32"

    @property
    def options(self) -> tuple[str, int | str]:
        """The predictions that the thresholds apply to, up to their precision."""
        return self.mode, self.samples


def missing_threshold(
    thresholds: Iterable[Threshold], mode: Mode, samples: int | Auto
) -> str | None:
    """Returns a text that names the options with a threshold; None if these options have one.

    samples: per adapter, 1 in mode det.
    """
    known = {threshold.options: None for threshold in thresholds}
    if (mode, samples) in known:
        return None
    asked = mode if mode == "det" else f"{mode} with samples={samples}"
    counts = ", ".join(str(count) for name, count in known if name == "stoch")
    modes = ["det"] if ("det", 1) in known else []
    modes += [f"stoch with samples={counts}"] if counts else []
    listed = f"; there is one for {' and '.join(modes)}" if modes else ""
    return f"the checkpoint has no OOD threshold for mode {asked}{listed}"


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
    evidence: Annotated[float, Field(description="Log10 of the statistic of the test.")]
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
    source: HubSource = None
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
