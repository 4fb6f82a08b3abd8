"""The words that a person reads: in the terminal's table, in reports and on the page."""

from collections.abc import Mapping
from typing import Literal

from eulerlora_client.contract.triage import Disposition, Reason
from eulerlora_client.policy.policy import Decision

Group = Literal["malignant", "other"]

WARNING = (
    "For demonstration and research only; not a medical device. The model says what a picture "
    "resembles among the classes it was trained on, and it can be wrong. A clinician decides."
)

TITLES: Mapping[Disposition, str] = {
    Disposition.URGENT: "Prioritise",
    Disposition.REFER: "Refer for review",
    Disposition.RETAKE: "Take the picture again",
    Disposition.ROUTINE: "Routine",
}

NOT_ASSESSED = "Not assessed"
"""The title where there is no disposition."""

PATHWAYS: Mapping[Disposition, str] = {
    Disposition.URGENT: (
        "Suggested pathway: prioritise. Have a clinician look at this lesion before the others."
    ),
    Disposition.REFER: (
        "Suggested pathway: refer for review. The model should not be relied on for this "
        "picture; have a clinician look at it."
    ),
    Disposition.RETAKE: (
        "Suggested pathway: take the picture again. If that is not possible, refer for review."
    ),
    Disposition.ROUTINE: (
        "Suggested pathway: review in the usual order. No rule of the policy moved this picture "
        "forward; that does not rule out any disease."
    ),
}

RETAKE_BUT_URGENT = (
    "Suggested pathway: take the picture again at once. If that is not possible, prioritise: "
    "even this picture resembles the malignant group enough for that."
)

REASONS: Mapping[Reason, str] = {
    Reason.TOO_SMALL: "The picture has too few pixels.",
    Reason.TOO_DARK: "The picture is too dark.",
    Reason.TOO_BRIGHT: "The picture is too bright.",
    Reason.BLURRED: "The picture is blurred or shows hardly any structure.",
    Reason.OUT_OF_DISTRIBUTION: "The picture is unlike those that the model was trained on.",
    Reason.OOD_UNKNOWN: (
        "Whether the picture is like those that the model was trained on is not known: the model "
        "has no threshold for this question."
    ),
    Reason.MALIGNANT_GROUP: (
        "The picture resembles the malignant group at or above the urgent threshold."
    ),
    Reason.HIGH_ENTROPY: "The model is unsure between several classes.",
    Reason.TRAJECTORIES_DISAGREE: "Repeated looks of the model favour different classes.",
    Reason.TRAJECTORIES_UNKNOWN: (
        "Whether repeated looks of the model agree is not known: they were not asked for."
    ),
}

GROUPS: Mapping[Group, str] = {
    "malignant": "Resembles the malignant group",
    "other": "Resembles the other classes",
}

NOT_FITTED = (
    "The urgent threshold was not set for this model, mode and number of samples: what it finds "
    "and misses here has not been measured."
)


def pathway(decision: Decision) -> str:
    """The suggested pathway of a decision, in one or two sentences."""
    if decision.disposition is Disposition.RETAKE and Reason.MALIGNANT_GROUP in decision.reasons:
        return RETAKE_BUT_URGENT
    return PATHWAYS[decision.disposition]
