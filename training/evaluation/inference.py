"""Predictions of a model for a set of images, equal to those of the service."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.model import EulerLoRA
from eulerlora.nn.network import NetworkOutput, predict_images
from eulerlora.scores.ood_scores import (
    FeatureDistance,
    ScoredByName,
    ScoreName,
    ood_scores,
    score_values,
)
from eulerlora.scores.uncertainty import Uncertainty, Variance, summarise, variance_of
from eulerlora.settings import Draw
from eulerlora_contract.answers import Threshold
from eulerlora_contract.errors import NonFiniteError
from eulerlora_contract.progress import track
from eulerlora_contract.sampling import Mode, Sampler, Views
from training.data.images import LabelledImage, load, pixels_of
from training.evaluation.intervals import Bools, Floats, Ints

BATCH_ROWS = 256


@dataclass(frozen=True)
class SamplingOptions:
    """How a model predicts.

    Attributes:
        samples: Per adapter, 1 in `det`.
        views: None for those of the checkpoint.
        sampler: None for those of the checkpoint.
        adaptive: True for `samples=auto`, whose rounds are replayed from `samples`.
    """

    mode: Mode
    samples: int = 1
    views: Views | None = None
    sampler: Sampler | None = None
    adaptive: bool = False

    def draw(self, config: CheckpointConfig) -> Draw:
        """Returns the draw with seed 0."""
        return Draw(
            mode=self.mode,
            samples=self.samples,
            sampler=self.sampler or config.sampler,
            views=self.views or config.default_views(self.mode),
        )


@dataclass(frozen=True)
class ModelOutputs:
    """The outputs of a model for n images with the same options; on the CPU.

    Attributes:
        log_probabilities: (n, adapters, samples, classes), float64.
        log_partition: (n, adapters, samples), float64, log-sum-exp of the logits.
        features: (n, adapters, samples, d), float32.
        views: (n, adapters, samples), of each trajectory. In mode det, samples are views.
    """

    log_probabilities: Tensor
    log_partition: Tensor
    features: Tensor
    views: Tensor

    def first(self, samples: int) -> "ModelOutputs":
        """Returns the outputs of the first samples of each adapter."""
        return ModelOutputs(*(values[:, :, :samples] for values in vars(self).values()))

    def probabilities(self, samples: int | None = None) -> Tensor:
        """Returns the mean probabilities (n, classes); samples: as in `scores`."""
        trajectories = self.log_probabilities[:, :, slice(0, samples)].exp().flatten(1, 2)
        return summarise(trajectories).probabilities

    def scores(
        self, distance: FeatureDistance | None, samples: int | None = None
    ) -> dict[ScoreName, Tensor]:
        """Returns the OOD scores (n,) by name.

        Args:
            distance: Adds the feature distance; None without feature statistics.
            samples: Computes them from the first samples of each adapter only; None from all.
        """
        first = slice(0, samples)
        return score_values(
            self.probabilities(samples).amax(dim=-1),
            self.log_partition[:, :, first].mean(dim=(1, 2)),
            None if distance is None else distance(self.features[:, :, first].mean(dim=(1, 2))),
        )

    @classmethod
    def of(cls, outputs: Sequence[NetworkOutput], count: int) -> "ModelOutputs":
        """Returns the outputs of at least one image, with `count` rows for each adapter.

        Raises:
            NonFiniteError: For NaN or infinite logits.
        """
        log_probabilities = torch.stack([output.log_probabilities for output in outputs])
        if not log_probabilities.isfinite().all():
            raise NonFiniteError("expected finite logits, got NaN or infinity from the network")
        views = [
            torch.zeros(len(output.logits), dtype=torch.int64)
            if output.views is None
            else output.views
            for output in outputs
        ]
        return cls(
            log_probabilities.unflatten(1, (-1, count)),
            torch.stack([output.log_partition for output in outputs]).unflatten(1, (-1, count)),
            torch.stack([output.features for output in outputs]).unflatten(1, (-1, count)),
            torch.stack(views).unflatten(1, (-1, count)),
        )


@dataclass(frozen=True)
class SetPredictions:
    """Predictions for the n images of a set in one mode.

    Attributes:
        log_probabilities: (n, trajectories, classes).
        uncertainty: Of them.
        variance: Of them.
        scores: The OOD scores by name; without feature_distance if the checkpoint has no feature
            statistics.
    """

    log_probabilities: Tensor
    uncertainty: Uncertainty
    variance: Variance
    scores: ScoredByName

    @classmethod
    def of(
        cls,
        outputs: Sequence[ModelOutputs],
        distances: Sequence[FeatureDistance | None],
        thresholds: Threshold | None = None,
    ) -> "SetPredictions":
        """Returns the predictions of a model, or of an ensemble, from the outputs of each model.

        The trajectories are those of all models together. The MSP is that of their mean
        probability; the other scores are means over the models, each with its own feature
        statistics.

        Args:
            outputs: For the same images.
            distances: Of each model; None without feature statistics.
            thresholds: None for an ensemble, and if the options of the outputs were not calibrated.
        """
        trajectories = torch.cat([m.log_probabilities for m in outputs], dim=1)
        probabilities = trajectories.exp()  # (n, adapters, samples, classes)
        uncertainty = summarise(probabilities.flatten(1, 2))
        members = [m.scores(distance) for m, distance in zip(outputs, distances, strict=True)]
        values = {
            name: torch.stack([scores[name] for scores in members]).mean(dim=0)
            for name in members[0]
        }
        return cls(
            trajectories.flatten(1, 2),
            uncertainty,
            variance_of(probabilities, torch.cat([m.views for m in outputs], dim=1)),
            ood_scores(values | {"msp": uncertainty.msp}, thresholds),
        )

    @property
    def labels(self) -> Ints:
        """(n,) class index of the highest probability."""
        labels: Ints = self.uncertainty.probabilities.argmax(dim=-1).numpy()
        return labels

    @property
    def flags(self) -> dict[ScoreName, Bools]:
        """(n,) whether an image is flagged, by name of the score with a threshold."""
        return {
            name: score.flagged.numpy()
            for name, score in self.scores.items()
            if score.flagged is not None
        }


def familiarity(score: ScoreName, values: Floats) -> Floats:
    """Returns (n,) values of a score with the sign that makes them high in distribution."""
    return values if score == "msp" else -values


class _SeededImages(Dataset[tuple[Tensor, int]]):
    """Resized images with the seeds that the service derives from their content."""

    def __init__(self, images: Sequence[LabelledImage], model: EulerLoRA) -> None:
        self.images = images
        self.preprocessing = model.config.preprocessing
        self.sampling_digest = model.config.sampling_digest

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        pixels = pixels_of(image.name, image.source)
        return network_input(pixels, self.preprocessing), content_seed(pixels, self.sampling_digest)


def predict_all(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: Sequence[SamplingOptions],
    label: str,
) -> list[ModelOutputs]:
    """Returns the outputs of a model for at least one image, for each of `options`.

    Each image is read, decoded and resized once. `label` is the name of the progress bar.

    Raises:
        NonFiniteError: For NaN or infinite logits.
    """
    draws = [choice.draw(model.config) for choice in options]
    batch_size = max(_images_per_pass(model, draw) for draw in draws)
    batches = load(_SeededImages(images, model), workers=1, batch_size=batch_size)
    outputs: list[list[NetworkOutput]] = [[] for _ in options]
    for pixels, seeds in track(batches, label, "batches", math.ceil(len(images) / batch_size)):
        for draw, output in zip(draws, outputs, strict=True):
            output.extend(_predict_batch(model, pixels.to(model.device), seeds, draw))
    return [
        ModelOutputs.of(output, draw.count) for output, draw in zip(outputs, draws, strict=True)
    ]


def _predict_batch(
    model: EulerLoRA, pixels: Tensor, seeds: Tensor, draw: Draw
) -> Iterator[NetworkOutput]:
    size = _images_per_pass(model, draw)
    for images, image_seeds in zip(pixels.split(size), seeds.split(size), strict=True):
        draws = [draw.model_copy(update={"seed": seed}) for seed in image_seeds.tolist()]
        yield from predict_images(model.runtime, images, draws, model.config.temperatures)


def _images_per_pass(model: EulerLoRA, draw: Draw) -> int:
    return max(1, BATCH_ROWS // (model.network.settings.adapters * draw.count))
