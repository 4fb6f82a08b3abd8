"""The inputs of a triage policy for labelled images: scores of a model, and true labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from eulerlora.scores.ood_scores import OodScore, ood_scores
from eulerlora.scores.uncertainty import summarise
from training.data.images import OUTSIDE, LabelledImage
from training.evaluation.inference import ModelOutputs, SamplingOptions, predict_all
from training.evaluation.report_schema import MELANOMA
from training.metrics.intervals import Bools, Floats
from training.policy.threshold import Names


@dataclass(frozen=True)
class ScoredImages:
    """The inputs of a policy for n images.

    scores: (n,) summed probability of the malignant classes. melanoma_scores: (n,) probability of
    melanoma. entropy: (n,) predictive entropy in nats. unfamiliar: (n,) flag of the feature
    distance; all False without one. doubtful: (n,) True if an image is referred whatever its
    entropy: out of distribution, no OOD threshold, or trajectories with different labels.
    melanoma, malignant: (n,) by the true label. outside: (n,) malignant lesions of none of the
    model's classes. lesions: (n,) names.
    """

    scores: Floats
    melanoma_scores: Floats
    entropy: Floats
    unfamiliar: Bools
    doubtful: Bools
    melanoma: Bools
    malignant: Bools
    outside: Bools
    lesions: Names


def score_images(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: SamplingOptions,
    malignant: Sequence[str],
    label: str,
) -> ScoredImages:
    """Returns a model's scores of labelled images; arguments and errors as in `score_outputs`.

    label: name of the progress bar.
    """
    check_classes(model, malignant)
    (outputs,) = predict_all(model, images, [options], label)
    return score_outputs(model, outputs, images, options, malignant)


def check_classes(model: EulerLoRA, malignant: Sequence[str]) -> None:
    """Raises DataError for a model without the policy's malignant classes or without melanoma."""
    missing = [name for name in (*malignant, MELANOMA) if name not in model.classes]
    if missing:
        raise DataError(
            f"expected a model with the policy's classes {', '.join(missing)}, got "
            f"{model.config.name} with {', '.join(model.classes)}"
        )


def score_outputs(
    model: EulerLoRA,
    outputs: ModelOutputs,
    images: Sequence[LabelledImage],
    options: SamplingOptions,
    malignant: Sequence[str],
) -> ScoredImages:
    """Returns the scores from a model's outputs for labelled images.

    An image without a cluster is a lesion by itself. Images labelled OUTSIDE show malignant lesions
    of none of the classes. options: of the outputs. malignant: classes of the policy's group.
    Raises DataError as `check_classes`.
    """
    check_classes(model, malignant)
    trajectories = outputs.log_probabilities.flatten(1, 2).exp()
    summary = summarise(trajectories)
    thresholds = model.config.threshold(options.mode, options.samples)
    flags = ood_scores(outputs.scores(model.feature_distance), thresholds)
    labels = trajectories.argmax(dim=-1)  # (n, trajectories)
    disagree = (labels != labels[:, :1]).any(dim=1)
    group = [model.classes.index(name) for name in malignant]
    melanoma = model.classes.index(MELANOMA)
    true_labels = torch.tensor([image.label for image in images])
    return ScoredImages(
        scores=summary.probabilities[:, group].sum(dim=1).numpy(),
        melanoma_scores=summary.probabilities[:, melanoma].numpy(),
        entropy=summary.entropy.numpy(),
        unfamiliar=_flags(flags.get("feature_distance"), len(images), unknown=False),
        doubtful=_flags(flags["msp"], len(images), unknown=True) | disagree.numpy(),
        melanoma=(true_labels == melanoma).numpy(),
        malignant=torch.isin(true_labels, torch.tensor(group)).numpy(),
        outside=(true_labels == OUTSIDE).numpy(),
        lesions=np.array([image.cluster or image.name for image in images]),
    )


def _flags(score: OodScore | None, images: int, unknown: bool) -> Bools:
    """Returns (n,) the flags of a score. unknown: value of all flags without a threshold."""
    if score is None or score.flagged is None:
        return np.full(images, unknown)
    flags: Bools = score.flagged.numpy()
    return flags
