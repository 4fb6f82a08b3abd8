"""The texts for people: in the terminal's table, in reports and in responses of `/triage`."""

from collections.abc import Mapping

from eulerlora_client.contract.triage import Disposition, Reason
from eulerlora_client.policy.policy import SUGGESTED_DISPOSITIONS, Decision

WARNING = (
    "For demonstration and research only; not a medical device. The model says what an image "
    "resembles among the classes it was trained on, and it can be wrong. A clinician decides."
)

TITLES: Mapping[Disposition, str] = {
    disposition: disposition.value.capitalize() for disposition in Disposition
}
"""One word for a disposition: the same in responses, tables, reports and on the page."""

NOT_ASSESSED = "Not assessed"
"""The title of a file without a disposition."""

PATHWAYS: Mapping[Disposition, str] = {
    Disposition.URGENT: (
        "Suggested pathway: urgent. Have a clinician look at this lesion before the others."
    ),
    Disposition.UNFAMILIAR: (
        "Suggested pathway: a person must look at this image; the model's figures say nothing "
        "about it."
    ),
    Disposition.REFER: (
        "Suggested pathway: refer for review. The model is not reliable for this image; have a "
        "clinician look at it."
    ),
    Disposition.RETAKE: (
        "Suggested pathway: retake the image. If that is not possible, refer for review."
    ),
    Disposition.ROUTINE: (
        "Suggested pathway: review in the usual order. No rule of the policy raised the priority "
        "of this image; that does not rule out any disease."
    ),
}

RETAKE_BUT_URGENT = (
    "Suggested pathway: retake the image at once. If that is not possible, treat the lesion as "
    "urgent: even this image reaches the urgent threshold of the malignant group."
)

UNFAMILIAR_AND_POOR = (
    "Suggested pathway: a person must look at this image; the model's figures say nothing about "
    "it. Its quality is poor as well: retake the image if that is possible."
)

REASONS: Mapping[Reason, str] = {
    Reason.TOO_SMALL: "The image has too few pixels.",
    Reason.TOO_DARK: "The image is too dark.",
    Reason.TOO_BRIGHT: "The image is too bright.",
    Reason.BLURRED: "The image is blurred or has hardly any structure.",
    Reason.UNFAMILIAR: (
        "The image is unfamiliar to the model: its features are far from those of the training "
        "images."
    ),
    Reason.OUT_OF_DISTRIBUTION: (
        "The highest class probability (MSP) is as low as for images unlike the training images."
    ),
    Reason.OOD_UNKNOWN: (
        "The model has no threshold for this mode and number of samples, so it is unknown whether "
        "the image is like its training images."
    ),
    Reason.MALIGNANT_GROUP: (
        "The image resembles the malignant group at or above the urgent threshold."
    ),
    Reason.HIGH_ENTROPY: "The model is uncertain between several classes.",
    Reason.TRAJECTORIES_DISAGREE: "Repeated passes of the model favour different classes.",
    Reason.TRAJECTORIES_UNKNOWN: (
        "It is unknown whether repeated passes of the model agree: the response does not include "
        "them."
    ),
}

NOT_FITTED = (
    "The urgent threshold was not set for this model, mode and number of samples: its sensitivity "
    "and specificity here are unknown."
)


def pathway(decision: Decision) -> str:
    """Returns the suggested pathway of a decision, in one or two sentences."""
    suggested = {SUGGESTED_DISPOSITIONS[reason] for reason in decision.reasons}
    if decision.disposition is Disposition.RETAKE and Disposition.URGENT in suggested:
        return RETAKE_BUT_URGENT
    if decision.disposition is Disposition.UNFAMILIAR and Disposition.RETAKE in suggested:
        return UNFAMILIAR_AND_POOR
    return PATHWAYS[decision.disposition]
