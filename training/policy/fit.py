"""Fit of the urgent threshold of a triage policy on held-out lesions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from eulerlora.uncertainty import summarise
from training.data.labelled_images import LabelledImage
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import CONFIDENCE, Bools, Floats
from training.evaluation.report_schema import MELANOMA
from training.policy.file import PolicyRules
from training.policy.threshold import (
    Names,
    Sensitivity,
    ThresholdCoverage,
    coverage_table,
    lesion_scores,
    sensitivity_at,
    urgent_threshold,
)

COVERAGES = tuple(tenths / 10 for tenths in range(1, 11))


@dataclass(frozen=True)
class ScoredImages:
    """The inputs of the policy for n images.

    scores: (n,) summed probability of the malignant classes. uncertain: (n,) True if an image is
    referred unless it is urgent: out of distribution or without an OOD threshold, high entropy,
    or trajectories with different labels. melanoma, malignant: (n,) by the true label. lesions:
    (n,) names.
    """

    scores: Floats
    uncertain: Bools
    melanoma: Bools
    malignant: Bools
    lesions: Names


@dataclass(frozen=True)
class ThresholdFit:
    """An urgent threshold and its results on n images.

    melanoma: sensitivity by lesion. melanoma_hits: urgent images of all melanoma_images.
    specificity: share of the images outside the malignant classes (other_images) that are below
    the threshold. urgent, refer, routine: shares of all images; image quality is not considered.
    """

    threshold: float
    images: int
    lesions: int
    melanoma: Sensitivity
    melanoma_hits: int
    melanoma_images: int
    specificity: float
    other_images: int
    urgent: float
    refer: float
    routine: float
    coverages: Sequence[ThresholdCoverage]

    @property
    def referral_rate(self) -> float:
        """Share of all images that are urgent or refer."""
        return self.urgent + self.refer


def score_images(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    lesions: Mapping[str, str],
    options: SamplingOptions,
    rules: PolicyRules,
) -> ScoredImages:
    """Returns a model's scores of labelled images.

    lesions: by image name; an image without an entry is a lesion by itself. Raises DataError for
    a model without the policy's malignant classes or without melanoma.
    """
    missing = [name for name in (*rules.malignant, MELANOMA) if name not in model.classes]
    if missing:
        raise DataError(
            f"expected a model with the policy's classes {', '.join(missing)}, got "
            f"{model.config.name} with {', '.join(model.classes)}"
        )
    (log_probabilities,) = predict_all(model, images, [options], "fit")
    trajectories = log_probabilities.flatten(1, 2).exp()
    summary = summarise(trajectories)
    group = [model.classes.index(name) for name in rules.malignant]
    threshold = model.config.threshold(options.mode, options.samples)
    flagged = torch.ones(len(images)).bool() if threshold is None else summary.msp < threshold
    labels = trajectories.argmax(dim=-1)  # (n, trajectories)
    disagree = (labels != labels[:, :1]).any(dim=1)
    true_labels = torch.tensor([image.label for image in images])
    return ScoredImages(
        scores=summary.probabilities[:, group].sum(dim=1).numpy(),
        uncertain=(flagged | (summary.entropy >= rules.entropy_nats) | disagree).numpy(),
        melanoma=(true_labels == model.classes.index(MELANOMA)).numpy(),
        malignant=torch.isin(true_labels, torch.tensor(group)).numpy(),
        lesions=np.array([lesions.get(image.name, image.name) for image in images]),
    )


def fit_threshold(images: ScoredImages, required: float) -> ThresholdFit:
    """Returns the threshold for a required sensitivity to melanoma, with its results.

    Raises DataError if no image shows melanoma or all images are malignant.
    """
    others = images.scores[~images.malignant]
    if not images.melanoma.any() or not len(others):
        raise DataError("expected images with melanoma and images outside the malignant classes")
    melanomas = lesion_scores(images.scores[images.melanoma], images.lesions[images.melanoma])
    threshold = urgent_threshold(melanomas, required)
    urgent = images.scores >= threshold
    refer = ~urgent & images.uncertain
    return ThresholdFit(
        threshold=threshold,
        images=len(urgent),
        lesions=len(np.unique(images.lesions)),
        melanoma=sensitivity_at(melanomas, threshold, required),
        melanoma_hits=int(urgent[images.melanoma].sum()),
        melanoma_images=int(images.melanoma.sum()),
        specificity=float((others < threshold).mean()),
        other_images=len(others),
        urgent=float(urgent.mean()),
        refer=float(refer.mean()),
        routine=float((~urgent & ~refer).mean()),
        coverages=coverage_table(images.scores, images.melanoma, images.lesions, COVERAGES),
    )


def evidence_table(
    fit: ThresholdFit, model: EulerLoRA, options: SamplingOptions, data: str
) -> dict[str, Any]:
    """Returns the `[evidence]` table of a policy file."""
    return {
        "model": model.config.name,
        "revision": model.revision,
        "mode": options.mode,
        "samples": options.samples,
        "data": data,
        "images": fit.images,
        "target": MELANOMA,
        "lesions": fit.melanoma.lesions,
        "found": fit.melanoma.hits,
        "wanted": fit.melanoma.required,
        "sensitivity": _four_decimals_below(fit.melanoma.share),
        "lower_bound": _four_decimals_below(fit.melanoma.lower_bound),
        "confidence": CONFIDENCE,
        "established": fit.melanoma.established,
        "specificity": _four_decimals_below(fit.specificity),
        "referral_rate": _four_decimals_below(fit.referral_rate),
    }


def _four_decimals_below(share: float) -> float:
    """Returns a share rounded down to four decimals."""
    return float(np.floor(share * 10_000) / 10_000)
