"""Response body of `/triage`, with the codes for dispositions and reasons."""

from enum import StrEnum

from eulerlora_client.contract.fields import Probability, WireModel
from eulerlora_client.contract.predictions import Prediction


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
    """Quality measurements of one image.

    width, height: of the original image, in pixels. brightness: mean luma, 0 (black) to 1
    (white). dark_share, bright_share: share of clipped pixels, 0 to 1 (luma at most 5, or at
    least 250, of 255). sharpness: variance of the Laplacian of the luma, in squared levels of
    255; 0 for a uniform image.
    """

    width: int
    height: int
    brightness: float
    dark_share: float
    bright_share: float
    sharpness: float


class TriageReason(WireModel):
    """A rule that applies: its code, and its text for people."""

    code: Reason
    words: str


class PolicyReference(WireModel):
    """The policy that decided.

    notice: a text if the urgent threshold was not set for this model, mode and samples.
    """

    version: int
    hash: str
    notice: str | None


class MalignantGroup(WireModel):
    """The malignant classes, their summed probability, and the threshold for urgent."""

    classes: tuple[str, ...]
    probability: float
    urgent: Probability


class TriageResult(WireModel):
    """The suggested next step for an image, its reasons, and the prediction behind it."""

    disposition: Disposition
    title: str
    pathway: str
    reasons: tuple[TriageReason, ...]
    warning: str
    policy: PolicyReference
    malignant: MalignantGroup
    quality: ImageQuality
    prediction: Prediction
