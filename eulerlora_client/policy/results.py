"""A policy's decisions as the answers of `/triage`, and all texts about them for people.

The texts are the same in responses, on the page, in reports, on the terminal and in cards.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eulerlora_client.contract.answers import (
    Disposition,
    DispositionText,
    ImageQuality,
    MalignantGroup,
    PolicyDescription,
    PolicyPerformance,
    PolicyReference,
    Prediction,
    Reason,
    TriageReason,
    TriageResult,
)
from eulerlora_client.policy.policy import (
    BY_URGENCY,
    FAILED,
    SUGGESTED_DISPOSITIONS,
    Decision,
    Evidence,
    MeasuredEvidence,
    Policy,
    default_sampling,
)

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


def triage_result(
    prediction: Prediction,
    quality: ImageQuality,
    decision: Decision,
    policy: Policy,
    class_names: Mapping[str, str],
) -> TriageResult:
    """Returns the answer for one image that `policy` has decided on.

    class_names: the name of every class for people, by its code.
    """
    fitted = policy.fitted_to(prediction)
    item = prediction.model_dump(include={"index", "item_id"}, exclude_unset=True)
    return TriageResult(
        disposition=decision.disposition,
        title=TITLES[decision.disposition],
        pathway=pathway(decision),
        reasons=tuple(TriageReason(code=code, words=REASONS[code]) for code in decision.reasons),
        warning=WARNING,
        policy=PolicyReference(
            version=decision.policy_version,
            hash=decision.policy_hash,
            notice=None if fitted else NOT_FITTED,
            measured=measured_performance(policy.evidence) if fitted else (),
        ),
        malignant=MalignantGroup(
            classes=policy.malignant.classes,
            probability=policy.malignant_probability(prediction),
            urgent=policy.malignant.urgent,
        ),
        quality=quality,
        prediction=prediction,
        class_names=dict(class_names),
        **item,
    )


def decided(result: TriageResult, policy: Policy) -> TriageResult:
    """Returns the answer with the decision of another policy. Raises as `Policy.decide`."""
    decision = policy.decide(result.prediction, result.quality)
    return triage_result(result.prediction, result.quality, decision, policy, result.class_names)


def measured_performance(evidence: Evidence | None) -> tuple[PolicyPerformance, ...]:
    """Returns the performance of a policy on each data set; () if it was not measured."""
    if evidence is None:
        return ()
    return tuple(
        PolicyPerformance(
            data=measured.data,
            target=evidence.target,
            sensitivity=measured.target.sensitivity,
            sensitivity_low=measured.target.sensitivity_low,
            sensitivity_high=measured.target.sensitivity_high,
            specificity=measured.others.specificity,
            specificity_low=measured.others.specificity_low,
            specificity_high=measured.others.specificity_high,
        )
        for measured in evidence.measured
    )


def policy_description(policy: Policy) -> PolicyDescription:
    """Returns the answer of `/triage/policy`."""
    sampling = default_sampling(policy.evidence)
    assert sampling.samples != "auto", "a threshold is set for a number of samples"
    return PolicyDescription(
        version=policy.version,
        hash=policy.hash,
        mode=sampling.mode,
        samples=sampling.samples,
        policy=policy.model_dump(mode="json"),
        dispositions=tuple(
            DispositionText(
                disposition=disposition, title=TITLES[disposition], pathway=PATHWAYS[disposition]
            )
            for disposition in reversed(BY_URGENCY)
            if disposition != FAILED
        ),
        warning=WARNING,
    )


NAMES = {"mel": "melanoma"}
"""Words for the class whose sensitivity a policy promises; other classes keep their names."""

UNKNOWN = "The sensitivity and specificity of this policy have not been measured."
EXPLANATION = (
    "All figures count lesions; brackets contain exact 95% intervals. A malignant lesion counts as "
    "seen if every image of it is urgent or unfamiliar; unfamiliar means that the model says "
    "nothing about the image and a person has to look at it. Specificity is the share of the other "
    "lesions without any urgent or unfamiliar image. Image quality is not considered."
)
DETAIL_HEADER = ("lesions", "number", "urgent", "unfamiliar", "neither", "threshold alone")
DETAIL_NOTE = (
    "A malignant lesion that is neither is missed; any other lesion that is neither is spared. "
    "Threshold alone ignores whether images are unfamiliar: the share of malignant lesions with a "
    "malignant probability at or above the threshold in all images (sensitivity), or of other "
    "lesions without an image that reaches it (specificity)."
)


@dataclass(frozen=True)
class MarkdownTable:
    """Cells of a table. header: one for each column; rows: the first cell names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def markdown(self) -> str:
        """The table in Markdown, numbers on the right."""
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Performance:
    """The performance of a policy on several data sets.

    origin: what was measured. summary: one row for each data set. details: several rows for each.
    """

    origin: str
    summary: MarkdownTable
    details: MarkdownTable

    @property
    def markdown(self) -> str:
        """Sentences and both tables in Markdown."""
        parts = (self.origin, self.summary.markdown, EXPLANATION, self.details.markdown)
        return "\n\n".join([*parts, DETAIL_NOTE])


def performance(policy: Policy, names: Mapping[str, str] | None = None) -> Performance | None:
    """Returns the performance of a policy's thresholds; None if it was not measured.

    names: of classes for people, by their codes; other classes keep their codes.
    """
    evidence = policy.evidence
    if evidence is None or not evidence.measured:
        return None
    return Performance(
        f"Policy version {policy.version}: {', '.join(policy.malignant.classes)} together from a "
        f"probability of {policy.malignant.urgent}, {evidence.model} in mode {evidence.mode} with "
        f"{evidence.samples} sample{'s' if evidence.samples > 1 else ''} "
        f"(revision {evidence.revision}).",
        _summary(evidence, names or {}, policy),
        MarkdownTable(
            DETAIL_HEADER,
            [row for one in evidence.measured for row in _detail_rows(evidence, one, policy)],
        ),
    )


def _group(policy: Policy, names: Mapping[str, str]) -> str:
    *first, last = (names.get(code, code) for code in policy.malignant.classes)
    return f"{', '.join(first)} or {last}" if first else last


def _summary(evidence: Evidence, names: Mapping[str, str], policy: Policy) -> MarkdownTable:
    target = {**NAMES, **names}.get(evidence.target, evidence.target)
    group = _group(policy, names)
    header = ("images", f"sensitivity, {target}", f"sensitivity, {group}", "specificity")
    rows = [
        (
            one.data,
            *(
                f"{interval(counts.sensitivity, counts.sensitivity_low, counts.sensitivity_high)} "
                f"({counts.lesions - counts.neither:,}/{counts.lesions:,}, of these "
                f"{counts.unfamiliar:,} only as unfamiliar)"
                for counts in (one.target, one.malignant)
            ),
            f"{_specificity(one)} ({one.others.neither:,}/{one.others.lesions:,})",
        )
        for one in evidence.measured
    ]
    return MarkdownTable(header, rows)


def _detail_rows(evidence: Evidence, one: MeasuredEvidence, policy: Policy) -> Iterator[list[str]]:
    named = [(evidence.target, one.target), (_group(policy, {}), one.malignant)]
    if one.other_malignant is not None:
        labels = ", ".join(one.other_malignant.labels)
        named.append((f"{labels}, malignant without a class", one.other_malignant))
    for name, counts in named:
        alone = counts.reached / counts.lesions
        yield [
            f"{one.data}: {name}",
            *(f"{n:,}" for n in (counts.lesions, counts.urgent, counts.unfamiliar, counts.neither)),
            f"{alone:.3f}",
        ]
    others = one.others
    yield [
        f"{one.data}: other lesions",
        *(f"{n:,}" for n in (others.lesions, others.urgent, others.unfamiliar, others.neither)),
        f"{1 - others.reached / others.lesions:.3f}",
    ]


def _specificity(one: MeasuredEvidence) -> str:
    others = one.others
    return interval(others.specificity, others.specificity_low, others.specificity_high)


def interval(share: float, low: float, high: float) -> str:
    """Returns a share with its interval, such as "0.561 [0.533, 0.589]"."""
    return f"{share:.3f} [{low:.3f}, {high:.3f}]"
