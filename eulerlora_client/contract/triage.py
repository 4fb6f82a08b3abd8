"""Response bodies of `/triage`, its batches and its policy, with the codes that they contain."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from eulerlora_client.contract.fields import Index, ItemId, PositiveInt, Probability, WireModel
from eulerlora_client.contract.predictions import Prediction, ProblemDocument
from eulerlora_client.contract.sampling import Mode


class Disposition(StrEnum):
    """The suggested next step for an image (`eulerlora_client.policy.urgency` has their order)."""

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
    MALIGNANT_GROUP = "malignant_group"
    HIGH_ENTROPY = "high_entropy"
    TRAJECTORIES_DISAGREE = "trajectories_disagree"
    TRAJECTORIES_UNKNOWN = "trajectories_unknown"


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
    target: Annotated[str, Field(description="The class whose sensitivity is stated.")]
    sensitivity: Annotated[
        Probability,
        Field(description="Share of its lesions with urgent or unfamiliar images only."),
    ]
    sensitivity_low: Annotated[Probability, Field(description="Lower end of its interval.")]
    sensitivity_high: Annotated[Probability, Field(description="Upper end of its interval.")]
    specificity: Annotated[
        Probability,
        Field(description="Share of harmless lesions without urgent and unfamiliar images."),
    ]
    specificity_low: Annotated[Probability, Field(description="Lower end of its interval.")]
    specificity_high: Annotated[Probability, Field(description="Upper end of its interval.")]


class PolicyReference(WireModel):
    """The policy that decided."""

    version: Annotated[int, Field(description="Raised with every change of the policy.")]
    hash: Annotated[str, Field(description="SHA-256 of the policy's values.")]
    notice: Annotated[
        str | None,
        Field(
            description="A text if the urgent threshold was not set for this model, mode and "
            "samples."
        ),
    ] = None
    measured: Annotated[
        tuple[PolicyPerformance, ...],
        Field(description="One for each data set; empty with a notice, and if not measured."),
    ] = ()


class MalignantGroup(WireModel):
    """The malignant classes of the policy."""

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
    malignant: MalignantGroup
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
    policy: Annotated[
        dict[str, Any], Field(description="The policy file as JSON (docs/triage-policy.md).")
    ]
    dispositions: Annotated[
        tuple[DispositionText, ...], Field(description="The most urgent first.")
    ]
    warning: Annotated[str, Field(description="To be shown with every result.")]
