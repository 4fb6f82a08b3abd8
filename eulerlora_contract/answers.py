"""Response bodies: `/predict`, `/triage`, `/models`, their batches, problems and probes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field

from eulerlora_contract.checkpoints import ClassName, Threshold
from eulerlora_contract.problems import SENT_BY_SERVICE
from eulerlora_contract.sampling import (
    AUTO,
    MAX_SEED,
    Auto,
    Mode,
    Options,
    Precision,
    RuntimeName,
    Sampler,
    Views,
)
from eulerlora_contract.settings import (
    NotNegative,
    PositiveInt,
    Probability,
)

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

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="ignore", protected_namespaces=(), use_attribute_docstrings=True
    )


def item_id(request_id: str, index: int) -> str:
    """The id of one image of a batch. No request id contains a colon."""
    return f"{request_id}:{index}"


class OodScore(WireModel):
    """An out-of-distribution score of one image."""

    value: float
    """The score; `OodScores` states its unit."""
    threshold: float | None
    """Limit in the unit of the score: `msp` is flagged below it, the other scores above theirs.
    Null, with a warning, if the checkpoint has no threshold of this score for the mode and the
    number of samples.
    """
    flagged: bool | None
    """The score is beyond its threshold; null without a threshold."""


class OodScores(WireModel):
    """The out-of-distribution scores of one image."""

    msp: OodScore
    """The highest probability, 0 to 1."""
    energy: OodScore
    """Minus the mean over trajectories of the log-sum-exp of their logits, in nats."""
    feature_distance: OodScore | None = None
    """Mahalanobis distance of the image's features to the nearest class of the training data, in
    standard deviations; absent if the checkpoint has no feature statistics.
    """


class Variance(WireModel):
    """The parts of the variance of the predicted class (law of total variance).

    The sum over the classes of the variance of their indicators, 0 to 1.
    """

    between_adapters: Probability
    """Of the mean probabilities of the adapters."""
    between_views: Probability
    """Of the mean probabilities of the views, without the part between adapters; with one sample of
    a view it contains the part between samples.
    """
    between_samples: Probability
    """The rest between trajectories."""
    within: Probability
    """Of a class that is drawn with the probabilities of a trajectory."""


class PredictionSet(WireModel):
    """A set of classes that contains the true one with a stated probability."""

    labels: tuple[str, ...]
    """Class names in the order of the model's classes; may be empty."""
    coverage: Probability
    """For each class, the least probability that the sets of all images of a new `unit` of this
    class contain it, if it comes from the distribution of the calibration data.
    """
    unit: str
    """What the calibration counted: `lesion`, `group` (such as a patient) if its data name no
    lesions, or `picture` if they name neither.
    """
    calibrated_on: str
    """The calibration data."""


class WarningCode(StrEnum):
    """The codes of the warnings that this version of the service gives."""

    CONVERTED_TO_RGB = "converted_to_rgb"
    CONVERTED_TO_SRGB = "converted_to_srgb"
    PROFILE_IGNORED = "profile_ignored"
    DAMAGE_IGNORED = "damage_ignored"
    DECLARED_TYPE_DIFFERS = "declared_type_differs"
    NO_OOD_THRESHOLD = "no_ood_threshold"
    NO_PREDICTION_SET = "no_prediction_set"
    OTHER_PRECISION = "other_precision"
    DISTRIBUTION_SHIFT = "distribution_shift"
    FRAME = "frame"
    RULER = "ruler"


IGNORED_PARTS = {WarningCode.PROFILE_IGNORED, WarningCode.DAMAGE_IGNORED}
"""Warnings of what a file has and its picture is shown without."""


def _open_codes(codes: Iterable[str]) -> dict[str, Any]:
    """Keywords of a schema for codes to which later versions add: no `enum`, to which generated
    clients would hold them.
    """
    return {"x-extensible-enum": [*codes]}


class PredictionWarning(WireModel):
    """A warning about an answer: a stable code and a text for people."""

    code: Annotated[str, Field(json_schema_extra=_open_codes(WarningCode))]
    """Stable; later versions of the service may have more codes."""
    message: str
    """For people; may change."""


class Prediction(WireModel):
    """The result for one image. A null has its reason in the warnings.

    Fields with a default are absent unless the request asks for them or the model supports them.
    """

    request_id: RequestId
    model: str
    """Name of the model."""
    revision: Revision
    mode: Mode
    """`det`: one pass per adapter; `stoch`: sampled passes."""
    samples: PositiveInt
    """Samples per adapter of the answer: 1 in mode det; with `samples=auto` the number that was
    drawn.
    """
    trajectories: PositiveInt
    """Adapters times samples; in mode det, times views."""
    sampler: Sampler = "independent"
    """How the samples were drawn: independently of each other, or `balanced` against each other;
    absent for `independent` and in mode det.
    """
    views: PositiveInt = 1
    """Views of the image (flips and quarter turns) that the trajectories share between them; absent
    for 1, the image alone.
    """
    precision: Precision = "float32"
    """Of the matrix products; absent for float32."""
    runtime: RuntimeName = "torch"
    """The library that ran the network; absent for torch."""
    seed: Annotated[int, Field(json_schema_extra={"minimum": 0, "maximum": MAX_SEED})]
    """Seed of the draws; repeats the answer with the same image and model."""
    label: str
    """The class with the highest probability."""
    probabilities: dict[str, Probability]
    """Mean over trajectories, by class name, in the order of the model's classes; the sum is 1
    within 1e-5.
    """
    entropy: NotNegative
    """Entropy of the mean prediction, in nats."""
    expected_entropy: NotNegative
    """Mean over trajectories of their entropies, in nats."""
    mutual_information: NotNegative
    """Entropy minus expected entropy, in nats: trajectories disagree."""
    msp: Probability
    """The highest probability."""
    ood: bool | None
    """`msp` is below `ood_threshold`; null, with the warning `no_ood_threshold`, if the checkpoint
    has no threshold for this mode, number of samples, sampler and number of views.
    """
    ood_threshold: float | None
    """Limit of `msp`, 0 to 1; null if `ood` is."""
    warnings: tuple[PredictionWarning, ...]
    ood_scores: OodScores | None = None
    """All out-of-distribution scores."""
    unfamiliar: bool | None = None
    """The flag of `feature_distance`: the image differs from the training images. Null, with a
    warning, without a threshold; absent if the checkpoint has no feature statistics.
    """
    prediction_set: PredictionSet | None = None
    """Only with `coverage`; null, with the warning `no_prediction_set`, if the checkpoint is not
    calibrated for it.
    """
    rows: PositiveInt | None = None
    """Only with `samples=auto`: the passes that ran."""
    trajectory_probabilities: tuple[tuple[Probability, ...], ...] | None = None
    """Trajectories x classes, in the order of the class names; only with `detail=trajectories`."""
    trajectory_views: tuple[Annotated[int, Field(ge=0, le=7)], ...] | None = None
    """The view of each trajectory; only with `detail=trajectories` and several views. Of the bits
    of a view, 4 exchanges rows and columns, then 1 flips left and right, and 2 flips top and
    bottom; 0 is the image, 3 the half turn.
    """
    variance: Variance | None = None
    """Only with `detail=trajectories`."""
    type: Literal["prediction"] = "prediction"
    """Tells a prediction from a problem, whose `type` is a URN; only in a batch."""
    index: Index = None
    item_id: ItemId = None

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.probabilities)

    @property
    def is_auto(self) -> bool:
        return self.rows is not None

    @property
    def options(self) -> Options:
        """What thresholds and evidence are looked up by: of `samples=auto`, not what was drawn."""
        return Options(
            mode=self.mode,
            samples=AUTO if self.is_auto else self.samples,
            sampler=self.sampler,
            views=cast("Views", self.views),
            precision=self.precision,
        )

    @property
    def trajectory_labels(self) -> tuple[str, ...]:
        """The most probable class of each trajectory; () without trajectory_probabilities."""
        rows = self.trajectory_probabilities or ()
        return tuple(self.classes[row.index(max(row))] for row in rows)


_FIGURES = (
    "label", "probabilities", "entropy", "expected_entropy", "mutual_information", "msp",
    "prediction_set", "trajectory_probabilities", "variance",
)  # fmt: skip
"""The fields whose worth is unknown for an unfamiliar image: they were measured on familiar ones.
People do not see them; JSON has them.
"""


def shown_fields(prediction: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a prediction that people see: of an unfamiliar image, no `_FIGURES`."""
    hidden = _FIGURES if prediction.get("unfamiliar") else ()
    return {name: value for name, value in prediction.items() if name not in hidden}


PROBLEM_URN = "urn:eulerlora:problem:"
"""What the type of a problem begins with; the code follows."""
_CODES = sorted(kind.code for kind in SENT_BY_SERVICE)


class ProblemDocument(WireModel):
    """A problem document (RFC 9457)."""

    type: Annotated[
        str, Field(json_schema_extra={"enum": [f"{PROBLEM_URN}{code}" for code in _CODES]})
    ]
    """A URN that ends with the code. By it generated clients tell a problem from a result."""
    title: str
    """The kind of problem, for people; may change."""
    status: int
    """The HTTP status; in a batch, of this item alone."""
    detail: str
    """This occurrence, for people; may change. Repeats no input."""
    code: Annotated[str, Field(json_schema_extra=_open_codes(_CODES))]
    """Stable; later versions of the service may have more codes."""
    request_id: RequestId
    index: Index = None
    item_id: ItemId = None


class ImageEmbedding(WireModel):
    """The features of one image, means over the adapters in mode det.

    Those of different revisions are not comparable. `feature_distance` is computed from embedding,
    texture and contrast, joined in this order.
    """

    request_id: RequestId
    model: str
    """Name of the model."""
    revision: Revision
    embedding: tuple[float, ...]
    """Pooled features after the last block, as many as the width of the backbone, those of each
    adapter of unit length; for a search by cosine similarity.
    """
    texture: tuple[float, ...]
    """Likewise, the mean over the patches after the first block."""
    contrast: tuple[float, ...]
    """Likewise, the logarithm of the standard deviation over the patches before the first block;
    not scaled.
    """
    warnings: tuple[PredictionWarning, ...]
    """Conversions of the image."""


class PredictionBatch(WireModel):
    """The results for many images."""

    # Generated Java checks no required field and takes the first class, in the order of their
    # names, whose values parse: the values of `type` differ.
    results: tuple[Prediction | ProblemDocument, ...]
    """A prediction or a problem for each image, in order."""


class Disposition(StrEnum):
    """The suggested next step for an image (`BY_URGENCY` has their order)."""

    URGENT = "urgent"
    UNFAMILIAR = "unfamiliar"
    REFER = "refer"
    RETAKE = "retake"
    ROUTINE = "routine"


UNDO = "undo"


class RecordedDecision(WireModel):
    """What a person decided about an answer of `/triage`, after all that was recorded so far."""

    request_id: str
    """That of the answer."""
    index: Index = None
    item_id: ItemId = None
    disposition: Disposition
    """The suggested one."""
    decision: Disposition | None
    """The person's: the suggested one (accepted) or another one (overridden); null before a
    decision and after `undo`.
    """
    reason: str | None
    """Of the decision."""
    diagnosis: str | None
    """The confirmed one; null until it is known."""

    @classmethod
    def of(cls, answer: Mapping[str, Any], decisions: Iterable[Mapping[str, Any]] = ()) -> Self:
        """The state after the decisions on an answer, both records of the audit log."""
        fields = {"request_id": answer["request_id"]}
        if answer["item_id"] is not None:
            index = int(answer["item_id"].rpartition(":")[2])
            fields |= {"index": index, "item_id": answer["item_id"]}
        disposition = answer["triage"]["disposition"]
        state = cls(**fields, disposition=disposition, decision=None, reason=None, diagnosis=None)
        for decision in decisions:
            state = state.after(decision)
        return state

    @property
    def is_override(self) -> bool:
        """True if the person decided otherwise than suggested."""
        return self.decision not in (None, self.disposition)

    def after(self, record: Mapping[str, Any]) -> Self:
        """The state after one more record of the audit log, or request.

        `undo` withdraws decision, reason and diagnosis; otherwise what is null does not change.
        """
        decision, reason, diagnosis = self.decision, self.reason, self.diagnosis
        if record["decision"] == UNDO:
            decision = reason = diagnosis = None
        elif record["decision"] is not None:
            decision, reason = Disposition(record["decision"]), record["reason"]
        if record["diagnosis"] is not None:
            diagnosis = record["diagnosis"]
        changes = {"decision": decision, "reason": reason, "diagnosis": diagnosis}
        return self.model_copy(update=changes)


class Reason(StrEnum):
    """A code for each rule that applies, in the order of the rules."""

    TOO_SMALL = "too_small"
    TOO_DARK = "too_dark"
    TOO_BRIGHT = "too_bright"
    BLURRED = "blurred"
    UNFAMILIAR = "unfamiliar"
    FAR = "far"
    OUT_OF_DISTRIBUTION = "out_of_distribution"
    OOD_UNKNOWN = "ood_unknown"
    TARGET_CLASSES = "target_classes"
    TARGET_POSSIBLE = "target_possible"
    HIGH_ENTROPY = "high_entropy"
    TRAJECTORIES_DISAGREE = "trajectories_disagree"
    TRAJECTORIES_UNKNOWN = "trajectories_unknown"


_WITHOUT_FIGURES = {
    Reason.TOO_SMALL, Reason.TOO_DARK, Reason.TOO_BRIGHT, Reason.BLURRED, Reason.UNFAMILIAR,
    Reason.FAR, Reason.TARGET_CLASSES,
}  # fmt: skip
"""The reasons that people see of an unfamiliar image. Only one rests on a probability: that it
reaches the urgent threshold, which people do not see of a far image: there it has no effect.
"""


class ImageQuality(WireModel):
    """Quality measurements of one image."""

    width: PositiveInt
    """Of the original image, in pixels."""
    height: PositiveInt
    """Of the original image, in pixels."""
    brightness: Probability
    """Mean luma, from 0 (black) to 1 (white)."""
    dark_share: Probability
    """Share of pixels with a luma of at most 5 of 255."""
    bright_share: Probability
    """Share of pixels with a luma of at least 250 of 255."""
    sharpness: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Variance of the Laplacian of the luma, in squared levels of 255; 0 for a uniform image."""


class TriageReason(WireModel):
    """A rule that applies."""

    code: Reason
    words: str
    """For people; may change."""


class PolicyPerformance(WireModel):
    """The measured performance of a policy on one data set, with 95% intervals."""

    data: str
    """The data set."""
    unit: str = "lesion"
    """What all shares count: `lesion`, `group` (such as a patient) if the data set names no
    lesions, or `picture` if it names neither.
    """
    critical: str
    """A word for the classes whose sensitivity is stated."""
    sensitivity: Probability
    """Share of its units with an image that is urgent, unfamiliar, or `target_possible`."""
    sensitivity_low: Probability
    """Lower end of its interval."""
    sensitivity_high: Probability
    """Upper end of its interval."""
    specificity: Probability
    """Share of other units without an image that is urgent, unfamiliar, or `target_possible`."""
    specificity_low: Probability
    """Lower end of its interval."""
    specificity_high: Probability
    """Upper end of its interval."""
    predictive_value: Probability | None = None
    """Share of target units among those with an urgent image; null if there are none."""
    predictive_value_low: Probability = 0.0
    """Lower end of its interval."""
    predictive_value_high: Probability = 1.0
    """Upper end of its interval."""


class PolicyReference(WireModel):
    """The policy that decided."""

    version: int
    """Raised with every change of the policy."""
    hash: str
    """SHA-256 of the policy's values."""
    established: bool
    """True if both thresholds were set for this model, mode and samples, and what is required of
    them was reached: the sensitivity by that of `routine`, the share of the target by `urgent`.
    """
    notice: str | None = None
    """What is not known; to be shown with the result if not established."""
    measured: tuple[PolicyPerformance, ...] = ()
    """One for each data set; empty if the thresholds were set for another model, mode or samples,
    and if not measured.
    """


class TargetGroup(WireModel):
    """The classes that count for the policy."""

    name: str
    """A word for them, such as malignant."""
    classes: tuple[str, ...]
    probability: float
    """Sum of their probabilities, 0 to 1."""
    routine: Probability
    """The probability below which the target is no reason to look at the image earlier."""
    urgent: Probability
    """The probability at and above which the image is urgent."""


class TriageResult(WireModel):
    """The suggested next step for an image, its reasons, and the prediction behind it."""

    disposition: Disposition
    title: str
    """The disposition as a word with a capital."""
    pathway: str
    """The suggested next step, for people."""
    reasons: tuple[TriageReason, ...]
    """Every rule that applies, in the order of the rules; none for routine."""
    warning: str
    """To be shown with every result."""
    policy: PolicyReference
    target: TargetGroup
    quality: ImageQuality
    prediction: Prediction
    class_names: dict[str, str] = {}
    """The name of every class for people, by its code."""
    type: Literal["triage"] = "triage"
    """Tells a result from a problem, whose `type` is a URN; only in a batch."""
    index: Index = None
    item_id: ItemId = None

    @property
    def label_name(self) -> str:
        """The name of the most probable class, such as melanoma for mel."""
        return self.name_of(self.prediction.label)

    @property
    def shown(self) -> "ShownResult":
        """What people see of the result."""
        if not self.prediction.unfamiliar:
            return ShownResult(self.reasons, self.prediction, self.target.probability)
        is_far = any(reason.code == Reason.FAR for reason in self.reasons)
        codes = _WITHOUT_FIGURES - {Reason.TARGET_CLASSES} if is_far else _WITHOUT_FIGURES
        return ShownResult(tuple(reason for reason in self.reasons if reason.code in codes))

    def name_of(self, label: str) -> str:
        """The name of a class without its remarks in brackets; its code without a name."""
        return self.class_names.get(label, label).partition(" (")[0]


@dataclass(frozen=True)
class ShownResult:
    """What people see of a result: on the terminal, in reports, CSV and FHIR.

    JSON has everything.

    Attributes:
        reasons: Of an unfamiliar image, those of `_WITHOUT_FIGURES`.
        figures: The prediction; None for an unfamiliar image.
        target: Probability of the target classes; None likewise.
    """

    reasons: tuple[TriageReason, ...] = ()
    figures: Prediction | None = None
    target: float | None = None


class LesionResult(WireModel):
    """The suggested next step for a lesion, from all its images: that of the most urgent one.

    An image without a result may show anything: it is more urgent than a routine one.
    """

    lesion: int
    """Its number in the request."""
    images: tuple[int, ...]
    """The positions of its images in `results`."""
    decided_by: int
    """The position of the most urgent one; of equals, that with the highest probability of the
    target classes.
    """
    disposition: Disposition | None
    """Null if an image has no result and no other is more than routine."""
    title: str
    """The disposition as a word with a capital, or Not assessed."""
    pathway: str
    """The suggested next step, for people."""


class TriageBatch(WireModel):
    """The results for many images."""

    results: tuple[TriageResult | ProblemDocument, ...]
    """A disposition or a problem for each image, in order."""
    lesions: tuple[LesionResult, ...] | None = None
    """A disposition for each lesion, in the order of their first images; absent unless the request
    has `lesions`.
    """


class DispositionText(WireModel):
    """A disposition in words."""

    disposition: Disposition
    title: str
    """A word."""
    pathway: str
    """The suggested next step."""


class PolicyDescription(WireModel):
    """The policy of the service, and what `/triage` does if a request does not say."""

    version: int
    """Raised with every change of the policy."""
    hash: str
    """SHA-256 of the policy's values."""
    mode: Mode
    """The default of `mode`."""
    samples: PositiveInt | Auto | None
    """The default of `samples`; null for mode det."""
    policy: dict[str, Any]
    """The policy file as JSON."""
    dispositions: tuple[DispositionText, ...]
    """The most urgent first."""
    warning: str
    """To be shown with every result."""


Licence = Annotated[
    str | None,
    Field(
        description="The licence in the front matter of the model card, such as `cc-by-nc-4.0`, "
        "which forbids commercial use; null if it states none."
    ),
]
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
ServedRuntime = Annotated[
    str, Field(description="The library that runs the network, `torch` or `openvino`.")
]


class ModelSummary(WireModel):
    """One served model."""

    name: str
    """The value of the parameter `model`."""
    revision: Revision
    source: HubSource = None
    classes: tuple[str, ...]
    precision: ServedPrecision = "float32"
    runtime: ServedRuntime = "torch"
    licence: Licence = None
    default: bool
    """It answers requests without `model`."""


class ModelList(WireModel):
    """All served models, the default first."""

    models: Annotated[tuple[ModelSummary, ...], Field(min_length=1)]


class ImageLimits(WireModel):
    """The image sizes that the service decodes."""

    min_side: PositiveInt
    """Least width and height, in pixels."""
    max_side: PositiveInt
    """Greatest width and height, in pixels."""
    max_pixels: PositiveInt
    """Greatest width times height."""
    max_jpeg_pixels: PositiveInt
    """Greatest width times height of a JPEG, which is reduced on decoding."""
    max_request_pixels: PositiveInt
    """Greatest sum over the images of a request."""
    media_types: tuple[str, ...]
    """Of the accepted files."""


class PredictionSetOptions(WireModel):
    """Options of a prediction for which `coverage` gives a prediction set."""

    coverage: Probability
    options: Options
    unit: str
    """`picture`, `lesion` or `group`."""
    units: dict[str, int]
    """Number of calibration units in `data`, by class."""
    confidences: dict[str, Probability]
    """Confidence by class that at least `coverage` of its new units are covered."""
    always_included: tuple[str, ...]
    """Classes in every set, because they have too few units."""
    data: str
    """The calibration data."""


class ShiftSignal(WireModel):
    """One signal of the shift monitor, with the pictures since this revision is served."""

    name: str
    """`feature_distance` (the picture is `unfamiliar`), `feature_distance_quartile`, `msp` (it is
    `ood`), or `label` (the predicted class).
    """
    label: str | None
    """The class with the most evidence; null for other signals."""
    pictures: int
    """Number of pictures with this signal."""
    rate: Probability
    """Share of them with the event."""
    expected: Probability
    """Its share among calibration images."""
    tolerated: Probability
    """The highest rate that is no shift."""
    evidence: float
    """Log10 of the statistic of the test."""
    alarm: bool
    """The evidence has reached its limit."""


class ModelShift(WireModel):
    """Comparison of the pictures since this revision is served with the calibration images."""

    pictures: int
    """Number of pictures."""
    alarm: bool
    """One of the signals has an alarm."""
    limit: float
    """The evidence that sets an alarm (log10)."""
    signals: tuple[ShiftSignal, ...]
    """Those that the checkpoint has calibration data for."""


class ModelDetails(WireModel):
    """Details of a served model: classes, input limits, thresholds, shift and provenance."""

    name: str
    revision: Revision
    source: HubSource = None
    classes: tuple[ClassName, ...]
    adapters: int
    """Number of adapters."""
    input_size: int
    """Side of the network's input, in pixels."""
    precision: ServedPrecision = "float32"
    precision_reason: str = ""
    """Why this precision was chosen."""
    runtime: ServedRuntime = "torch"
    runtime_reason: str = ""
    """Why this runtime was chosen."""
    image_limits: ImageLimits
    max_body_bytes: int
    """Greatest size of one upload, in bytes."""
    max_samples: int
    """Greatest number of samples per adapter."""
    views: PositiveInt = 1
    """Views of an image that its trajectories share between them in mode stoch by default."""
    thresholds: tuple[Threshold, ...]
    prediction_sets: tuple[PredictionSetOptions, ...] = ()
    shift: ModelShift | None = None
    """Null if the checkpoint has no thresholds."""
    licence: Licence = None
    provenance: dict[str, Any]
    """Recipe, seed, commit and data of the training run."""


class ServiceStatus(WireModel):
    """The response of a probe."""

    status: str
    """`alive` or `ready`."""


FAILED: Literal["failed"] = "failed"
"""The status of a file without a disposition."""

TriageStatus = Disposition | Literal["failed"]

BY_URGENCY: tuple[TriageStatus, ...] = (
    Disposition.ROUTINE, FAILED, Disposition.RETAKE, Disposition.REFER, Disposition.UNFAMILIAR,
    Disposition.URGENT,
)  # fmt: skip
"""The least urgent first. A failed file may show anything, so it is above routine ones."""


def urgency(status: TriageStatus) -> int:
    """The rank of a status: 0 for routine, higher is more urgent."""
    return BY_URGENCY.index(status)


def most_urgent(answers: Sequence[TriageResult | None]) -> int:
    """The position of the answer that decides about a lesion.

    Of the equally urgent ones, it is the one with the highest target probability.

    Args:
        answers: To its images; None for an image without a result. At least one.
    """

    def rank(answer: TriageResult | None) -> tuple[int, float]:
        if answer is None:
            return urgency(FAILED), 0.0
        return urgency(answer.disposition), answer.target.probability

    ranks = [rank(answer) for answer in answers]
    return ranks.index(max(ranks))
