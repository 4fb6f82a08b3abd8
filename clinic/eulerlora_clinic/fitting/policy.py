"""The thresholds of a triage policy, fitted to what is required of them.

The score of an image is the summed probability of the target classes. Images of one lesion are not
independent, so lesions count, or other units where none are known (`training.data.units`), and a
lesion counts as it is served: by its most urgent image. A rule says how many critical lesions may
be below `routine`; a required share of the lesions at or above `urgent` is of the target. Bounds
are exact, unless lesions share groups such as patients: they are then wider by the correlation. The
performance is measured on images that had no part in the fit. Image quality is not considered.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from numpy.typing import NDArray
from tomlkit.items import InlineTable
from torch import Tensor

from eulerlora.answer import Predictions
from eulerlora.checkpoint.files import Checkpoint
from eulerlora.model import EulerLoRA
from eulerlora.scores.prediction_sets import min_units
from eulerlora_clinic.policy.policy import (
    DEFAULT_FILE,
    Evidence,
    FarEvidence,
    FitEvidence,
    GroupEvidence,
    IntervalEvidence,
    MeasuredEvidence,
    OtherEvidence,
    OutsideEvidence,
    Policy,
    RuleName,
    TargetEvidence,
    TargetRules,
    ThresholdEvidence,
    UncertaintyRules,
    UrgentEvidence,
    default_policy_text,
    dispositions,
    parse_policy,
    read_policy_text,
    summary_reasons,
)
from eulerlora_contract.answers import Disposition, Reason
from eulerlora_contract.checkpoints import ClassName, TargetClasses, Unit
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import write_text
from eulerlora_contract.sampling import AUTO, MAX_AUTO_SAMPLES, Options
from training.data.copies import named_with_seen
from training.data.dataset import LabelTable
from training.data.images import DIAGNOSED_BY, OUTSIDE, UNKNOWN, LabelledImage, report_skipped
from training.data.local_images import read_local_images
from training.data.units import Units
from training.evaluation.inference import predict_all
from training.evaluation.intervals import (
    CONFIDENCE,
    Bools,
    Estimates,
    Floats,
    Ints,
    Proportion,
    Weights,
    bootstrap,
    proportion,
    share_lower_bound,
    tolerance_bound,
    tolerance_sample_size,
)
from training.evaluation.metrics import auroc, sensitivity_at_specificity
from training.recipe.archives import ArchiveLabels, with_attributes
from training.reporting.tables import cell

_SIGNIFICANT_DIGITS = 4
_UNCERTAIN_SHARE = 0.05
"""Default share of the images that may reach the entropy threshold."""

_URGENT_GRID = tuple(percent / 100 for percent in range(99, 0, -1))
"""Urgent thresholds to test, in this order."""

_Names = NDArray[np.str_]


@dataclass(frozen=True)
class SensitivityRule:
    """How many of the critical lesions of a fit may be missed.

    Attributes:
        bound: What the lower bound of the sensitivity has to reach for it to be established.
        misses: Whether lesions may be missed, as many as leave the bound reached.
        name: In policy files; None for a rule without one.
    """

    bound: float
    misses: bool = True
    name: RuleName | None = None


RULES: Mapping[str, SensitivityRule] = {
    str(rule.name): rule
    for rule in (
        SensitivityRule(0.95, misses=False, name="none missed in calibration"),
        SensitivityRule(0.90, name="sensitivity = 0.95"),
    )
}
"""The rules of `policy fit` by name."""


def _fit_routine(
    critical: Floats, rule: SensitivityRule, groups: Ints, kept: float
) -> tuple[float, ThresholdEvidence]:
    """The highest threshold that a rule allows, and its evidence.

    `critical`: (m,) scores of lesions, m > 0; `groups`: (m,) the group of each; `kept`: the result
    with too few of them. With too few for a miss, returns the highest threshold without one. It is
    rounded down to four significant digits, so that rounding of scores elsewhere does not turn a
    tie into a miss. The bound is that of the permitted number of misses: fewer misses by a tie or
    by the rounding do not raise it.
    """
    if len(critical) < routine_sample_size(rule.bound):
        threshold, lower_bound = kept, share_lower_bound(critical >= kept, groups)
    elif rule.misses:
        bound = tolerance_bound(critical, rule.bound, groups)
        threshold, lower_bound = _round_down(bound.threshold), bound.lower_bound
    else:
        threshold = _round_down(float(critical.min()))
        lower_bound = share_lower_bound(np.ones_like(critical, bool), groups)
    return threshold, ThresholdEvidence(
        lesions=len(critical),
        independent=len(np.unique(groups)),
        hits=int((critical >= threshold).sum()),
        wanted=rule.bound,
        lower_bound=lower_bound,
        established=lower_bound >= rule.bound,
    )


def routine_sample_size(sensitivity: float) -> int:
    """Critical lesions with which a routine threshold is fitted; 19 for 0.95.

    With as many, the highest one without a miss finds the required share of new lesions on average.
    """
    return min_units(sensitivity)


def urgent_sample_size(predictive_value: float) -> int:
    """The number of lesions at the first urgent threshold that is tested; 20 for 0.5.

    It is four times the number that establishes the predictive value without an exception. With
    fewer lesions, chance would often end the sequence at its first threshold.
    """
    return 4 * tolerance_sample_size(predictive_value)


def _fit_urgent(
    scores: Floats,
    target: Bools,
    predictive_value: float,
    routine: float,
    groups: Ints | None = None,
) -> float | None:
    """The lowest threshold that is established to have `predictive_value`, or None.

    Learn-then-Test with fixed-sequence testing (Angelopoulos, Bates, Candes, Jordan and Lei,
    arXiv:2110.01052): the thresholds of `_URGENT_GRID` are tested in their order, until the lower
    bound of the share of target lesions among those at or above a threshold is less than
    `predictive_value`, which is the binomial test of "the share is at most `predictive_value`".
    With probability CONFIDENCE no threshold passes for which that is true, without a correction for
    their number. Thresholds before the first with lesions of `urgent_sample_size` groups are not
    tested; that depends on scores and not on `target`, and leaves the probability as it is if the
    share does not rise towards lower scores.

    Args:
        scores: (m,) of lesions.
        target: (m,) True for a target lesion.
        predictive_value: In (0, 1).
        routine: The result is not lower.
        groups: (m,) the group of each lesion; None if each is one, which makes the tests exact.
    """
    groups = np.arange(len(scores)) if groups is None else groups
    threshold = None
    for tested in _URGENT_GRID:
        reached = scores >= tested
        if tested < routine:
            break
        if len(np.unique(groups[reached])) < urgent_sample_size(predictive_value):
            continue
        if share_lower_bound(target[reached], groups[reached]) < predictive_value:
            break
        threshold = tested
    return threshold


def _round_down(value: float) -> float:
    """A positive number rounded down to four significant digits."""
    exact = Decimal(value)
    return float(exact.quantize(_unit(exact), ROUND_FLOOR))


def _round_up(value: float) -> float:
    """The next larger number with four significant digits; 0.001 for 0."""
    exact = Decimal(value)
    rounded = exact.quantize(_unit(exact), ROUND_CEILING)
    return float(rounded if rounded > exact else rounded + _unit(exact))


def _unit(value: Decimal) -> Decimal:
    return Decimal(1).scaleb(value.adjusted() - _SIGNIFICANT_DIGITS + 1)


@dataclass(frozen=True)
class PolicyInputs:
    """The inputs of a policy for n images.

    Attributes:
        scores: (n,) summed probability of the target classes.
        critical_scores: (n,) summed probability of the critical classes.
        entropy: (n,) predictive entropy in nats.
        flags: (n,) each, the reasons that rest on no threshold of a policy.
        critical: (n,) True if the true label is a critical class.
        target: (n,) True if the true label is a target class.
        outside: (n,) True for a target lesion of none of the model's classes.
        units: What is counted.
        distance: (n,) feature distance; None without feature statistics.
        attributes: (n,) values of each attribute that any image has.
    """

    scores: Floats
    critical_scores: Floats
    entropy: Floats
    flags: Mapping[Reason, Bools]
    critical: Bools
    target: Bools
    outside: Bools
    units: Units
    distance: Floats | None = None
    attributes: Mapping[str, _Names] = field(default_factory=dict)


def check_classes(model: EulerLoRA, target: TargetClasses) -> None:
    """Checks that a model has the target classes.

    Raises:
        DataError: If it lacks one of them.
    """
    missing = [name for name in target.classes if name not in model.classes]
    if missing:
        raise DataError(
            f"expected a model with the target classes {', '.join(missing)}, got "
            f"{model.config.name} with {', '.join(model.classes)}; state others in [target] of the "
            "file of --policy"
        )


def score_images(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: Options,
    target: TargetClasses,
    label: str,
    policy: Policy | None = None,
) -> PolicyInputs:
    """A model's scores of labelled images.

    `label`: name of the progress bar. `policy`: whose dispositions end the rounds of `auto`; None
    scores all of its samples.

    Raises:
        DataError: As `check_classes`.
    """
    check_classes(model, target)
    rule = model.config.stopping_rule(model.precision)
    if policy is not None:
        rule = replace(rule, settled=policy.settled(model.classes))
    elif options.samples == AUTO:
        options = replace(options, samples=MAX_AUTO_SAMPLES)
    (trajectories,) = predict_all(model, images, [options], label, rule)
    thresholds = model.config.threshold(options)
    summary = Predictions.of(trajectories, model.feature_distance, thresholds)
    return policy_inputs(model.classes, summary, images, target)


def policy_inputs(
    classes: Sequence[str],
    summary: Predictions,
    images: Sequence[LabelledImage],
    target: TargetClasses,
) -> PolicyInputs:
    """The scores from the summary of a model's predictions for labelled images.

    `classes`: of the model. Images labelled OUTSIDE show target lesions of none of the classes.
    """
    group = [classes.index(name) for name in target.classes]
    critical = [classes.index(name) for name in target.critical.classes]
    probabilities = summary.probabilities
    true_labels = np.array([image.label for image in images])
    distance = summary.feature_distance
    return PolicyInputs(
        scores=probabilities[:, group].sum(dim=1).numpy(),
        critical_scores=probabilities[:, critical].sum(dim=1).numpy(),
        entropy=summary.entropy.numpy(),
        flags={
            reason: np.broadcast_to(np.asarray(flag), len(images))
            for reason, flag in summary_reasons(summary).items()
        },
        critical=np.isin(true_labels, critical),
        target=np.isin(true_labels, group),
        outside=true_labels == OUTSIDE,
        units=Units.of(images),
        distance=None if distance is None else distance.numpy(),
        attributes={
            name: np.array([image.attributes.get(name, UNKNOWN) for image in images])
            for name in dict.fromkeys(name for image in images for name in image.attributes)
        },
    )


@dataclass(frozen=True)
class PolicyFit:
    """The thresholds of a policy, and what is known about them from the images of the fit.

    Attributes:
        target: With fitted thresholds.
        entropy_nats: Of the entropy.
        images: Number of images of the fit.
        lesions: Number of lesions of the fit, or of other units.
        unit: What is counted.
        routine: About `target.routine`.
        urgent: About `target.urgent`.
        uncertain: Share of the images at or above `entropy_nats`.
    """

    target: TargetRules
    entropy_nats: float
    images: int
    lesions: int
    unit: Unit
    routine: ThresholdEvidence
    urgent: ThresholdEvidence
    uncertain: float


def fit_policy(
    scored: Sequence[PolicyInputs],
    target: TargetRules,
    rule: SensitivityRule,
    predictive_value: float,
    uncertain_share: float = _UNCERTAIN_SHARE,
) -> list[PolicyFit]:
    """The thresholds for a rule about the critical classes and a predictive value.

    Several precisions share the thresholds that hold in each of them: the lowest one of `routine`,
    and the highest ones of `urgent` and of the entropy. What is established of a higher `routine`
    or of a lower `urgent` that was tested is established of these too.

    The feature distance has no influence: a lesion counts by its target probability, also if an
    image of it is unfamiliar.

    Args:
        scored: The same images with lesions, in one or several precisions.
        target: Its `routine` stays with fewer critical lesions than `routine_sample_size`. Its
            `urgent` stays if no threshold is established, or is raised to `routine`.
        rule: That sets `routine`.
        predictive_value: Required share of target lesions among those at or above `urgent`.
        uncertain_share: Of the images, that may reach the entropy threshold.

    Returns:
        A fit for each of `scored`, with the same thresholds.

    Raises:
        DataError: If no image is critical.
    """
    if not scored[0].critical.any():
        raise DataError("expected images of the critical classes, got none")
    fits = [_fit_thresholds(images, rule, predictive_value, target.routine) for images in scored]
    routine = min(fit.routine for fit in fits)
    tested = [fit.urgent for fit in fits if fit.urgent is not None]
    kept = [max(target.urgent, routine)] if len(tested) < len(fits) else []
    urgent = max(*tested, *kept, routine)
    entropy_nats = max(share_threshold(images.entropy, uncertain_share) for images in scored)
    rules = target.model_copy(update={"rule": rule.name, "routine": routine, "urgent": urgent})

    def at_thresholds(images: PolicyInputs, fit: _ThresholdFit) -> PolicyFit:
        units, reached = images.units, fit.highest >= urgent
        hits, groups = fit.of_target[reached], units.groups[reached]
        of_routine = {"hits": int((fit.critical >= routine).sum())}
        return PolicyFit(
            target=rules,
            entropy_nats=entropy_nats,
            images=len(images.scores),
            lesions=len(units),
            unit=units.unit,
            routine=fit.of_routine.model_copy(update=of_routine),
            urgent=ThresholdEvidence(
                lesions=len(hits),
                independent=len(np.unique(groups)),
                hits=int(hits.sum()),
                wanted=predictive_value,
                lower_bound=share_lower_bound(hits, groups),
                established=fit.urgent is not None and urgent in _URGENT_GRID,
            ),
            uncertain=float((images.entropy >= entropy_nats).mean()),
        )

    return [at_thresholds(images, fit) for images, fit in zip(scored, fits, strict=True)]


@dataclass(frozen=True)
class _ThresholdFit:
    """The thresholds of one precision.

    Attributes:
        urgent: None if none is established.
        critical: Scores of the critical lesions by their highest image.
        highest: Scores of all lesions likewise.
        of_target: True for a target lesion, as `highest`.
    """

    routine: float
    of_routine: ThresholdEvidence
    urgent: float | None
    critical: Floats
    highest: Floats
    of_target: Bools


def _fit_thresholds(
    images: PolicyInputs, rule: SensitivityRule, predictive_value: float, kept: float
) -> _ThresholdFit:
    units, of_critical = images.units, images.units.of_images(images.critical)
    critical = of_critical.combine(images.scores[images.critical], np.maximum)
    routine, of_routine = _fit_routine(critical, rule, of_critical.groups, kept)
    highest = units.combine(images.scores, np.maximum)
    of_target: Bools = units.combine(images.target, np.logical_or)
    urgent = _fit_urgent(highest, of_target, predictive_value, routine, units.groups)
    return _ThresholdFit(routine, of_routine, urgent, critical, highest, of_target)


def share_threshold(values: Floats, share: float) -> float:
    """The lowest threshold that at most a share of the values reach, rounded up.

    `values`: (n,), not negative. The threshold has four significant digits.
    """
    reaching = math.floor(share * len(values))
    if reaching == len(values):
        return _round_up(0.0)
    return _round_up(float(np.sort(values)[::-1][reaching]))


@dataclass(frozen=True)
class PolicyFile:
    """A policy and its text, whose comments stay when thresholds change."""

    text: str
    policy: Policy

    @classmethod
    def read(cls, path: Path | None, target: TargetClasses | None = None) -> "PolicyFile":
        """Reads a policy file; None for the packaged one.

        `target`: replaces that of the file.

        Raises:
            SettingsError: With the path.
        """
        name = DEFAULT_FILE if path is None else str(path)
        text = default_policy_text() if path is None else read_policy_text(path)
        policy = parse_policy(text, name)
        if target is not None:
            rules = TargetRules(
                **target.model_dump(), routine=policy.target.routine, urgent=policy.target.urgent
            )
            policy = policy.model_copy(update={"target": rules})
        return cls(text, policy)

    def fitted(self, fit: PolicyFit) -> Policy:
        """The next version of the policy, with fitted thresholds and without evidence.

        It has no `[unfamiliar]`, which belongs to the model of an earlier fit.
        """
        return self.policy.model_copy(
            update={
                "version": self.policy.version + 1,
                "target": fit.target,
                "uncertainty": UncertaintyRules(entropy_nats=fit.entropy_nats),
                "unfamiliar": None,
                "evidence": (),
            }
        )

    def write(self, path: Path, policy: Policy) -> None:
        """Writes a fitted policy atomically; comments and all other values of the text stay.

        `policy`: of `fitted`, with evidence.
        """
        document: Any = tomlkit.parse(self.text)
        document["version"] = policy.version
        for key, value in policy.target.model_dump(mode="json").items():
            if document["target"].get(key) != value:
                document["target"][key] = value
        if policy.target.rule is None:
            document["target"].pop("rule", None)
        document["uncertainty"]["entropy_nats"] = policy.uncertainty.entropy_nats
        if policy.unfamiliar is None:
            document.pop("unfamiliar", None)
        else:
            document.setdefault("unfamiliar", tomlkit.table()).update(
                policy.unfamiliar.model_dump()
            )
        if policy.evidence:
            document.pop("evidence", None)  # to the end
            evidence = policy.model_dump(mode="json", exclude_defaults=True)["evidence"]
            for one in evidence:
                one["options"] = _inline(one["options"])
                for measured in one.get("measured", ()):
                    if "groups" in measured:  # a line for each
                        rows = [_inline(group) for group in measured["groups"]]
                        measured["groups"] = tomlkit.array().multiline(True)
                        measured["groups"].extend(rows)
            document["evidence"] = evidence
        write_text(path, tomlkit.dumps(document))


def _inline(content: Mapping[str, Any]) -> InlineTable:
    table = tomlkit.inline_table()
    for key, value in content.items():
        table[key] = _inline(value) if isinstance(value, Mapping) else value
    return table


_SPECIFICITY = 0.9
"""Specificity, by image, at which the sensitivity of the ranking is stated."""


@dataclass(frozen=True)
class PolicyMeasurement:
    """The dispositions of n images by a policy, and how a model orders them.

    Attributes:
        evidence: Counts of lesions, with the shares rounded against the policy.
        specificity: Share of the images that are not of the target (other_images) that are not
            urgent, unfamiliar, or referred by the target probability.
        critical: Share of critical images among those of each disposition, without image quality;
            None for a disposition without images.
        target: The same of target images, with or without a class of the model.
        ranking: By `_ranking`.
        curves: By `operating_curves`.
    """

    evidence: MeasuredEvidence
    specificity: float
    other_images: int
    critical: Mapping[Disposition, Proportion | None]
    target: Mapping[Disposition, Proportion | None]
    ranking: Estimates
    curves: Mapping[str, Floats]

    @property
    def results(self) -> dict[str, str]:
        """What is measured by image, in words, by name."""
        return {
            "images outside the target": f"{self.other_images:,}",
            "specificity": f"{self.specificity:.3f}",
            **{
                f"{name}, {part} among its images": (
                    "no image"
                    if share is None
                    else f"{share.hits:,}/{share.images:,}: {share.text()}"
                )
                for part, shares in (("critical", self.critical), ("target", self.target))
                for name, share in shares.items()
            },
            "referral rate, without image quality": f"{self.evidence.referral_rate:.3f}",
            "AUROC, critical": cell(self.ranking["critical_auroc"]),
            f"sensitivity, critical, at a specificity of {_SPECIFICITY:.2f}": cell(
                self.ranking["critical_sensitivity"]
            ),
            "AUROC, target": cell(self.ranking["target_auroc"]),
        }


def measure_policy(
    images: PolicyInputs, policy: Policy, data: str, outside: Sequence[str] = ()
) -> PolicyMeasurement:
    """The performance of a policy's thresholds on images.

    `data`: name of the images. `outside`: their labels of target lesions of none of the model's
    classes.

    Raises:
        DataError: If no image is critical, or all show the target.
    """
    other = ~(images.target | images.outside)
    if not (images.critical.any() and other.any()):
        raise DataError("expected images of the critical classes, and images outside the target")
    reasons = policy.reasons(images.scores, images.entropy, images.flags, images.distance)
    reached: Bools = images.scores >= policy.target.routine
    decided: dict[Disposition, Bools] = dispositions(reasons)
    del decided[Disposition.RETAKE]  # without image quality
    urgent, unfamiliar = decided[Disposition.URGENT], decided[Disposition.UNFAMILIAR]
    urgency = np.select([urgent, unfamiliar, reached], [3, 2, 1], 0)

    def counts(chosen: Bools) -> dict[str, int]:
        """The counts of the chosen images' lesions.

        `chosen`: (n,), at least one.
        """
        units = images.units.of_images(chosen)
        of_lesions, of_reached = (
            units.combine(values[chosen], np.maximum) for values in (urgency, reached)
        )
        refer, of_unfamiliar, of_urgent = np.bincount(of_lesions, minlength=4).tolist()[1:]
        return {
            "lesions": len(of_lesions),
            "urgent": of_urgent,
            "unfamiliar": of_unfamiliar,
            "refer": refer,
            "reached": int(of_reached.sum()),
        }

    def detection(chosen: Bools) -> dict[str, Any]:
        """The evidence on target lesions."""
        seen = images.units.of_images(chosen)
        hits: Bools = seen.combine(urgency[chosen] > 0, np.logical_or)
        return counts(chosen) | _share("sensitivity", hits, seen.groups)

    def shares(chosen: Bools) -> dict[Disposition, Proportion | None]:
        """The share of the chosen images among those of each disposition."""
        return {
            name: proportion(chosen[flags], images.units.image_groups[flags])
            for name, flags in decided.items()
        }

    others = images.units.of_images(other)
    spared: Bools = others.combine(urgency[other] == 0, np.logical_and)
    evidence = MeasuredEvidence(
        data=data,
        unit=images.units.unit,
        images=len(images.scores),
        lesions=len(images.units),
        referral_rate=_ceil_share(float((~decided[Disposition.ROUTINE]).mean())),
        critical=TargetEvidence(**detection(images.critical)),
        target=TargetEvidence(**detection(images.target)),
        outside=OutsideEvidence(**detection(images.outside), labels=tuple(outside))
        if images.outside.any()
        else None,
        others=OtherEvidence(**counts(other), **_share("specificity", spared, others.groups)),
        groups=_group_evidence(images, urgency > 0),
        urgent=_urgent_evidence(urgent, ~other, images.units),
    )
    return PolicyMeasurement(
        evidence=evidence,
        specificity=float((urgency[other] == 0).mean()),
        other_images=int(other.sum()),
        critical=shares(images.critical),
        target=shares(~other),
        ranking=_ranking(images),
        curves=operating_curves(images),
    )


CURVE_THRESHOLDS: Floats = np.geomspace(0.001, 1, 61)[:-1]
"""Target probabilities at which `operating_curves` are known, (60,)."""


def operating_curves(images: PolicyInputs) -> dict[str, Floats]:
    """What a threshold on the target probability alone does to lesions, by name.

    sensitivity: share of critical lesions with an image that reaches the threshold.
    specificity: share of lesions outside the target without one.
    predictive value: share of target lesions among those with an image that reaches it.

    Each is (60, 3), by `CURVE_THRESHOLDS`: the share and its 95% interval by `proportion`; nan
    where there is no lesion.
    """
    units = images.units
    highest = units.combine(images.scores, np.maximum)
    of_target: Bools = units.combine(images.target | images.outside, np.logical_or)
    critical: Bools = units.combine(images.critical, np.logical_or)

    def share(hits: Bools, among: Bools) -> tuple[float, ...]:
        found = proportion(hits[among], units.groups[among])
        return (np.nan,) * 3 if found is None else (found.share, found.low, found.high)

    def at(threshold: float) -> dict[str, tuple[float, ...]]:
        reached = highest >= threshold
        return {
            "sensitivity": share(reached, critical),
            "specificity": share(~reached, ~of_target),
            "predictive value": share(of_target, reached),
        }

    points = [at(threshold) for threshold in CURVE_THRESHOLDS.tolist()]
    return {name: np.array([point[name] for point in points]) for name in points[0]}


def _group_evidence(images: PolicyInputs, seen: Bools) -> tuple[GroupEvidence, ...]:
    """The evidence by the values of each attribute with two or more, in their order.

    The AUROC of a diagnosis without target lesions, such as one by follow-up, compares its lesions
    with the target lesions of all groups.

    Args:
        images: Of a measurement; target lesions of none of the model's classes are left out.
        seen: (n,) True for an image that is not missed.
    """
    groups = []
    for attribute, values in images.attributes.items():
        names = sorted(set(values.tolist()) - {UNKNOWN})
        for value in names if len(names) > 1 else ():
            members = (values == value) & ~images.outside
            target, other = members & images.target, members & ~images.target
            needs_all = attribute == DIAGNOSED_BY and not target.any()
            positive = images.target if needs_all else target
            groups.append(
                GroupEvidence(
                    attribute=attribute,
                    value=value,
                    sensitivity=_share_of_lesions(seen, target, images.units, np.logical_or),
                    specificity=_share_of_lesions(~seen, other, images.units, np.logical_and),
                    auroc=_auroc(images, positive, other),
                )
            )
    return tuple(groups)


def _share_of_lesions(
    flags: Bools, chosen: Bools, units: Units, combine: np.ufunc
) -> IntervalEvidence | None:
    """The share of the chosen images' lesions by the flags of their images; None without any."""
    if not chosen.any():
        return None
    lesions = units.of_images(chosen)
    share = proportion(lesions.combine(flags[chosen], combine), lesions.groups)
    assert share is not None  # there is a lesion
    return IntervalEvidence(
        lesions=share.images,
        value=_floor_share(share.share),
        low=_floor_share(share.low),
        high=_ceil_share(share.high),
    )


def _auroc(images: PolicyInputs, positive: Bools, negative: Bools) -> IntervalEvidence | None:
    """The AUROC of the target probability by image, with an interval over groups."""
    if not (positive.any() and negative.any()):
        return None
    kept = positive | negative
    scores, truth = images.scores[kept], positive[kept]

    def metrics(weights: Weights) -> dict[str, Floats]:
        return {"auroc": auroc(scores, truth, weights)}

    units = images.units.of_images(kept)
    groups = np.unique(units.image_groups, return_inverse=True)[1]
    estimate = bootstrap(metrics, groups, compared={"auroc": truth})["auroc"]
    assert estimate is not None  # both kinds are there
    return IntervalEvidence(
        lesions=len(units),
        value=_floor_share(estimate.value),
        low=None if estimate.low is None else _floor_share(estimate.low),
        high=None if estimate.high is None else _ceil_share(estimate.high),
    )


def _urgent_evidence(urgent: Bools, target: Bools, units: Units) -> UrgentEvidence | None:
    """The target lesions among those with an urgent image; None without any.

    `urgent` and `target` are (n,), of images.
    """
    of_urgent, of_target = (units.combine(flags, np.logical_or) for flags in (urgent, target))
    hits: Bools = of_target[of_urgent]
    if not len(hits):
        return None
    shares = _share("predictive_value", hits, units.groups[of_urgent])
    return UrgentEvidence(lesions=len(hits), target=int(hits.sum()), **shares)


def _share(name: str, hits: Bools, groups: Ints) -> dict[str, Any]:
    """The share of lesions, at least one, with a group each."""
    share = proportion(hits, groups)
    assert share is not None
    return {
        name: _floor_share(share.share),
        f"{name}_low": _floor_share(share.low),
        f"{name}_high": _ceil_share(share.high),
    }


def _ranking(images: PolicyInputs) -> Estimates:
    """How a model orders images, whatever the thresholds, with intervals over groups.

    critical_auroc: AUROC of the probability of the critical classes, against all others.
    critical_sensitivity: share of their images that this probability finds at `_SPECIFICITY`.
    target_auroc: AUROC of the probability of the target classes against the others.
    Target lesions of none of the model's classes are left out.
    """
    kept = ~images.outside
    critical, critical_scores = images.critical[kept], images.critical_scores[kept]
    target, scores = images.target[kept], images.scores[kept]

    def metrics(weights: Weights) -> dict[str, Floats]:
        return {
            "critical_auroc": auroc(critical_scores, critical, weights),
            "critical_sensitivity": sensitivity_at_specificity(
                _SPECIFICITY, critical_scores, critical, weights
            ),
            "target_auroc": auroc(scores, target, weights),
        }

    compared = {
        "critical_auroc": critical,
        "critical_sensitivity": critical,
        "target_auroc": target,
    }
    groups = np.unique(images.units.image_groups[kept], return_inverse=True)[1]
    return bootstrap(metrics, groups, compared=compared)


def read_archive(
    archive: Path, classes: Sequence[ClassName], labels: ArchiveLabels, skip_bad: bool = False
) -> Sequence[LabelledImage]:
    """The labelled pictures of a folder or archive.

    skip_bad, errors: as in `read_local_images`.
    """
    local = read_local_images(
        archive,
        classes,
        LabelTable(renamed=dict(labels.labels)),
        outside=labels.outside,
        skip_bad=skip_bad,
        lesion=None if labels.lesion is None else re.compile(labels.lesion),
    )
    report_skipped(local)
    images = local.images
    if labels.lesion is None and local.units.unit == "picture":
        images = [replace(image, lesion=image.cluster_name) for image in images]
    if labels.table is not None:
        images = with_attributes(images, archive, labels.table)
    return images


def measure_archive(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    labels: ArchiveLabels,
    options: Options,
    policy: Policy,
    of_fit: Tensor,
) -> PolicyMeasurement:
    """The performance of a policy on an archive; its name says which had a part in the fit.

    `model`: of a stored checkpoint, which knows the images of its training. `of_fit`: digests of
    the images that the policy was fitted to.

    Raises:
        DataError: As `measure_policy`.
    """
    scored = score_images(model, images, options, policy.target, labels.title, policy)
    assert model.folder is not None
    title = named_with_seen(labels.title, model.folder, images, of_fit)
    return measure_policy(scored, policy, title, labels.outside)


def evidence_of(
    model: EulerLoRA | Checkpoint,
    options: Options,
    fit: PolicyFit,
    data: str,
    measured: Sequence[PolicyMeasurement],
    in_training: int = 0,
    folds: int = 0,
    far: Sequence[FarEvidence] = (),
) -> Evidence:
    """The evidence of a fitted policy.

    `data`: name of the images of the fit. `in_training`: those of them that the model was trained
    on; a fit to such images establishes nothing. `folds`: as in `FitEvidence`.
    `far`: about `[unfamiliar]`.
    """

    def stated(threshold: ThresholdEvidence) -> ThresholdEvidence:
        update = {
            "lower_bound": _floor_share(threshold.lower_bound),
            "established": threshold.established and not in_training,
        }
        return threshold.model_copy(update=update)

    return Evidence(
        model=model.config.name,
        revision=model.revision,
        options=options,
        confidence=CONFIDENCE,
        fit=FitEvidence(
            data=data,
            unit=fit.unit,
            images=fit.images,
            in_training=in_training,
            folds=folds,
            uncertain=_ceil_share(fit.uncertain),
            rule=fit.target.rule,
            routine=stated(fit.routine),
            urgent=stated(fit.urgent),
        ),
        measured=tuple(measurement.evidence for measurement in measured),
        far=tuple(far),
    )


def _floor_share(share: float) -> float:
    return float(np.floor(share * 10_000) / 10_000)


def _ceil_share(share: float) -> float:
    return float(np.ceil(share * 10_000) / 10_000)
