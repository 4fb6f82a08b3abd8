"""A policy's decisions as the answers of `/triage`, and all texts about them for people.

The texts are the same in responses, on the page, in reports, on the terminal and in cards.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eulerlora_clinic.policy.policy import (
    POOR_QUALITY,
    AnswerSummary,
    Decision,
    Evidence,
    GroupEvidence,
    IntervalEvidence,
    LesionCounts,
    MeasuredEvidence,
    Policy,
    TargetEvidence,
    TargetRules,
    ThresholdEvidence,
    UrgentEvidence,
    default_sampling,
)
from eulerlora_contract.answers import (
    BY_URGENCY,
    FAILED,
    Disposition,
    DispositionText,
    ImageQuality,
    LesionResult,
    PolicyDescription,
    PolicyPerformance,
    PolicyReference,
    Prediction,
    Reason,
    TargetGroup,
    TriageReason,
    TriageResult,
    most_urgent,
)
from eulerlora_contract.checkpoints import TargetClasses, Unit
from eulerlora_contract.printable import markdown_table
from eulerlora_contract.sampling import Options, Precision

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

_NOT_ASSESSED_LESION = (
    "Suggested pathway: send the images without a result again. They may show anything."
)
_UNKNOWN_FIGURES = (
    "The model does not know such images; what its figures are worth for them is unknown, so none "
    "are shown."
)
PATHWAYS: Mapping[Disposition, str] = {
    Disposition.URGENT: (
        "Suggested pathway: urgent. Have a clinician look at this image before the others."
    ),
    Disposition.UNFAMILIAR: (
        f"Suggested pathway: a person must look at this image. {_UNKNOWN_FIGURES}"
    ),
    Disposition.REFER: (
        "Suggested pathway: refer for review. The model does not settle this image; have a "
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
_POOR = "Its quality is poor: retake the image as well if that is possible."
REASONS: Mapping[Reason, str] = {
    Reason.TOO_SMALL: "The image has too few pixels.",
    Reason.TOO_DARK: "The image is too dark.",
    Reason.TOO_BRIGHT: "The image is too bright.",
    Reason.BLURRED: "The image is blurred or has hardly any structure.",
    Reason.UNFAMILIAR: (
        "The image is unfamiliar to the model: its features are far from those of the training "
        "images."
    ),
    Reason.FAR: (
        'It is so far from all that the model knows that its probability of "{target}" does not '
        "make it urgent."
    ),
    Reason.OUT_OF_DISTRIBUTION: (
        "The highest class probability (MSP) is as low as for images unlike the training images."
    ),
    Reason.OOD_UNKNOWN: (
        "The model has no threshold for this mode and number of samples, so it is unknown whether "
        "the image is like its training images."
    ),
    Reason.TARGET_CLASSES: 'The probability of "{target}" is at or above the urgent threshold.',
    Reason.TARGET_POSSIBLE: (
        'The probability of "{target}" is below the urgent threshold, but not below the routine '
        "threshold."
    ),
    Reason.HIGH_ENTROPY: "The model is uncertain between several classes.",
    Reason.TRAJECTORIES_DISAGREE: "Repeated passes of the model favour different classes.",
    Reason.TRAJECTORIES_UNKNOWN: (
        "It is unknown whether repeated passes of the model agree: the response does not include "
        "them."
    ),
}
_NOT_FITTED = (
    "The thresholds of the policy were not set for this model, mode and number of samples: what "
    "they miss and what they mark as urgent here is unknown."
)


_UNIT_NOTES: Mapping[Unit, str] = {
    "lesion": "",
    "group": (
        " A group, such as a patient, counts once for each class of its pictures, however many "
        "lesions they show: nothing is shown about shares of lesions."
    ),
    "picture": (
        " The data name no lesions: if pictures show the same one, what is shown is too optimistic."
    ),
}
"""What a figure that counts this unit does not show."""
_FOLDS_NOTE = (
    " Shown for {folds} models of the same recipe, each on lesions that it was not trained on."
)


def _reason_words(reason: Reason, policy: Policy) -> str:
    """A reason for people, with the policy's word for its target."""
    return REASONS[reason].format(target=policy.target.name)


def not_established(
    policy: Policy, evidence: Evidence | None, precision: Precision | None = None
) -> str | None:
    """What the fit of a policy did not show; None if it showed all that is required.

    `precision`: of the answers; None for that of the evidence.
    """
    if evidence is None:
        return _NOT_FITTED
    fit, fitted = evidence.fit, evidence.options.precision
    if precision not in (None, fitted):
        return (
            f"The thresholds of the policy were set and measured in {fitted}, and the service "
            f"computes in {precision}: the figures are those of {fitted}, and nothing is "
            f"established for {precision}."
        )
    if fit.in_training:
        return (
            f"This policy is fitted, but not proven: the model was trained on {fit.in_training:,} "
            "of the images of the fit, which makes it too optimistic."
        )
    sentences = zip((fit.routine, fit.urgent), _fit_sentences(policy.target, evidence), strict=True)
    missing = [sentence for threshold, sentence in sentences if not threshold.established]
    return f"This policy is fitted, but not proven. {' '.join(missing)}" if missing else None


def counted(evidence: ThresholdEvidence, unit: Unit) -> str:
    """What a threshold rests on, such as "187 lesions" or "187 lesions of 120 groups"."""
    groups = f" of {evidence.independent:,} groups" * (evidence.independent < evidence.lesions)
    return f"{evidence.lesions:,} {unit}s{groups}"


def _fit_sentences(target: TargetRules, evidence: Evidence) -> tuple[str, str]:
    """What the fit shows about the routine and about the urgent threshold."""
    routine, urgent, confidence = evidence.fit.routine, evidence.fit.urgent, evidence.confidence
    unit = evidence.fit.unit
    share = f"a share of {urgent.wanted:g} among new {unit}s"
    by_rule = f' by the rule "{evidence.fit.rule}"' if evidence.fit.rule else ""
    return (
        f"{routine.hits:,} of {counted(routine, unit)} with {target.critical.name} are at or "
        f"above the routine threshold of {target.routine:g}, which establishes a sensitivity of at "
        f"least {routine.lower_bound:.3f} (confidence {confidence:g}; {routine.wanted:g} is "
        f"required{by_rule}).",
        f"{urgent.hits:,} of {counted(urgent, unit)} at or above the urgent threshold of "
        f"{target.urgent:g} are {target.name}, "
        + (
            f"which establishes {share} (confidence {confidence:g})."
            if urgent.established
            else f"which does not establish {share}."
        )
        + _UNIT_NOTES[unit]
        + (_FOLDS_NOTE.format(folds=evidence.fit.folds) if evidence.fit.folds else ""),
    )


def _pathway(decision: Decision) -> str:
    """The suggested pathway of a decision, in a few sentences."""
    disposition, reasons = decision.disposition, decision.reasons
    sentences = [PATHWAYS[disposition]]
    if disposition is Disposition.URGENT and Reason.UNFAMILIAR in reasons:
        sentences.append(_UNKNOWN_FIGURES)
    is_poor = any(reason in reasons for reason in POOR_QUALITY)
    if is_poor and disposition is not Disposition.RETAKE:
        sentences.append(_POOR)
    return " ".join(sentences)


def triage_result(
    prediction: Prediction,
    quality: ImageQuality,
    decision: Decision,
    policy: Policy,
    class_names: Mapping[str, str],
) -> TriageResult:
    """The answer for one image that `policy` has decided on.

    `class_names` has the name of every class for people, by its code.
    """
    stated = _stated_evidence(policy, prediction.revision, prediction.options)
    item = prediction.model_dump(include={"index", "item_id"}, exclude_unset=True)
    return TriageResult(
        disposition=decision.disposition,
        title=TITLES[decision.disposition],
        pathway=_pathway(decision),
        reasons=tuple(
            TriageReason(code=code, words=_reason_words(code, policy)) for code in decision.reasons
        ),
        warning=WARNING,
        policy=PolicyReference(
            version=decision.policy_version,
            hash=decision.policy_hash,
            established=stated.notice is None,
            notice=stated.notice,
            measured=stated.measured,
        ),
        target=TargetGroup(
            name=policy.target.name,
            classes=policy.target.classes,
            probability=policy.target_probability(AnswerSummary(prediction)),
            routine=policy.target.routine,
            urgent=policy.target.urgent,
        ),
        quality=quality,
        prediction=prediction,
        class_names=dict(class_names),
        **item,
    )


def lesion_results(
    answers: Sequence[TriageResult | None], lesions: Sequence[int]
) -> tuple[LesionResult, ...]:
    """The results for the lesions of a batch, in the order of their first images.

    Args:
        answers: As in `most_urgent`.
        lesions: The number of the lesion of each image.
    """
    results = []
    for lesion in dict.fromkeys(lesions):
        images = tuple(index for index, number in enumerate(lesions) if number == lesion)
        decided_by = images[most_urgent([answers[index] for index in images])]
        deciding = answers[decided_by]
        result = LesionResult(
            lesion=lesion,
            images=images,
            decided_by=decided_by,
            disposition=deciding.disposition if deciding else None,
            title=deciding.title if deciding else NOT_ASSESSED,
            pathway=deciding.pathway if deciding else _NOT_ASSESSED_LESION,
        )
        results.append(result)
    return tuple(results)


def decided(result: TriageResult, policy: Policy) -> TriageResult:
    """The answer with the decision of another policy.

    Raises:
        PolicyError: As `Policy.decide`.
    """
    decision = policy.decide(AnswerSummary(result.prediction), result.quality)
    return triage_result(result.prediction, result.quality, decision, policy, result.class_names)


@dataclass(frozen=True)
class _StatedEvidence:
    """What answers with the same options state about the thresholds."""

    notice: str | None
    measured: tuple[PolicyPerformance, ...]


@lru_cache(maxsize=64)
def _stated_evidence(policy: Policy, revision: str, options: Options) -> _StatedEvidence:
    evidence = policy.evidence_for(revision, options)
    return _StatedEvidence(
        not_established(policy, evidence, options.precision),
        () if evidence is None else _measured_performance(policy, evidence),
    )


def _measured_performance(policy: Policy, evidence: Evidence) -> tuple[PolicyPerformance, ...]:
    """The performance of a policy on each data set; () if it was not measured."""
    return tuple(
        PolicyPerformance(
            data=one.data,
            unit=one.unit,
            critical=policy.target.critical.name,
            sensitivity=one.critical.sensitivity,
            sensitivity_low=one.critical.sensitivity_low,
            sensitivity_high=one.critical.sensitivity_high,
            specificity=one.others.specificity,
            specificity_low=one.others.specificity_low,
            specificity_high=one.others.specificity_high,
            **({} if one.urgent is None else one.urgent.model_dump(exclude={"lesions", "target"})),
        )
        for one in evidence.measured
    )


def policy_description(policy: Policy) -> PolicyDescription:
    """The answer of `/triage/policy`."""
    mode, samples = default_sampling(policy.evidence)
    return PolicyDescription(
        version=policy.version,
        hash=policy.hash,
        mode=mode,
        samples=samples,
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


NOT_MEASURED = "The sensitivity and specificity of this policy have not been measured."
EXPLANATION = (
    "Each row counts what it names: lesions, groups (such as patients, once for each class of "
    "their pictures) where the data name no lesions, or pictures where they name neither. The most "
    "urgent of its images decides. One of the target is seen if an image of it is unfamiliar or "
    "reaches the routine threshold; unfamiliar means that the model does not know such images and "
    "a person has to look at it. Specificity is the share of the others without any such image. "
    "The last column is the share of the target among those with an urgent image. Brackets contain "
    "95% intervals, which are exact unless lesions share a group. Image quality is not considered."
)
_CARD_NOTE = (
    "Sensitivity counts what is urgent, referred or unfamiliar; specificity counts what is not. "
    "By group and in other precisions: `eulerlora policy show --performance`."
)
_GROUP_HEADER = ("images", "sensitivity, {target}", "specificity", "AUROC, {target}")
GROUP_NOTE = (
    "Sensitivity and specificity as above, for all target classes; the AUROC is that of their "
    "summed probability, in a subgroup by diagnosis without the target against those of all "
    "subgroups. A diagnosis by follow-up or consensus is given to lesions that looked harmless: "
    "the subgroups by diagnosis say how much of a figure rests on such lesions. Fewer than 20, for "
    "the AUROC of either kind, are too few to say."
)
_FEW_LESIONS = 20
"""A group with fewer lesions gets no figure: an exact interval of 20 is up to 0.46 wide."""
_TOO_FEW = "too few to say"
_DETAIL_HEADER = (
    "images", "number", "urgent", "unfamiliar", "refer", "neither", "threshold alone"
)  # fmt: skip
DETAIL_NOTE = (
    "Counted as above; refer counts those that the target probability refers. One of the target "
    "that is neither is missed; any other that is neither is spared. Threshold alone ignores "
    "whether images are unfamiliar: the share of the target with an image at or above the routine "
    "threshold (sensitivity), or of the others without one (specificity)."
)


@dataclass(frozen=True)
class MarkdownTable:
    """Cells of a table.

    Attributes:
        header: One for each column; rows: the first cell names the row.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def markdown(self) -> str:
        """The table in Markdown, numbers on the right."""
        return markdown_table(self.header, self.rows)


@dataclass(frozen=True)
class Performance:
    """The performance of a policy on several data sets.

    Attributes:
        origin: What was measured.
        summary: One row for each data set.
        details: Several rows for each.
        groups: One row for each group of lesions; without rows if no data set has groups.
    """

    origin: str
    summary: MarkdownTable
    details: MarkdownTable
    groups: MarkdownTable

    @property
    def markdown(self) -> str:
        """Sentences and both tables in Markdown."""
        parts = [self.origin, self.summary.markdown, EXPLANATION]
        if self.groups.rows:
            parts += [self.groups.markdown, GROUP_NOTE]
        return "\n\n".join([*parts, self.details.markdown, DETAIL_NOTE])


def performance(policy: Policy, evidence: Evidence | None) -> Performance | None:
    """The performance of a policy's thresholds by its evidence; None if it was not measured."""
    if evidence is None or not evidence.measured:
        return None
    target, options = policy.target, evidence.options
    return Performance(
        f"Policy version {policy.version}: {', '.join(target.classes)} together, routine below a "
        f"probability of {target.routine}, urgent from {target.urgent} on; {evidence.model} in "
        f"mode {options.mode} with {options.samples} "
        f"sample{'' if options.samples == 1 else 's'} "
        f"{f'of {options.views} views ' if options.views > 1 else ''}in {options.precision} "
        f"(revision {evidence.revision}). In the fit, "
        f"{' '.join(_fit_sentences(target, evidence))}",
        _summary(evidence.measured, policy.target),
        MarkdownTable(
            _DETAIL_HEADER,
            [row for one in evidence.measured for row in _detail_rows(one, policy.target)],
        ),
        MarkdownTable(
            [title.format(target=policy.target.name) for title in _GROUP_HEADER],
            [_group_row(one, group) for one in evidence.measured for group in one.groups],
        ),
    )


def performance_text(policy: Policy) -> str:
    """The performance by each evidence in Markdown; all tables of the first one only."""
    of_each = (performance(policy, evidence) for evidence in policy.evidence)
    shown = [one for one in of_each if one is not None]
    if not shown:
        return NOT_MEASURED
    more = [part for other in shown[1:] for part in (other.origin, other.summary.markdown)]
    return "\n\n".join([shown[0].markdown, *more])


def card_section(policy: Policy) -> str:
    """A section in Markdown for the model's card, or that the policy was not measured.

    It states the first measured evidence; `performance_text` has all of them.
    """
    evidence = next((one for one in policy.evidence if one.measured), None)
    if evidence is None:
        return NOT_MEASURED
    target = policy.target
    table = MarkdownTable(
        ("", f"sensitivity, {target.critical.name}", "specificity", f"{target.name} among urgent"),
        [
            (
                _named(one),
                f"{_sensitivity(one.critical)} ({one.critical.lesions:,})",
                f"{_specificity(one)} ({one.others.lesions:,})",
                _predictive_value(one.urgent),
            )
            for one in evidence.measured
        ],
    )
    origin = (
        f"Policy version {policy.version}, for revision {evidence.revision}, in "
        f"{evidence.options.precision}."
    )
    text = " ".join([origin, *_fit_sentences(target, evidence)])
    return "\n\n".join([f"## Triage\n\n{text}", table.markdown, _CARD_NOTE])


def _group_row(one: MeasuredEvidence, group: GroupEvidence) -> list[str]:
    figures = (group.sensitivity, group.specificity, group.auroc)
    return [f"{_named(one)}: {group.attribute} {group.value}", *map(_figure, figures)]


def _named(one: MeasuredEvidence) -> str:
    """A data set with what its figures count."""
    return f"{one.data}, {one.unit}s"


def _figure(figure: IntervalEvidence | None) -> str:
    """A share or an AUROC with the number of lesions behind it."""
    if figure is None:
        return "none"
    if figure.lesions < _FEW_LESIONS or figure.low is None or figure.high is None:
        return f"{_TOO_FEW} ({figure.lesions:,})"
    return f"{interval(figure.value, figure.low, figure.high)} ({figure.lesions:,})"


def _lesions_by_group(one: MeasuredEvidence, target: TargetClasses) -> dict[str, TargetEvidence]:
    """The lesions of the critical and of all target classes; once if they are the same."""
    return {target.critical.name: one.critical, target.name: one.target}


def _summary(measured: Sequence[MeasuredEvidence], target: TargetClasses) -> MarkdownTable:
    groups = (f"sensitivity, {name}" for name in _lesions_by_group(measured[0], target))
    header = ("images", *groups, "specificity", f"{target.name} among urgent")
    rows = [
        (
            _named(one),
            *(
                f"{_sensitivity(counts)} "
                f"({counts.lesions - counts.neither:,}/{counts.lesions:,}, of these "
                f"{counts.unfamiliar:,} only as unfamiliar)"
                for counts in _lesions_by_group(one, target).values()
            ),
            f"{_specificity(one)} ({one.others.neither:,}/{one.others.lesions:,})",
            _predictive_value(one.urgent),
        )
        for one in measured
    ]
    return MarkdownTable(header, rows)


def _detail_rows(one: MeasuredEvidence, target: TargetClasses) -> Iterator[list[str]]:
    groups = _lesions_by_group(one, target)
    if one.outside is not None:
        groups[f"{', '.join(one.outside.labels)}, {target.name} without a class"] = one.outside
    for name, counts in groups.items():
        yield [f"{_named(one)}: {name}", *_counts(counts), f"{counts.reached / counts.lesions:.3f}"]
    others = one.others
    alone = 1 - others.reached / others.lesions
    yield [f"{_named(one)}: others", *_counts(others), f"{alone:.3f}"]


def _counts(of: LesionCounts) -> list[str]:
    counts = (of.lesions, of.urgent, of.unfamiliar, of.refer, of.neither)
    return [f"{count:,}" for count in counts]


def _predictive_value(urgent: UrgentEvidence | None) -> str:
    if urgent is None:
        return "none urgent"
    low, high = urgent.predictive_value_low, urgent.predictive_value_high
    share = interval(urgent.predictive_value, low, high)
    return f"{share} ({urgent.target:,}/{urgent.lesions:,})"


def _sensitivity(counts: TargetEvidence) -> str:
    return interval(counts.sensitivity, counts.sensitivity_low, counts.sensitivity_high)


def _specificity(one: MeasuredEvidence) -> str:
    others = one.others
    return interval(others.specificity, others.specificity_low, others.specificity_high)


def interval(share: float, low: float, high: float) -> str:
    """A share with its interval, such as "0.561 [0.533, 0.589]"."""
    return f"{share:.3f} [{low:.3f}, {high:.3f}]"
