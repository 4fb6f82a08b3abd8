"""The thresholds of a triage policy, fitted to a required sensitivity to its critical classes.

The score of an image is the summed probability of the target classes. An image is urgent if its
score is at or above the threshold. Images of one lesion are not independent, so sensitivity counts
lesions: a lesion is a hit if all of its images are urgent. Bounds are exact. The performance is
measured on images that had no part in the fit; image quality is not considered.
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
import torch
from numpy.typing import NDArray
from tomlkit.items import InlineTable

from eulerlora.model import EulerLoRA
from eulerlora.scores.trajectories import Summary
from eulerlora_contract.answers import Disposition, Reason, TargetClasses
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import write_text
from eulerlora_contract.policy.policy import (
    DEFAULT_FILE,
    Evidence,
    FitEvidence,
    GroupEvidence,
    IntervalEvidence,
    MeasuredEvidence,
    OtherEvidence,
    OutsideEvidence,
    Policy,
    TargetEvidence,
    TargetRules,
    UncertaintyRules,
    default_policy_text,
    dispositions,
    parse_policy,
    read_policy_text,
)
from eulerlora_contract.sampling import AUTO, MAX_AUTO_SAMPLES, Options
from training.data.copies import named_with_seen
from training.data.images import DIAGNOSED_BY, OUTSIDE, UNKNOWN, LabelledImage, report_skipped
from training.data.local_images import LabelNames, read_local_images
from training.evaluation.inference import predict_all
from training.evaluation.intervals import (
    CONFIDENCE,
    Bools,
    Estimates,
    Floats,
    Weights,
    bootstrap,
    clopper_pearson,
    cluster_indices,
    lower_bound,
    tolerance_bound,
)
from training.evaluation.metrics import auroc, sensitivity_at_specificity
from training.recipe.archives import ArchiveLabels, described
from training.reporting.tables import cell

SIGNIFICANT_DIGITS = 4
_UNCERTAIN_SHARE = 0.05
"""Default share of the images that may reach the entropy threshold."""

Names = NDArray[np.str_]


@dataclass(frozen=True)
class Sensitivity:
    """Hits of a number of lesions, and the required sensitivity.

    Attributes:
        lower_bound: One-sided exact 95% lower confidence bound of a threshold set on the same
            lesions.
        established: True if it reaches `required`.
    """

    hits: int
    lesions: int
    required: float
    lower_bound: float

    @property
    def established(self) -> bool:
        return self.lower_bound >= self.required


def by_lesion(values: Floats | Bools, lesions: Names, combine: np.ufunc) -> NDArray[Any]:
    """Returns one value for each lesion, from the values of its images.

    Args:
        values: (n,), n > 0.
        lesions: (n,), n > 0.
        combine: Such as np.minimum, or np.logical_and for flags.
    """
    order = np.argsort(lesions, kind="stable")
    starts = np.unique(lesions[order], return_index=True)[1]
    combined: NDArray[Any] = combine.reduceat(values[order], starts)
    return combined


def fit_urgent(critical: Floats, required: float) -> tuple[float, Sensitivity]:
    """Returns the highest threshold whose lower bound reaches `required`, and its sensitivity.

    `critical`: (m,) scores of lesions, m > 0. With too few lesions, returns the highest threshold
    without a miss. It is rounded down to four significant digits, so that rounding of scores
    elsewhere does not turn a tie into a miss. The bound is that of the permitted number of misses,
    which depends on m only: fewer misses by a tie or by the rounding do not raise it.
    """
    bound = tolerance_bound(critical, required)
    threshold = round_down(bound.threshold)
    hits = int((critical >= threshold).sum())
    lower = lower_bound(bound.units - bound.misses, bound.units)
    return threshold, Sensitivity(hits, bound.units, required, lower)


def round_down(value: float) -> float:
    """Returns a positive number rounded down to four significant digits."""
    exact = Decimal(value)
    return float(exact.quantize(_unit(exact), ROUND_FLOOR))


def round_up(value: float) -> float:
    """Returns the next larger number with four significant digits; 0.001 for 0."""
    exact = Decimal(value)
    rounded = exact.quantize(_unit(exact), ROUND_CEILING)
    return float(rounded if rounded > exact else rounded + _unit(exact))


def _unit(value: Decimal) -> Decimal:
    return Decimal(1).scaleb(value.adjusted() - SIGNIFICANT_DIGITS + 1)


@dataclass(frozen=True)
class PolicyInputs:
    """The inputs of a policy for n images.

    Attributes:
        scores: (n,) summed probability of the target classes.
        critical_scores: (n,) summed probability of the critical classes.
        entropy: (n,) predictive entropy in nats.
        flags: (n,) each, the reasons of the policy that rest on neither of them.
        critical: (n,) True if the true label is a critical class.
        target: (n,) True if the true label is a target class.
        outside: (n,) True for a target lesion of none of the model's classes.
        lesions: (n,) names.
        attributes: (n,) values of each attribute that any image has.
    """

    scores: Floats
    critical_scores: Floats
    entropy: Floats
    flags: Mapping[Reason, Bools]
    critical: Bools
    target: Bools
    outside: Bools
    lesions: Names
    attributes: Mapping[str, Names] = field(default_factory=dict)


def check_classes(model: EulerLoRA, target: TargetClasses) -> None:
    """Raises DataError for a model without one of the target classes."""
    missing = [name for name in target.classes if name not in model.classes]
    if missing:
        raise DataError(
            f"expected a model with the target classes {', '.join(missing)}, got "
            f"{model.config.name} with {', '.join(model.classes)}"
        )


def score_images(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: Options,
    target: TargetClasses,
    label: str,
    policy: Policy | None = None,
) -> PolicyInputs:
    """Returns a model's scores of labelled images.

    `label`: name of the progress bar. `policy`: whose dispositions end the rounds of `auto`; None
    scores all of its samples.

    Raises:
        DataError: As `check_classes`.
    """
    check_classes(model, target)
    rule = model.config.stopping_rule(model.precision)
    if policy is not None:
        rule = rule.of_policy(policy, model.classes)
    elif options.samples == AUTO:
        options = replace(options, samples=MAX_AUTO_SAMPLES)
    (trajectories,) = predict_all(model, images, [options], label, rule)
    thresholds = model.config.threshold(options)
    summary = trajectories.summary(model.feature_distance, thresholds)
    return policy_inputs(model, summary, images, target)


def policy_inputs(
    model: EulerLoRA,
    summary: Summary,
    images: Sequence[LabelledImage],
    target: TargetClasses,
) -> PolicyInputs:
    """Returns the scores from the summary of a model's predictions for labelled images.

    An image without a cluster is a lesion by itself. Images labelled OUTSIDE show target lesions
    of none of the classes.
    """
    group = [model.classes.index(name) for name in target.classes]
    critical = [model.classes.index(name) for name in target.critical.classes]
    probabilities, flags = summary.probabilities, summary.flags
    true_labels = np.array([image.label for image in images])
    unflagged = torch.zeros(len(images), dtype=torch.bool)
    return PolicyInputs(
        scores=probabilities[:, group].sum(dim=1).numpy(),
        critical_scores=probabilities[:, critical].sum(dim=1).numpy(),
        entropy=summary.entropy.numpy(),
        flags={
            Reason.UNFAMILIAR: flags.get("feature_distance", unflagged).numpy(),
            Reason.OUT_OF_DISTRIBUTION: flags.get("msp", unflagged).numpy(),
            Reason.OOD_UNKNOWN: np.full(len(images), "msp" not in flags),
            Reason.TRAJECTORIES_DISAGREE: (summary.agreement < 0).numpy(),
        },
        critical=np.isin(true_labels, critical),
        target=np.isin(true_labels, group),
        outside=true_labels == OUTSIDE,
        lesions=np.array([image.cluster_name for image in images]),
        attributes={
            name: np.array([image.attributes.get(name, UNKNOWN) for image in images])
            for name in dict.fromkeys(name for image in images for name in image.attributes)
        },
    )


@dataclass(frozen=True)
class PolicyFit:
    """The thresholds of a policy, and what is known about them from the images of the fit.

    Attributes:
        urgent: Of the target probability.
        entropy_nats: Of the entropy.
        images: Number of images of the fit.
        lesions: Number of lesions of the fit.
        critical: Sensitivity by lesion.
        uncertain: Share of the images at or above `entropy_nats`.
    """

    urgent: float
    entropy_nats: float
    images: int
    lesions: int
    critical: Sensitivity
    uncertain: float


def fit_policy(
    images: PolicyInputs, required: float, uncertain_share: float = _UNCERTAIN_SHARE
) -> PolicyFit:
    """Returns the thresholds for a required sensitivity to the critical classes.

    At most `uncertain_share` of the images may reach the entropy threshold. The feature distance
    has no influence: a lesion is a hit by its target probability, also if an image of it is
    unfamiliar.

    Raises:
        DataError: If no image is critical.
    """
    if not images.critical.any():
        raise DataError("expected images of the critical classes, got none")
    scores, lesions = images.scores[images.critical], images.lesions[images.critical]
    urgent, sensitivity = fit_urgent(by_lesion(scores, lesions, np.minimum), required)
    entropy_nats = entropy_threshold(images.entropy, uncertain_share)
    return PolicyFit(
        urgent=urgent,
        entropy_nats=entropy_nats,
        images=len(images.scores),
        lesions=len(np.unique(images.lesions)),
        critical=sensitivity,
        uncertain=float((images.entropy >= entropy_nats).mean()),
    )


def entropy_threshold(entropy: Floats, share: float) -> float:
    """Returns the lowest threshold that at most a share of the entropies reach, rounded up.

    `entropy`: (n,) in nats. The value has four significant digits.
    """
    reaching = math.floor(share * len(entropy))
    if reaching == len(entropy):
        return round_up(0.0)
    return round_up(float(np.sort(entropy)[::-1][reaching]))


@dataclass(frozen=True)
class PolicyFile:
    """A policy and its text, whose comments stay when thresholds change.

    Attributes:
        name: In errors.
    """

    name: str
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
            rules = TargetRules(**target.model_dump(), urgent=policy.target.urgent)
            policy = policy.model_copy(update={"target": rules})
        return cls(name, text, policy)

    def fitted(self, fit: PolicyFit) -> Policy:
        """Returns the next version of the policy, with fitted thresholds and without evidence."""
        urgent = {"urgent": fit.urgent}
        return self.policy.model_copy(
            update={
                "version": self.policy.version + 1,
                "target": self.policy.target.model_copy(update=urgent),
                "uncertainty": UncertaintyRules(entropy_nats=fit.entropy_nats),
                "evidence": None,
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
        document["uncertainty"]["entropy_nats"] = policy.uncertainty.entropy_nats
        if policy.evidence is not None:
            evidence = policy.evidence.model_dump(mode="json", exclude_defaults=True)
            for measured in evidence.get("measured", ()):
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


SPECIFICITY = 0.9
"""Specificity, by image, at which the sensitivity of the ranking is stated."""


@dataclass(frozen=True)
class PolicyMeasurement:
    """The dispositions of n images by a policy, and how a model orders them.

    Attributes:
        evidence: Counts of lesions, with the shares rounded against the policy.
        specificity: Share of the images that are not of the target (other_images) that are neither
            urgent nor unfamiliar.
        dispositions: Share of all images by disposition, without image quality.
        ranking: By `ranking`.
    """

    evidence: MeasuredEvidence
    specificity: float
    other_images: int
    dispositions: Mapping[str, float]
    ranking: Estimates

    @property
    def results(self) -> dict[str, str]:
        """What is measured by image, in words, by name."""
        return {
            "images outside the target": f"{self.other_images:,}",
            "specificity": f"{self.specificity:.3f}",
            **{
                f"{name}, of all images": f"{share:.3f}"
                for name, share in self.dispositions.items()
            },
            "referral rate, without image quality": f"{self.evidence.referral_rate:.3f}",
            "AUROC, critical": cell(self.ranking["critical_auroc"]),
            f"sensitivity, critical, at a specificity of {SPECIFICITY:.2f}": cell(
                self.ranking["critical_sensitivity"]
            ),
            "AUROC, target": cell(self.ranking["target_auroc"]),
        }


def measure_policy(
    images: PolicyInputs, policy: Policy, data: str, outside: Sequence[str] = ()
) -> PolicyMeasurement:
    """Returns the performance of a policy's thresholds on images.

    `data`: name of the images. `outside`: their labels of target lesions of none of the model's
    classes.

    Raises:
        DataError: If no image is critical, or all show the target.
    """
    other = ~(images.target | images.outside)
    if not (images.critical.any() and other.any()):
        raise DataError("expected images of the critical classes, and images outside the target")
    reasons = policy.reasons(images.scores, images.entropy, images.flags)
    reached: Bools = reasons[Reason.TARGET_CLASSES]
    decided: dict[Disposition, Bools] = dispositions(reasons)
    urgent = decided[Disposition.URGENT]
    seen = urgent | decided[Disposition.UNFAMILIAR]

    def lesions(chosen: Bools, combine: np.ufunc) -> dict[str, int]:
        """Returns the counts of the chosen images' lesions.

        `chosen`: (n,), at least one.
        """
        of_urgent, of_seen, of_reached = (
            by_lesion(flags[chosen], images.lesions[chosen], combine)
            for flags in (urgent, seen, reached)
        )
        return {
            "lesions": len(of_seen),
            "urgent": int(of_urgent.sum()),
            "unfamiliar": int((of_seen & ~of_urgent).sum()),
            "reached": int(of_reached.sum()),
        }

    def target(chosen: Bools) -> dict[str, Any]:
        """Returns the evidence on target lesions, which need every image to be seen."""
        counts = lesions(chosen, np.logical_and)
        hits = counts["urgent"] + counts["unfamiliar"]
        return counts | _share("sensitivity", hits, counts["lesions"])

    others = lesions(other, np.logical_or)
    spared = others["lesions"] - others["urgent"] - others["unfamiliar"]
    evidence = MeasuredEvidence(
        data=data,
        images=len(images.scores),
        lesions=len(set(images.lesions.tolist())),
        referral_rate=_ceil_share(float((~decided[Disposition.ROUTINE]).mean())),
        critical=TargetEvidence(**target(images.critical)),
        target=TargetEvidence(**target(images.target)),
        outside=OutsideEvidence(**target(images.outside), labels=tuple(outside))
        if images.outside.any()
        else None,
        others=OtherEvidence(**others, **_share("specificity", spared, others["lesions"])),
        groups=group_evidence(images, seen),
    )
    return PolicyMeasurement(
        evidence=evidence,
        specificity=float((~seen[other]).mean()),
        other_images=int(other.sum()),
        dispositions={
            name: float(flags.mean())
            for name, flags in decided.items()
            if name != Disposition.RETAKE  # without image quality
        },
        ranking=ranking(images),
    )


def group_evidence(images: PolicyInputs, seen: Bools) -> tuple[GroupEvidence, ...]:
    """Returns the evidence by the values of each attribute with two or more, in their order.

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
                    sensitivity=_share_of_lesions(seen, target, images.lesions),
                    specificity=_share_of_lesions(~seen, other, images.lesions),
                    auroc=_auroc(images, positive, other),
                )
            )
    return tuple(groups)


def _share_of_lesions(flags: Bools, chosen: Bools, lesions: Names) -> IntervalEvidence | None:
    """Returns the share of the chosen images' lesions with all flags; None without any."""
    if not chosen.any():
        return None
    of_lesions = by_lesion(flags[chosen], lesions[chosen], np.logical_and)
    hits, count = int(of_lesions.sum()), len(of_lesions)
    low, high = clopper_pearson(hits, count)
    return IntervalEvidence(
        lesions=count,
        value=_floor_share(hits / count),
        low=_floor_share(low),
        high=_ceil_share(high),
    )


def _auroc(images: PolicyInputs, positive: Bools, negative: Bools) -> IntervalEvidence | None:
    """Returns the AUROC of the target probability by image, with an interval over lesions."""
    if not (positive.any() and negative.any()):
        return None
    kept = positive | negative
    scores, truth = images.scores[kept], positive[kept]

    def metrics(weights: Weights) -> dict[str, Floats]:
        return {"auroc": auroc(scores, truth, weights)}

    lesions = cluster_indices(images.lesions[kept].tolist())
    estimate = bootstrap(metrics, lesions)["auroc"]
    assert estimate is not None  # both kinds are there
    return IntervalEvidence(
        lesions=int(lesions.max()) + 1,
        value=_floor_share(estimate.value),
        low=None if estimate.low is None else _floor_share(estimate.low),
        high=None if estimate.high is None else _ceil_share(estimate.high),
    )


def _share(name: str, hits: int, lesions: int) -> dict[str, Any]:
    low, high = clopper_pearson(hits, lesions)
    return {
        name: _floor_share(hits / lesions),
        f"{name}_low": _floor_share(low),
        f"{name}_high": _ceil_share(high),
    }


def ranking(images: PolicyInputs) -> Estimates:
    """Returns how a model orders images, whatever the thresholds, with intervals over lesions.

    critical_auroc: AUROC of the probability of the critical classes, against all others.
    critical_sensitivity: share of their images that this probability finds at `SPECIFICITY`.
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
                SPECIFICITY, critical_scores, critical, weights
            ),
            "target_auroc": auroc(scores, target, weights),
        }

    return bootstrap(metrics, cluster_indices(images.lesions[kept].tolist()))


def measure_archive(
    model: EulerLoRA,
    folder: Path,
    archive: Path,
    labels: ArchiveLabels,
    options: Options,
    policy: Policy,
    skip_bad: bool = False,
) -> PolicyMeasurement:
    """Returns the performance of a policy on labelled pictures that had no part in anything.

    `folder`: of the model's checkpoint, which knows the images of its training. `archive`: a folder
    or tar archive. skip_bad, errors: as in `read_local_images`; also DataError as `measure_policy`.
    """
    names = LabelNames(
        classes=model.classes,
        renamed=labels.labels,
        outside=labels.outside,
        remedy="name it in the table labels of the archive: {0} = CLASS",
    )
    lesion = None if labels.lesion is None else re.compile(labels.lesion)
    local = read_local_images(archive, names, skip_bad, lesion)
    report_skipped(local)
    images = local.images
    if labels.table is not None:
        images = described(images, archive, labels.table)
    scored = score_images(model, images, options, policy.target, labels.title, policy)
    title = named_with_seen(labels.title, folder, local.images)
    return measure_policy(scored, policy, title, labels.outside)


def evidence_of(
    model: EulerLoRA,
    options: Options,
    fit: PolicyFit,
    data: str,
    measured: Sequence[PolicyMeasurement],
    in_training: int = 0,
) -> Evidence:
    """Returns the evidence of a fitted policy.

    `data`: name of the images of the fit. `in_training`: those of them that the model was trained
    on; a fit to such images establishes nothing.
    """
    return Evidence(
        model=model.config.name,
        revision=model.revision,
        precision=model.precision,
        mode=options.mode,
        samples=options.samples,
        views=options.views,
        wanted=fit.critical.required,
        confidence=CONFIDENCE,
        fit=FitEvidence(
            data=data,
            images=fit.images,
            lesions=fit.critical.lesions,
            found=fit.critical.hits,
            lower_bound=_floor_share(fit.critical.lower_bound),
            established=fit.critical.established and not in_training,
            in_training=in_training,
            uncertain=_ceil_share(fit.uncertain),
        ),
        measured=tuple(measurement.evidence for measurement in measured),
    )


def _floor_share(share: float) -> float:
    return float(np.floor(share * 10_000) / 10_000)


def _ceil_share(share: float) -> float:
    return float(np.ceil(share * 10_000) / 10_000)
