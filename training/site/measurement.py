"""The performance of a checkpoint and a policy on a site's pictures, before and after a fit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eulerlora.model import EulerLoRA
from eulerlora.scores.ood_scores import ScoreName, ood_scores
from training.data.images import LabelledImage
from training.evaluation.inference import ModelOutputs, SamplingOptions, predict_all
from training.evaluation.prediction_sets import set_coverages
from training.evaluation.report_schema import MELANOMA, SetCoverage
from training.metrics.intervals import Proportion, proportion
from training.policy.fit import PolicyFit
from training.policy.measurement import PolicyMeasurement, measure_policy
from training.policy.scores import score_outputs
from training.reporting.tables import table
from training.site.hold_out import group_indices

UNKNOWN = "n/a"


@dataclass(frozen=True)
class SitePolicy:
    """The malignant classes of a policy and its thresholds."""

    malignant: Sequence[str]
    fit: PolicyFit


@dataclass(frozen=True)
class SiteMeasurement:
    """Results on labelled pictures.

    kept: pictures that an OOD score does not flag, by calibrated score. policy: None without a
    policy, melanoma, or pictures outside the malignant classes. sets: for each coverage.
    """

    kept: Mapping[ScoreName, Proportion]
    policy: PolicyMeasurement | None
    sets: Sequence[SetCoverage]


@dataclass(frozen=True)
class Comparison:
    """Results on pictures without a part in the fit, of the old and the new checkpoint."""

    before: SiteMeasurement
    after: SiteMeasurement

    @property
    def table(self) -> str:
        """The results as a Markdown table."""
        columns = [dict(_rows(self.before)), dict(_rows(self.after))]
        names = dict.fromkeys(name for column in columns for name in column)
        rows = [[name, *(column.get(name, UNKNOWN) for column in columns)] for name in names]
        return table(["held-out pictures", "before", "after"], rows)


def measure_site(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: SamplingOptions,
    policy: SitePolicy | None,
) -> SiteMeasurement:
    """Returns the results of a model on at least one picture. options: of its predictions."""
    (outputs,) = predict_all(model, images, [options], "measure")
    return measure_outputs(model, outputs, images, options, policy)


def measure_outputs(
    model: EulerLoRA,
    outputs: ModelOutputs,
    images: Sequence[LabelledImage],
    options: SamplingOptions,
    policy: SitePolicy | None,
) -> SiteMeasurement:
    """Returns the results from a model's outputs; arguments as in `measure_site`."""
    thresholds = model.config.threshold(options.mode, options.samples)
    flags = ood_scores(outputs.scores(model.feature_distance), thresholds)
    groups = group_indices(images)
    kept = {
        name: share
        for name, score in flags.items()
        if score.flagged is not None
        and (share := proportion((~score.flagged).numpy(), groups)) is not None
    }
    measured = None
    if policy is not None:
        scored = score_outputs(model, outputs, images, options, policy.malignant)
        if scored.melanoma.any() and not scored.malignant.all():
            measured = measure_policy(scored, policy.fit)
    sampler = model.config.sampler
    sets = set_coverages(model, options, sampler, outputs.probabilities(), images)
    return SiteMeasurement(kept, measured, sets)


def _rows(site: SiteMeasurement) -> Iterator[tuple[str, str]]:
    if site.policy is not None:
        melanoma, policy = site.policy.melanoma, site.policy
        low, high = melanoma.interval
        yield (
            f"sensitivity to {MELANOMA}, {melanoma.lesions} lesions",
            f"{melanoma.sensitivity:.3f} [{low:.3f}, {high:.3f}]",
        )
        yield f"{MELANOMA} urgent", str(melanoma.urgent)
        yield f"{MELANOMA} unfamiliar", str(melanoma.unfamiliar)
        others = f"{policy.other_images} images not malignant"
        yield f"specificity, {others}", f"{policy.specificity:.3f}"
        yield "urgent, of all images", f"{policy.urgent:.3f}"
        yield "unfamiliar, of all images", f"{policy.unfamiliar:.3f}"
        yield "referral rate", f"{policy.referral_rate:.3f}"
    for score, share in site.kept.items():
        yield f"kept by {score}", _interval(share)
    for sets in site.sets:
        yield f"classes in a set of {sets.coverage:g}", f"{sets.mean_size:.2f}"
        for name, covered in sets.classes.items():
            yield f"coverage of {sets.coverage:g} for {name}", _interval(covered.lesions)


def _interval(share: Proportion) -> str:
    return f"{share.share:.3f} [{share.low:.3f}, {share.high:.3f}]"
