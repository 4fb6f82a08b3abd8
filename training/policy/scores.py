"""The inputs of a triage policy for labelled images: scores of a model, and true labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from eulerlora.uncertainty import summarise
from training.data.labelled_images import LabelledImage
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import Bools, Floats
from training.evaluation.report_schema import MELANOMA
from training.policy.threshold import Names


@dataclass(frozen=True)
class ScoredImages:
    """The inputs of a policy for n images.

    scores: (n,) summed probability of the malignant classes. entropy: (n,) predictive entropy in
    nats. unfamiliar: (n,) flag of the feature distance; all False without one. doubtful: (n,) True
    if an image is referred whatever its entropy: out of distribution, no OOD threshold, or
    trajectories with different labels. melanoma, malignant: (n,) by the true label. lesions: (n,)
    names.
    """

    scores: Floats
    entropy: Floats
    unfamiliar: Bools
    doubtful: Bools
    melanoma: Bools
    malignant: Bools
    lesions: Names


def score_images(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: SamplingOptions,
    malignant: Sequence[str],
    label: str,
) -> ScoredImages:
    """Returns a model's scores of labelled images.

    An image without a cluster is a lesion by itself. malignant: classes of the policy's group.
    label: name of the progress bar. Raises DataError for a model without these classes or without
    melanoma.
    """
    missing = [name for name in (*malignant, MELANOMA) if name not in model.classes]
    if missing:
        raise DataError(
            f"expected a model with the policy's classes {', '.join(missing)}, got "
            f"{model.config.name} with {', '.join(model.classes)}"
        )
    (log_probabilities,) = predict_all(model, images, [options], label)
    trajectories = log_probabilities.flatten(1, 2).exp()
    summary = summarise(trajectories)
    group = [model.classes.index(name) for name in malignant]
    threshold = model.config.threshold(options.mode, options.samples)
    flagged = torch.ones(len(images)).bool() if threshold is None else summary.msp < threshold.msp
    labels = trajectories.argmax(dim=-1)  # (n, trajectories)
    disagree = (labels != labels[:, :1]).any(dim=1)
    true_labels = torch.tensor([image.label for image in images])
    return ScoredImages(
        scores=summary.probabilities[:, group].sum(dim=1).numpy(),
        entropy=summary.entropy.numpy(),
        unfamiliar=np.zeros(len(images), bool),
        doubtful=(flagged | disagree).numpy(),
        melanoma=(true_labels == model.classes.index(MELANOMA)).numpy(),
        malignant=torch.isin(true_labels, torch.tensor(group)).numpy(),
        lesions=np.array([image.cluster or image.name for image in images]),
    )
