"""The performance of a policy on images that had no part in its fit, and its evidence.

Sensitivity and specificity count lesions and have exact intervals. Image quality is not considered.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eulerlora.model import EulerLoRA
from eulerlora_client.contract.answers import TargetClasses
from eulerlora_client.errors import DataError
from eulerlora_client.policy.policy import (
    Evidence,
    FitEvidence,
    MeasuredEvidence,
    OtherEvidence,
    OutsideEvidence,
    Policy,
    TargetEvidence,
)
from training.calibration.policy import PolicyFit, PolicyInputs, by_lesion, score_images
from training.data.digests import named_with_seen
from training.data.images import report_skipped
from training.data.local_images import ArchiveLabels, LabelNames, read_local_images
from training.evaluation.inference import SamplingOptions
from training.evaluation.intervals import (
    CONFIDENCE,
    Bools,
    Estimate,
    Estimates,
    Floats,
    Weights,
    bootstrap,
    clopper_pearson,
    cluster_indices,
)
from training.evaluation.metrics import auroc, sensitivity_at_specificity

SPECIFICITY = 0.9
"""Specificity, by image, at which the sensitivity of the ranking is stated."""


@dataclass(frozen=True)
class PolicyMeasurement:
    """The dispositions of n images by a policy, and how a model orders them.

    evidence: counts of lesions, with the shares rounded against the policy. specificity: share of
    the images that are not of the target (other_images) that are neither urgent nor unfamiliar.
    urgent, unfamiliar, refer, routine: shares of all images. ranking: by `ranking`.
    """

    evidence: MeasuredEvidence
    specificity: float
    other_images: int
    urgent: float
    unfamiliar: float
    refer: float
    routine: float
    ranking: Estimates


def measure_policy(
    images: PolicyInputs, policy: Policy, data: str, outside: Sequence[str] = ()
) -> PolicyMeasurement:
    """Returns the performance of a policy's thresholds on images.

    data: name of the images. outside: their labels of target lesions of none of the model's
    classes. Raises DataError if no image is critical, or all show the target.
    """
    other = ~(images.target | images.outside)
    if not (images.critical.any() and other.any()):
        raise DataError("expected images of the critical classes, and images outside the target")
    reached = images.scores >= policy.target.urgent
    urgent, seen = reached & ~images.unfamiliar, reached | images.unfamiliar
    uncertain = images.entropy >= policy.uncertainty.entropy_nats
    refer = ~seen & (images.doubtful | uncertain)

    def lesions(chosen: Bools, combine: np.ufunc) -> dict[str, int]:
        """Returns the counts of the chosen images' lesions. chosen: (n,), at least one."""
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
        referral_rate=_rounded_up(float((seen | refer).mean())),
        critical=TargetEvidence(**target(images.critical)),
        target=TargetEvidence(**target(images.target)),
        outside=OutsideEvidence(**target(images.outside), labels=tuple(outside))
        if images.outside.any()
        else None,
        others=OtherEvidence(**others, **_share("specificity", spared, others["lesions"])),
    )
    return PolicyMeasurement(
        evidence=evidence,
        specificity=float((~seen[other]).mean()),
        other_images=int(other.sum()),
        urgent=float(urgent.mean()),
        unfamiliar=float(images.unfamiliar.mean()),
        refer=float(refer.mean()),
        routine=float((~seen & ~refer).mean()),
        ranking=ranking(images),
    )


def _share(name: str, hits: int, lesions: int) -> dict[str, Any]:
    """Returns a share of lesions with its exact interval, rounded against the policy."""
    low, high = clopper_pearson(hits, lesions)
    return {
        name: _rounded_down(hits / lesions),
        f"{name}_low": _rounded_down(low),
        f"{name}_high": _rounded_up(high),
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
    options: SamplingOptions,
    policy: Policy,
    skip_bad: bool = False,
) -> PolicyMeasurement:
    """Returns the performance of a policy on labelled pictures that had no part in anything.

    folder: of the model's checkpoint, which knows the images of its training. archive: a folder or
    tar archive. skip_bad, errors: as in `read_local_images`; also DataError as `measure_policy`.
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
    scored = score_images(model, local.images, options, policy.target, labels.title)
    title = named_with_seen(labels.title, folder, local.images)
    return measure_policy(scored, policy, title, labels.outside)


def evidence_of(
    model: EulerLoRA,
    options: SamplingOptions,
    fit: PolicyFit,
    data: str,
    measured: Sequence[PolicyMeasurement],
    in_training: int = 0,
) -> Evidence:
    """Returns the evidence of a fitted policy.

    data: name of the images of the fit. in_training: those of them that the model was trained on;
    a fit to such images establishes nothing.
    """
    return Evidence(
        model=model.config.name,
        revision=model.revision,
        precision=model.precision,
        mode=options.mode,
        samples=options.samples,
        views=model.config.default_views(options.mode),
        wanted=fit.critical.required,
        confidence=CONFIDENCE,
        fit=FitEvidence(
            data=data,
            images=fit.images,
            lesions=fit.critical.lesions,
            found=fit.critical.hits,
            lower_bound=_rounded_down(fit.critical.lower_bound),
            established=fit.critical.established and not in_training,
            in_training=in_training,
            uncertain=_rounded_up(fit.uncertain),
        ),
        measured=tuple(measurement.evidence for measurement in measured),
    )


def measured_lines(result: PolicyMeasurement, target: TargetClasses) -> Iterator[str]:
    """Yields what is measured beside the evidence: ranking, and shares by image."""
    yield f"{result.evidence.data}, by image ({result.evidence.images:,}):"
    yield (
        f"  ranking: {target.critical.name}, AUROC {_estimate(result.ranking['critical_auroc'])}, "
        f"sensitivity {_estimate(result.ranking['critical_sensitivity'])} at a specificity of "
        f"{SPECIFICITY:.2f}; {target.name}, AUROC {_estimate(result.ranking['target_auroc'])}"
    )
    yield (
        f"  specificity {result.specificity:.3f} of {result.other_images:,} images; urgent "
        f"{result.urgent:.3f}, unfamiliar {result.unfamiliar:.3f}, refer {result.refer:.3f}, "
        f"routine {result.routine:.3f}; referral rate {result.evidence.referral_rate:.3f} (all "
        "but routine, without image quality)"
    )


def _estimate(estimate: Estimate | None) -> str:
    return "not defined" if estimate is None else estimate.text()


def _rounded_down(share: float) -> float:
    """Returns a share rounded down to four decimals."""
    return float(np.floor(share * 10_000) / 10_000)


def _rounded_up(share: float) -> float:
    """Returns a share rounded up to four decimals."""
    return float(np.ceil(share * 10_000) / 10_000)
