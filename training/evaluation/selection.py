"""Which unlabelled images to label next: those of an uncertain answer, spread in feature space."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans

from eulerlora.images.files import read_image
from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.model import EulerLoRA
from eulerlora.scores.uncertainty import Uncertainty
from eulerlora_contract.errors import ImageError
from eulerlora_contract.sampling import Options
from training.data.copies import pixel_digest
from training.evaluation.intervals import Floats, Ints

_BATCH_IMAGES = 32
_CLUSTERED = 10
"""Images to cluster for each one that is chosen, the most uncertain ones."""


def _small_margin(uncertainty: Uncertainty) -> torch.Tensor:
    first, second = uncertainty.probabilities.topk(2, dim=-1).values.unbind(dim=-1)
    return 1 - (first - second)


CRITERIA: Mapping[str, Callable[[Uncertainty], torch.Tensor]] = {
    "entropy": lambda uncertainty: uncertainty.entropy,
    "mutual-information": lambda uncertainty: uncertainty.mutual_information,
    "margin": _small_margin,
}
"""The score (n,) of images, at least 0 and higher for a less certain answer: predictive entropy,
mutual information (nats), and 1 less the difference of the two highest probabilities.
"""


@dataclass(frozen=True, eq=False)
class Candidate:
    """An unlabelled image, and what a model answers.

    Attributes:
        score: By a criterion.
        features: (width,), the pooled features of the backbone, of unit length.
        unfamiliar: None if the checkpoint has no threshold for it.
    """

    file: Path
    score: float
    features: Floats
    label: str
    msp: float
    unfamiliar: bool | None


def read_candidates(
    model: EulerLoRA,
    files: Iterable[Path],
    options: Options,
    criterion: str,
    known: set[int],
    on_failure: Callable[[str], None],
) -> Iterator[Candidate]:
    """Yields the images of files, but no copy of an earlier one.

    Args:
        model: That predicts the images.
        files: Of the images.
        options: Of the predictions.
        criterion: A key of `CRITERIA`.
        known: Digests of images to leave out (`training.data.copies`); those of the files are
            added.
        on_failure: Called with the reason for every file that cannot be read.

    Raises:
        NonFiniteError: For NaN or infinite logits.
    """
    config = model.config
    width = config.backbone.settings.width

    def new_images() -> Iterator[tuple[Path, torch.Tensor, int]]:
        for file in files:
            try:
                pixels = read_image(file, str(file)).pixels
            except ImageError as error:
                on_failure(str(error))
                continue
            digest = pixel_digest(pixels)
            if digest in known:
                continue
            known.add(digest)
            seed = content_seed(pixels, config.sampling_digest)
            yield file, network_input(pixels, config.preprocessing), seed

    images = new_images()
    while batch := list(islice(images, _BATCH_IMAGES)):
        (trajectories,) = model.run([(pixels, seed) for _, pixels, seed in batch], [options])
        summary = trajectories.summary(model.feature_distance, config.threshold(options))
        scores = CRITERIA[criterion](summary)
        features = trajectories.features[..., :width].mean(dim=(1, 2)).double()
        features = torch.nn.functional.normalize(features, dim=1)
        unfamiliar = summary.flags.get("feature_distance")
        for index, (file, _, _) in enumerate(batch):
            yield Candidate(
                file=file,
                score=float(scores[index]),
                features=features[index].numpy(),
                label=config.class_names[int(summary.labels[index])],
                msp=float(summary.msp[index]),
                unfamiliar=None if unfamiliar is None else bool(unfamiliar[index]),
            )


def most_uncertain(scores: Floats, count: int) -> Ints:
    """Indices of the `count` highest scores, highest first; fewer if fewer are above 0."""
    indices = np.argsort(-scores, kind="stable")[:count]
    return indices[scores[indices] > 0]


def spread(scores: Floats, features: Floats, count: int, seed: int) -> Ints:
    """Indices of `count` uncertain images that differ, highest score first.

    The most uncertain images, ten for each one to choose, are clustered by k-means with the scores
    as weights; from each cluster the image nearest its mean is chosen (Zhdanov, Diverse mini-batch
    active learning, 2019). Fewer are chosen if fewer differ or have a score above 0.

    Args:
        scores: (n,), at least 0.
        features: (n, d).
        count: At least 1.
        seed: Of the first means.
    """
    top = most_uncertain(scores, count * _CLUSTERED)
    if len(top) <= count:
        return top
    count = min(count, len(np.unique(features[top], axis=0)))
    means = KMeans(count, random_state=seed).fit(features[top], sample_weight=scores[top])
    distances = np.linalg.norm(features[top] - means.cluster_centers_[means.labels_], axis=1)
    by_cluster = np.lexsort((distances, means.labels_))
    _, first = np.unique(means.labels_[by_cluster], return_index=True)
    return top[np.sort(by_cluster[first])]
