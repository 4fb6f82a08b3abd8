"""A policy's decisions as the answers of `/triage`, and all texts about them for people.

The texts are the same in responses, on the page, in reports, on the terminal and in cards. Of page
and report they are in the language `t`, of all others in English.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eulerlora_clinic.language import ENGLISH, Language, message, messages
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
    WarningCode,
    most_urgent,
)
from eulerlora_contract.checkpoints import TargetClasses, Unit
from eulerlora_contract.printable import markdown_table
from eulerlora_contract.sampling import AUTO, PRECISIONS, Options, Precision

WARNING = message(
    "For demonstration and research only; not a medical device. The model says what an image "
    "resembles among the classes it was trained on, and it can be wrong. A clinician decides."
)

TITLES: Mapping[Disposition, str] = {
    Disposition.URGENT: message("Urgent"),
    Disposition.UNFAMILIAR: message("Unfamiliar"),
    Disposition.REFER: message("Refer"),
    Disposition.RETAKE: message("Retake"),
    Disposition.ROUTINE: message("Routine"),
}
"""One word for a disposition: the same in responses, tables, reports and on the page."""

NOT_ASSESSED = message("Not assessed")
"""The title of a file without a disposition."""

_NOT_ASSESSED_LESION = (
    "Suggested pathway: send the images without a result again. They may show anything."
)
_UNKNOWN_FIGURES = message(
    "The model does not know such images; what its figures are worth for them is unknown, so none "
    "are shown."
)
_PATHWAYS: Mapping[Disposition, str] = {
    Disposition.URGENT: message(
        "Suggested pathway: urgent. Have a clinician look at this image before the others."
    ),
    Disposition.UNFAMILIAR: message("Suggested pathway: a person must look at this image."),
    Disposition.REFER: message(
        "Suggested pathway: refer for review. The model does not settle this image; have a "
        "clinician look at it."
    ),
    Disposition.RETAKE: message(
        "Suggested pathway: retake the image. If that is not possible, refer for review."
    ),
    Disposition.ROUTINE: message(
        "Suggested pathway: review in the usual order. No rule of the policy raised the priority "
        "of this image; that does not rule out any disease."
    ),
}
_POOR = message("Its quality is poor: retake the image as well if that is possible.")
REASONS: Mapping[Reason, str] = {
    Reason.TOO_SMALL: message("The image has too few pixels."),
    Reason.TOO_DARK: message("The image is too dark."),
    Reason.TOO_BRIGHT: message("The image is too bright."),
    Reason.BLURRED: message("The image is blurred or has hardly any structure."),
    Reason.UNFAMILIAR: message(
        "The image is unfamiliar to the model: its features are far from those of the training "
        "images."
    ),
    Reason.FAR: message(
        'It is so far from all that the model knows that its probability of "{target}" does not '
        "make it urgent."
    ),
    Reason.OUT_OF_DISTRIBUTION: message(
        "The highest class probability (MSP) is as low as for images unlike the training images."
    ),
    Reason.OOD_UNKNOWN: message(
        "The model has no threshold for this mode and number of samples, so it is unknown whether "
        "the image is like its training images."
    ),
    Reason.TARGET_CLASSES: message(
        'The probability of "{target}" is at or above the urgent threshold.'
    ),
    Reason.TARGET_POSSIBLE: message(
        'The probability of "{target}" is below the urgent threshold, but not below the routine '
        "threshold."
    ),
    Reason.HIGH_ENTROPY: message("The model is uncertain between several classes."),
    Reason.TRAJECTORIES_DISAGREE: message("Repeated passes of the model favour different classes."),
    Reason.TRAJECTORIES_UNKNOWN: message(
        "It is unknown whether repeated passes of the model agree: the response does not include "
        "them."
    ),
}
_WARNINGS: Mapping[str, str] = {
    WarningCode.CONVERTED_TO_RGB: message("the pixels were converted to RGB"),
    WarningCode.CONVERTED_TO_SRGB: message("the colours were converted to sRGB"),
    WarningCode.PROFILE_IGNORED: message("the colour profile is broken and was ignored"),
    WarningCode.DAMAGE_IGNORED: message("a damaged part of the file was ignored"),
    WarningCode.DECLARED_TYPE_DIFFERS: message("the file has another format than its name says"),
    WarningCode.NO_OOD_THRESHOLD: message(
        "the model has no threshold for images unlike its training images with these options"
    ),
    WarningCode.NO_PREDICTION_SET: message("the model is not calibrated for this prediction set"),
    WarningCode.OTHER_PRECISION: message("the prediction set was calibrated in another precision"),
    WarningCode.DISTRIBUTION_SHIFT: message(
        "the images here differ from those that the thresholds were checked on"
    ),
    WarningCode.FRAME: message(
        "a frame surrounds the image, which alone can make it unfamiliar: crop the frame and send "
        "the image again"
    ),
    WarningCode.RULER: message(
        "the image shows a ruler, which alone can make it unfamiliar: crop it, or take the image "
        "without it, and send it again"
    ),
}
"""Warnings of answers for languages other than English, without the values of their messages."""
_NOT_FITTED = message(
    "The thresholds of the policy were not set for this model, mode and number of samples: what "
    "they miss and what they mark as urgent here is unknown."
)


_UNIT_NOTES: Mapping[Unit, str] = {
    "lesion": "",
    "group": message(
        "A group, such as a patient, counts once for each class of its pictures, however many "
        "lesions they show: nothing is shown about shares of lesions."
    ),
    "picture": message(
        "The data name no lesions: if pictures show the same one, what is shown is too optimistic."
    ),
}
"""What a figure that counts this unit does not show."""
_CASES: Mapping[Unit, tuple[str, str]] = {
    "lesion": messages("{n} lesion", "{n} lesions"),
    "group": messages("{n} group", "{n} groups"),
    "picture": messages("{n} picture", "{n} pictures"),
}
_UNITS: Mapping[Unit, str] = {
    "lesion": message("lesions"), "group": message("groups"), "picture": message("pictures")
}  # fmt: skip
_RULES = {
    "none missed in calibration": message("none missed in calibration"),
    "sensitivity = 0.95": message("sensitivity = 0.95"),
}
_SEEN_NOTE = re.compile(r"(training was shown|fits used) ([\d,]+) of its images")
"""What `training.data.copies.named_with_seen` adds to the name of a data set."""
_SEEN_NOTES = {
    "training was shown": message("training was shown {n} of its images"),
    "fits used": message("fits used {n} of its images"),
}
_SHARES: Mapping[Unit, str] = {
    "lesion": message("a share of {share} among new lesions"),
    "group": message("a share of {share} among new groups"),
    "picture": message("a share of {share} among new pictures"),
}
_FOLDS_NOTE = message(
    "Shown for {folds} models of the same recipe, each on lesions that it was not trained on."
)


def answer_texts(policy: Policy, t: Language) -> dict[str, str]:
    """The texts of answers by a policy, as they are sent, and the same in another language."""

    def texts(t: Language) -> Iterator[str | None]:
        for disposition in Disposition:
            for reasons in ((), (Reason.UNFAMILIAR,), (Reason.BLURRED,)):
                yield pathway(disposition, reasons, t)
            yield pathway(disposition, (Reason.UNFAMILIAR, Reason.BLURRED), t)
        for reason in Reason:
            yield _reason_words(reason, policy, t)
        for evidence in (None, *policy.evidence):
            for precision in PRECISIONS:
                yield not_established(policy, evidence, precision, t)

    pairs = zip(texts(ENGLISH), texts(t), strict=True)
    return {sent: shown for sent, shown in pairs if sent is not None and shown is not None}


def warning_texts(t: Language) -> dict[str, str]:
    """The warnings of answers by their codes; none in English, which has their messages."""
    is_english = t.tag == ENGLISH.tag
    return {} if is_english else {code: t(text) for code, text in _WARNINGS.items()}


def _reason_words(reason: Reason, policy: Policy, t: Language = ENGLISH) -> str:
    """A reason for people, with the policy's word for its target."""
    return t(REASONS[reason], target=t(policy.target.name))


def not_established(
    policy: Policy,
    evidence: Evidence | None,
    precision: Precision | None = None,
    t: Language = ENGLISH,
) -> str | None:
    """What the fit of a policy did not show; None if it showed all that is required.

    `precision`: of the answers; None for that of the evidence.
    """
    if evidence is None:
        return t(_NOT_FITTED)
    fit, fitted = evidence.fit, evidence.options.precision
    if precision not in (None, fitted):
        return t(
            "The thresholds of the policy were set and measured in {fitted}, and the service "
            "computes in {precision}: the figures are those of {fitted}, and nothing is "
            "established for {precision}.",
            fitted=fitted,
            precision=precision,
        )
    if fit.in_training:
        return t(
            "This policy is fitted, but not proven: the model or its heads were fitted to {n} of "
            "the images of the fit, which makes it too optimistic.",
            n=fit.in_training,
        )
    sentences = zip(
        (fit.routine, fit.urgent), _fit_sentences(policy.target, evidence, t), strict=True
    )
    missing = [sentence for threshold, sentence in sentences if not threshold.established]
    unproven = t("This policy is fitted, but not proven.")
    return " ".join([unproven, *missing]) if missing else None


def counted(evidence: ThresholdEvidence, unit: Unit, t: Language = ENGLISH) -> str:
    """What a threshold rests on, such as "187 lesions" or "187 lesions of 120 groups"."""
    cases = t.plural(evidence.lesions, *_CASES[unit])
    if evidence.independent == evidence.lesions:
        return cases
    return t.plural(
        evidence.independent, "{cases} of {n} group", "{cases} of {n} groups", cases=cases
    )


def _fit_sentences(target: TargetRules, evidence: Evidence, t: Language) -> tuple[str, str]:
    """What the fit shows about the routine and about the urgent threshold."""
    routine, urgent, unit = evidence.fit.routine, evidence.fit.urgent, evidence.fit.unit
    confidence = t.number(evidence.confidence)
    rule = evidence.fit.rule
    shown = t(
        "{hits} of {cases} with {critical} are at or above the routine threshold of {threshold}, "
        "which establishes a sensitivity of at least {bound} (confidence {confidence}; {wanted} is "
        "required{by_rule}).",
        hits=routine.hits,
        cases=counted(routine, unit, t),
        critical=t(target.critical.name),
        threshold=t.number(target.routine),
        bound=t.number(routine.lower_bound, 3),
        confidence=confidence,
        wanted=t.number(routine.wanted),
        by_rule=" " + t('by the rule "{rule}"', rule=t(_RULES[rule])) if rule else "",
    )
    reached = t(
        "{hits} of {cases} at or above the urgent threshold of {threshold} are {target}",
        hits=urgent.hits,
        cases=counted(urgent, unit, t),
        threshold=t.number(target.urgent),
        target=t(target.name),
    )
    share = t(_SHARES[unit], share=t.number(urgent.wanted))
    meaning = (
        t(
            "which establishes {share} (confidence {confidence}).",
            share=share,
            confidence=confidence,
        )
        if urgent.established
        else t("which does not establish {share}.", share=share)
    )
    notes = [
        t(_UNIT_NOTES[unit]) if _UNIT_NOTES[unit] else "",
        t(_FOLDS_NOTE, folds=evidence.fit.folds) if evidence.fit.folds else "",
    ]
    return shown, " ".join([f"{reached}, {meaning}", *filter(None, notes)])


def pathway(
    disposition: Disposition, reasons: Collection[Reason] = (), t: Language = ENGLISH
) -> str:
    """The suggested pathway of a decision, in a few sentences."""
    sentences = [_PATHWAYS[disposition]]
    is_urgent = disposition is Disposition.URGENT and Reason.UNFAMILIAR in reasons
    if is_urgent or disposition is Disposition.UNFAMILIAR:
        sentences.append(_UNKNOWN_FIGURES)
    is_poor = any(reason in reasons for reason in POOR_QUALITY)
    if is_poor and disposition is not Disposition.RETAKE:
        sentences.append(_POOR)
    return " ".join(map(t, sentences))


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
    if item:
        item["type"] = "triage"
    return TriageResult(
        disposition=decision.disposition,
        title=TITLES[decision.disposition],
        pathway=pathway(decision.disposition, decision.reasons),
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
                disposition=disposition, title=TITLES[disposition], pathway=pathway(disposition)
            )
            for disposition in reversed(BY_URGENCY)
            if disposition != FAILED
        ),
        warning=WARNING,
    )


NOT_MEASURED = message("The sensitivity and specificity of this policy have not been measured.")
EXPLANATION = message(
    "Each row counts what it names: lesions, groups (such as patients, once for each class of "
    "their pictures) where the data name no lesions, or pictures where they name neither. The most "
    "urgent of its images decides. One of the target is seen if an image of it is unfamiliar or "
    "reaches the routine threshold; unfamiliar means that the model does not know such images and "
    "a person has to look at it. Specificity is the share of the others without any such image. "
    "The last figure is the share of the target among those with an urgent image. Brackets contain "
    "95% intervals, which are exact unless lesions share a group. Image quality is not considered."
)
_CARD_NOTE = (
    "Sensitivity counts what is urgent, referred or unfamiliar; specificity counts what is not. "
    "By group and precision: `eulerlora policy show --performance`."
)
_GROUP_HEADER = (
    message("images"), message("sensitivity, {target}"), message("specificity"),
    message("AUROC, {target}"),
)  # fmt: skip
GROUP_NOTE = message(
    "Sensitivity and specificity as above, for all target classes; the AUROC is that of their "
    "summed probability, in a subgroup by diagnosis without the target against those of all "
    "subgroups. A diagnosis by follow-up or consensus is given to lesions that looked harmless: "
    "the subgroups by diagnosis say how much of a figure rests on such lesions. Fewer than 20, for "
    "the AUROC of either kind, are too few to say."
)
_FEW_LESIONS = 20
"""A group with fewer lesions gets no figure: an exact interval of 20 is up to 0.46 wide."""
_DETAIL_HEADER = (
    message("images"), message("number"), message("urgent"), message("unfamiliar"),
    message("refer"), message("neither"), message("threshold alone"),
)  # fmt: skip
DETAIL_NOTE = message(
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


def performance(
    policy: Policy, evidence: Evidence | None, t: Language = ENGLISH
) -> Performance | None:
    """The performance of a policy's thresholds by its evidence; None if it was not measured."""
    if evidence is None or not evidence.measured:
        return None
    target, options = policy.target, evidence.options
    origin = t(
        "Policy version {version}: {classes} together, routine below a probability of {routine}, "
        "urgent from {urgent} on; {model} in mode {mode} with {samples} in {precision} (revision "
        "{revision}). In the fit, {fit}",
        version=policy.version,
        classes=", ".join(target.classes),
        routine=t.number(target.routine),
        urgent=t.number(target.urgent),
        model=evidence.model,
        mode=options.mode,
        samples=_samples(options, t),
        precision=options.precision,
        revision=evidence.revision,
        fit=" ".join(_fit_sentences(target, evidence, t)),
    )
    name = t(target.name)
    return Performance(
        origin,
        _summary(evidence.measured, target, t),
        MarkdownTable(
            [t(title) for title in _DETAIL_HEADER],
            [row for one in evidence.measured for row in _detail_rows(one, target, t)],
        ),
        MarkdownTable(
            [t(title, target=name) for title in _GROUP_HEADER],
            [_group_row(one, group, t) for one in evidence.measured for group in one.groups],
        ),
    )


def _samples(options: Options, t: Language) -> str:
    """Such as "4 samples of 8 views"."""
    if options.samples == AUTO:
        samples = t("auto samples")
    else:
        samples = t.plural(options.samples, "{n} sample", "{n} samples")
    if options.views == 1:
        return samples
    return t("{samples} of {n} views", samples=samples, n=options.views)


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
                f"{one.data}, {_UNITS[one.unit]}",
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
    text = " ".join([origin, *_fit_sentences(target, evidence, ENGLISH)])
    return "\n\n".join([f"## Triage\n\n{text}", table.markdown, _CARD_NOTE])


def _group_row(one: MeasuredEvidence, group: GroupEvidence, t: Language) -> list[str]:
    figures = (group.sensitivity, group.specificity, group.auroc)
    text = f"{t(group.attribute)} {t(group.value)}"
    return [_part(one, text, t), *(_figure(figure, t) for figure in figures)]


def data_name(text: str, t: Language = ENGLISH) -> str:
    """The name of a data set without that of its split, its part and its notes in the language."""
    name = ", ".join(t(part) for part in text.split(", ") if not part.endswith(" split"))
    return _SEEN_NOTE.sub(lambda note: t(_SEEN_NOTES[note[1]], n=note[2]), name)


def _named(one: MeasuredEvidence, t: Language) -> str:
    """A data set with what its figures count."""
    return f"{data_name(one.data, t)}, {t(_UNITS[one.unit])}"


def _part(one: MeasuredEvidence, text: str, t: Language) -> str:
    return t("{name}: {value}", name=_named(one, t), value=text)


def _figure(figure: IntervalEvidence | None, t: Language) -> str:
    """A share or an AUROC with the number of lesions behind it."""
    if figure is None:
        return t("none")
    if figure.lesions < _FEW_LESIONS or figure.low is None or figure.high is None:
        return t("too few to say ({n})", n=figure.lesions)
    return f"{interval(figure.value, figure.low, figure.high, t)} ({t.number(figure.lesions)})"


def _lesions_by_group(
    one: MeasuredEvidence, target: TargetClasses, t: Language
) -> dict[str, TargetEvidence]:
    """The lesions of the critical and of all target classes; once if they are the same."""
    return {t(target.critical.name): one.critical, t(target.name): one.target}


def _summary(
    measured: Sequence[MeasuredEvidence], target: TargetClasses, t: Language
) -> MarkdownTable:
    names = _lesions_by_group(measured[0], target, t)
    header = (
        t("images"),
        *(t("sensitivity, {target}", target=name) for name in names),
        t("specificity"),
        t("{target} among urgent", target=t(target.name)),
    )
    rows = [
        (
            _named(one, t),
            *(
                t(
                    "{share} ({n}/{all}, of these {unfamiliar} only as unfamiliar)",
                    share=_sensitivity(counts, t),
                    n=counts.lesions - counts.neither,
                    all=counts.lesions,
                    unfamiliar=counts.unfamiliar,
                )
                for counts in _lesions_by_group(one, target, t).values()
            ),
            f"{_specificity(one, t)} ({_ratio(one.others.neither, one.others.lesions, t)})",
            _predictive_value(one.urgent, t),
        )
        for one in measured
    ]
    return MarkdownTable(header, rows)


def _detail_rows(one: MeasuredEvidence, target: TargetClasses, t: Language) -> Iterator[list[str]]:
    groups: dict[str, LesionCounts] = {**_lesions_by_group(one, target, t)}
    if one.outside is not None:
        labels = ", ".join(one.outside.labels)
        groups[t("{labels}, {target} without a class", labels=labels, target=t(target.name))] = (
            one.outside
        )
    for name, counts in groups.items():
        reached = t.number(counts.reached / counts.lesions, 3)
        yield [_part(one, name, t), *_counts(counts, t), reached]
    others = one.others
    alone = t.number(1 - others.reached / others.lesions, 3)
    yield [_part(one, t("others"), t), *_counts(others, t), alone]


def _counts(of: LesionCounts, t: Language) -> list[str]:
    return [t.number(n) for n in (of.lesions, of.urgent, of.unfamiliar, of.refer, of.neither)]


def _predictive_value(urgent: UrgentEvidence | None, t: Language = ENGLISH) -> str:
    if urgent is None:
        return t("none urgent")
    low, high = urgent.predictive_value_low, urgent.predictive_value_high
    share = interval(urgent.predictive_value, low, high, t)
    return f"{share} ({_ratio(urgent.target, urgent.lesions, t)})"


def _sensitivity(counts: TargetEvidence, t: Language = ENGLISH) -> str:
    return interval(counts.sensitivity, counts.sensitivity_low, counts.sensitivity_high, t)


def _specificity(one: MeasuredEvidence, t: Language = ENGLISH) -> str:
    others = one.others
    return interval(others.specificity, others.specificity_low, others.specificity_high, t)


def _ratio(n: int, of: int, t: Language) -> str:
    return f"{t.number(n)}/{t.number(of)}"


def interval(share: float, low: float, high: float, t: Language = ENGLISH) -> str:
    """A share with its interval, such as "0.561 [0.533, 0.589]"."""
    numbers = {"share": share, "low": low, "high": high}
    return t(
        "{share} [{low}, {high}]", **{name: t.number(value, 3) for name, value in numbers.items()}
    )
