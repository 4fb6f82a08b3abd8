"""The performance of a policy on images that had no part in its fit, and its evidence.

Sensitivity and specificity count lesions and have exact intervals. Image quality is not considered.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from eulerlora_client.contract.answers import TargetClasses
from eulerlora_client.policy.policy import (
    Evidence,
    FitEvidence,
    MeasuredEvidence,
    OtherEvidence,
    OutsideEvidence,
    Policy,
    TargetEvidence,
)
from eulerlora_client.policy.results import lesions_by_group
from training.calibration.policy import (
    Names,
    PolicyFit,
    PolicyInputs,
    lesions_with_all,
    score_images,
)
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


@dataclass(frozen=True)
class _Flags:
    """What happens to n images. reached: at or above the urgent threshold."""

    reached: Bools
    unfamiliar: Bools
    lesions: Names

    @property
    def urgent(self) -> Bools:
        return self.reached & ~self.unfamiliar

    @property
    def seen(self) -> Bools:
        """True for an image that is urgent or unfamiliar."""
        return self.reached | self.unfamiliar

    def target(self, chosen: Bools) -> TargetEvidence:
        """Returns the target lesions of the chosen images, at least one. chosen: (n,)."""
        urgent, seen, reached = (
            lesions_with_all(flags[chosen], self.lesions[chosen])
            for flags in (self.urgent, self.seen, self.reached)
        )
        hits, lesions = int(seen.sum()), len(seen)
        low, high = clopper_pearson(hits, lesions)
        return TargetEvidence(
            lesions=lesions,
            urgent=int(urgent.sum()),
            unfamiliar=int((seen & ~urgent).sum()),
            reached=int(reached.sum()),
            sensitivity=_rounded_down(hits / lesions),
            sensitivity_low=_rounded_down(low),
            sensitivity_high=_rounded_up(high),
        )

    def others(self, chosen: Bools) -> OtherEvidence:
        """Returns the other lesions of the chosen images, at least one. chosen: (n,)."""
        urgent, seen, reached = (
            ~lesions_with_all(~flags[chosen], self.lesions[chosen])
            for flags in (self.urgent, self.seen, self.reached)
        )
        spared, lesions = int((~seen).sum()), len(seen)
        low, high = clopper_pearson(spared, lesions)
        return OtherEvidence(
            lesions=lesions,
            urgent=int(urgent.sum()),
            unfamiliar=int((seen & ~urgent).sum()),
            reached=int(reached.sum()),
            specificity=_rounded_down(spared / lesions),
            specificity_low=_rounded_down(low),
            specificity_high=_rounded_up(high),
        )


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
    flags = _Flags(reached, images.unfamiliar, images.lesions)
    uncertain = images.entropy >= policy.uncertainty.entropy_nats
    refer = ~flags.seen & (images.doubtful | uncertain)
    evidence = MeasuredEvidence(
        data=data,
        images=len(images.scores),
        lesions=len(set(images.lesions.tolist())),
        referral_rate=_rounded_up(float((flags.seen | refer).mean())),
        critical=flags.target(images.critical),
        target=flags.target(images.target),
        outside=OutsideEvidence(**flags.target(images.outside).model_dump(), labels=tuple(outside))
        if images.outside.any()
        else None,
        others=flags.others(other),
    )
    return PolicyMeasurement(
        evidence=evidence,
        specificity=float((~flags.seen[other]).mean()),
        other_images=int(other.sum()),
        urgent=float(flags.urgent.mean()),
        unfamiliar=float(images.unfamiliar.mean()),
        refer=float(refer.mean()),
        routine=float((~flags.seen & ~refer).mean()),
        ranking=ranking(images),
    )


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


@dataclass(frozen=True)
class Archive:
    """A folder or tar archive of labelled pictures, and what its labels mean."""

    path: Path
    labels: ArchiveLabels


def measure_archive(
    model: EulerLoRA,
    folder: Path,
    archive: Archive,
    options: SamplingOptions,
    policy: Policy,
    skip_bad: bool = False,
) -> PolicyMeasurement:
    """Returns the performance of a policy on an archive that had no part in anything.

    folder: of the model's checkpoint, which knows the images of its training. skip_bad, errors: as
    in `read_local_images`; also DataError as `measure_policy`.
    """
    labels = archive.labels
    names = LabelNames(
        classes=model.classes,
        renamed=labels.labels,
        outside=labels.outside,
        remedy="name it in the table labels of the archive: {0} = CLASS",
    )
    lesion = None if labels.lesion is None else re.compile(labels.lesion)
    local = read_local_images(archive.path, names, skip_bad, lesion)
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


def coverage_lines(fit: PolicyFit) -> Iterator[str]:
    """Yields the critical lesions that higher urgent thresholds would miss."""
    yield "Critical lesions missed if the threshold were higher, by share of all images below it:"
    yield "coverage  threshold  lesions missed  images missed"
    for row in fit.coverages:
        yield (
            f"{row.coverage:8.3f}  {row.threshold:9.4f}  {row.missed_lesions:14}  "
            f"{row.missed_images:13}"
        )


def measured_lines(result: PolicyMeasurement, target: TargetClasses) -> Iterator[str]:
    """Yields sensitivities, specificity, ranking and dispositions."""
    evidence, others = result.evidence, result.evidence.others
    yield (
        f"Measured on {evidence.data}: {evidence.images:,} images of {evidence.lesions:,} lesions."
    )
    for name, counts in lesions_by_group(evidence, target).items():
        yield from _target_lines(name, counts)
    if evidence.outside is not None:
        labels = ", ".join(evidence.outside.labels)
        yield from _target_lines(labels, evidence.outside)
    yield (
        f"{others.lesions:,} other lesions: {others.urgent:,} urgent, "
        f"{others.unfamiliar:,} unfamiliar, {others.neither:,} neither"
    )
    yield (
        f"  specificity: {others.specificity:.3f} (neither; exact 95% interval "
        f"{others.specificity_low:.3f} to {others.specificity_high:.3f}); by the threshold alone "
        f"{1 - others.reached / others.lesions:.3f}"
    )
    yield f"  by image: {result.specificity:.3f} of {result.other_images:,} images"
    yield (
        f"ranking of images: {target.critical.name}, AUROC "
        f"{_estimate(result.ranking['critical_auroc'])}, sensitivity "
        f"{_estimate(result.ranking['critical_sensitivity'])} at a specificity of {SPECIFICITY:.2f}"
    )
    yield f"  {target.name}, AUROC {_estimate(result.ranking['target_auroc'])}"
    yield f"referral rate: {evidence.referral_rate:.3f} (all but routine, without image quality)"
    yield (
        f"urgent {result.urgent:.3f}, unfamiliar {result.unfamiliar:.3f}, "
        f"refer {result.refer:.3f}, routine {result.routine:.3f}"
    )


def _target_lines(name: str, counts: TargetEvidence) -> Iterator[str]:
    yield (
        f"{counts.lesions} lesions of {name}: {counts.urgent} urgent, {counts.unfamiliar} "
        f"unfamiliar (seen by a person), {counts.neither} missed"
    )
    yield (
        f"  sensitivity: {counts.sensitivity:.3f} (urgent or unfamiliar; exact 95% interval "
        f"{counts.sensitivity_low:.3f} to {counts.sensitivity_high:.3f}); by the threshold alone "
        f"{counts.reached / counts.lesions:.3f}"
    )


def _estimate(estimate: Estimate | None) -> str:
    return "not defined" if estimate is None else estimate.text()


def _rounded_down(share: float) -> float:
    """Returns a share rounded down to four decimals."""
    return float(np.floor(share * 10_000) / 10_000)


def _rounded_up(share: float) -> float:
    """Returns a share rounded up to four decimals."""
    return float(np.ceil(share * 10_000) / 10_000)
