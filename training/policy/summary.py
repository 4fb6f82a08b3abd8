"""The results of a fit and of its measurements as lines of text."""

from collections.abc import Iterator

from training.evaluation.report_schema import MELANOMA
from training.metrics.intervals import Estimate
from training.policy.evidence import MeasuredOn
from training.policy.fit import PolicyFit
from training.policy.measurement import SPECIFICITY, MalignantCounts
from training.policy.threshold import ThresholdCoverage, min_lesions


def fit_lines(fit: PolicyFit, data: str) -> Iterator[str]:
    """Yields the thresholds and what is known from the images of the fit, named `data`."""
    melanoma = fit.melanoma
    yield f"Fitted on {data}: {fit.images:,} images of {fit.lesions:,} lesions."
    yield f"urgent threshold: {fit.urgent}"
    yield (
        f"{melanoma.hits} of {melanoma.lesions} lesions of {MELANOMA} with all images at or above "
        f"it ({fit.melanoma_hits} of {fit.melanoma_images} images), "
        f"one-sided 95% lower bound {melanoma.lower_bound:.3f}"
    )
    yield f"required: {melanoma.required}, {_verdict(fit)}"
    yield f"entropy threshold: {fit.entropy_nats} nats (reached by {fit.uncertain:.3f} of images)"
    yield "Melanoma missed if the threshold were higher, by share of all images below it:"
    yield "coverage  threshold  lesions missed  images missed"
    yield from (_row(coverage) for coverage in fit.coverages)


def _verdict(fit: PolicyFit) -> str:
    if fit.melanoma.established:
        return "established"
    minimum = min_lesions(fit.melanoma.required)
    return f"not established: requires at least {minimum} lesions without a miss"


def measured_lines(measured: MeasuredOn) -> Iterator[str]:
    """Yields sensitivities, specificity, ranking and dispositions."""
    result = measured.measurement
    yield f"Measured on {measured.data}: {result.images:,} images of {result.lesions:,} lesions."
    yield from _malignant_lines(MELANOMA, result.melanoma)
    yield from _malignant_lines("the malignant classes", result.malignant)
    if result.outside is not None:
        yield from _malignant_lines(", ".join(measured.outside), result.outside)
    others, (low, high) = result.others, result.others.interval
    yield (
        f"{others.lesions:,} lesions not malignant: {others.urgent:,} urgent, "
        f"{others.unfamiliar:,} unfamiliar, {others.spared:,} neither"
    )
    yield (
        f"  specificity: {others.specificity:.3f} (neither; exact 95% interval {low:.3f} to "
        f"{high:.3f}); by the threshold alone {1 - others.reached / others.lesions:.3f}"
    )
    yield f"  by image: {result.specificity:.3f} of {result.other_images:,} images"
    yield (
        f"ranking of images: melanoma, AUROC {_estimate(result.ranking['melanoma_auroc'])}, "
        f"sensitivity {_estimate(result.ranking['melanoma_sensitivity'])} at a specificity of "
        f"{SPECIFICITY:.2f}"
    )
    yield f"  malignant classes, AUROC {_estimate(result.ranking['malignant_auroc'])}"
    yield f"referral rate: {result.referral_rate:.3f} (all but routine, without image quality)"
    yield (
        f"urgent {result.urgent:.3f}, unfamiliar {result.unfamiliar:.3f}, "
        f"refer {result.refer:.3f}, routine {result.routine:.3f}"
    )


def _malignant_lines(name: str, counts: MalignantCounts) -> Iterator[str]:
    low, high = counts.interval
    yield (
        f"{counts.lesions} lesions of {name}: {counts.urgent} urgent, {counts.unfamiliar} "
        f"unfamiliar (seen by a person), {counts.missed} missed"
    )
    yield (
        f"  sensitivity: {counts.sensitivity:.3f} (urgent or unfamiliar; exact 95% interval "
        f"{low:.3f} to {high:.3f}); by the threshold alone {counts.reached / counts.lesions:.3f}"
    )


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "not defined"
    return f"{estimate.value:.3f} (95% interval {estimate.low:.3f} to {estimate.high:.3f})"


def _row(coverage: ThresholdCoverage) -> str:
    return (
        f"{coverage.coverage:8.3f}  {coverage.threshold:9.4f}  {coverage.missed_lesions:14}  "
        f"{coverage.missed_images:13}"
    )
