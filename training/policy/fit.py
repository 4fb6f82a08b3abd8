"""What an urgent threshold finds and misses on held-out lesions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from eulerlora.uncertainty import summarise
from training.data.datasets import LabelledImage
from training.evaluation.inference import Question, predict_all
from training.evaluation.sensitivity import FIRST
from training.policy.file import PolicyRules
from training.policy.threshold import (
    CONFIDENCE,
    Bools,
    Coverage,
    Floats,
    Names,
    Share,
    coverages,
    lesion_scores,
    share_found,
    urgent_threshold,
)

TARGET = FIRST
COVERAGES = tuple(tenths / 10 for tenths in range(1, 11))


@dataclass(frozen=True)
class Answers:
    """A model's answers to n images, as a policy reads them.

    scores: (n,) summed probability of the malignant group. unsure: (n,) whether an image is
    referred unless it is urgent: far from what the model knows, or it is not known whether; high
    entropy; or trajectories that disagree. melanoma, malignant: (n,) by the true label. lesions:
    (n,) names.
    """

    scores: Floats
    unsure: Bools
    melanoma: Bools
    malignant: Bools
    lesions: Names


@dataclass(frozen=True)
class Fit:
    """A threshold and its figures on n images.

    melanoma: of lesions. melanoma_images: found, and all. specificity: share of the images
    outside the malignant group that are below the threshold. urgent, refer, routine: share of all
    images, picture quality aside.
    """

    threshold: float
    images: int
    lesions: int
    melanoma: Share
    melanoma_images: tuple[int, int]
    specificity: float
    others: int
    urgent: float
    refer: float
    routine: float
    coverages: Sequence[Coverage]

    @property
    def referral_rate(self) -> float:
        """Share of all images that a person is asked to look at out of turn: urgent or refer."""
        return self.urgent + self.refer


def ask(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    lesions: Mapping[str, str],
    question: Question,
    rules: PolicyRules,
) -> Answers:
    """A model's answers to labelled images. lesions: by image name; one without is its own.

    Raises DataError for a model without the policy's malignant classes or without melanoma.
    """
    missing = [name for name in (*rules.malignant, TARGET) if name not in model.classes]
    if missing:
        raise DataError(
            f"the policy needs the classes {', '.join(missing)}; the model {model.config.name} "
            f"has {', '.join(model.classes)}"
        )
    (found,) = predict_all(model, images, [question], "fit")
    trajectories = found.flatten(1, 2).exp()
    summary = summarise(trajectories)
    group = [model.classes.index(name) for name in rules.malignant]
    threshold = model.config.threshold(*question)
    flagged = torch.ones(len(images)).bool() if threshold is None else summary.msp < threshold
    labels = trajectories.argmax(dim=-1)  # (n, trajectories)
    disagree = (labels != labels[:, :1]).any(dim=1)
    truth = torch.tensor([each.label for each in images])
    return Answers(
        scores=summary.probabilities[:, group].sum(dim=1).numpy(),
        unsure=(flagged | (summary.entropy >= rules.entropy_nats) | disagree).numpy(),
        melanoma=(truth == model.classes.index(TARGET)).numpy(),
        malignant=torch.isin(truth, torch.tensor(group)).numpy(),
        lesions=np.array([lesions.get(each.name, each.name) for each in images]),
    )


def fit(answers: Answers, wanted: float) -> Fit:
    """The threshold for a wanted sensitivity to melanoma, and what it does to these images.

    Raises DataError where none of them is a melanoma, or all are malignant.
    """
    others = answers.scores[~answers.malignant]
    if not answers.melanoma.any() or not len(others):
        raise DataError("a threshold needs images with melanoma and without malignancy")
    melanomas = lesion_scores(answers.scores[answers.melanoma], answers.lesions[answers.melanoma])
    threshold = urgent_threshold(melanomas, wanted)
    urgent = answers.scores >= threshold
    refer = ~urgent & answers.unsure
    return Fit(
        threshold=threshold,
        images=len(urgent),
        lesions=len(np.unique(answers.lesions)),
        melanoma=share_found(melanomas, threshold, wanted),
        melanoma_images=(int(urgent[answers.melanoma].sum()), int(answers.melanoma.sum())),
        specificity=float((others < threshold).mean()),
        others=len(others),
        urgent=float(urgent.mean()),
        refer=float(refer.mean()),
        routine=float((~urgent & ~refer).mean()),
        coverages=coverages(answers.scores, answers.melanoma, answers.lesions, COVERAGES),
    )


def evidence_of(found: Fit, model: EulerLoRA, question: Question, data: str) -> dict[str, Any]:
    """What stands in a policy file beside the threshold."""
    mode, samples = question
    return {
        "model": model.config.name,
        "revision": model.revision,
        "mode": mode,
        "samples": samples,
        "data": data,
        "images": found.images,
        "target": TARGET,
        "lesions": found.melanoma.lesions,
        "found": found.melanoma.found,
        "wanted": found.melanoma.wanted,
        "sensitivity": _short(found.melanoma.share),
        "lower_bound": _short(found.melanoma.lower_bound),
        "confidence": CONFIDENCE,
        "established": found.melanoma.established,
        "specificity": _short(found.specificity),
        "referral_rate": _short(found.referral_rate),
    }


def _short(share: float) -> float:
    """Four decimals, never more than was found."""
    return float(np.floor(share * 10_000) / 10_000)
