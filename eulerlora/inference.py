"""Log-probabilities and features of images; every image of a batch has its own draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eulerlora.adaptive_sampling import AdaptiveSampling
from eulerlora.feature_distance import FeatureDistance
from eulerlora.row_draws import RowDraws
from eulerlora.row_pass import NetworkOutput
from eulerlora.rows import Rows
from eulerlora.runtime import Runtime, RuntimePart, outputs_of
from eulerlora.settings import AdapterSettings, Draw
from eulerlora.stopping_rule import StoppingRule


class RowNetwork(Protocol):
    """A method's network, or its runtime: all that predictions need to know of a method.

    It draws the random input of rows, and is a function of images, rows and draws.
    """

    @property
    def settings(self) -> AdapterSettings: ...

    def draw_rows(self, draws: Sequence[Draw]) -> RowDraws: ...

    def outputs(self, images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput: ...


@dataclass(frozen=True)
class ImageOutput:
    """The output of the network for one image; on the CPU.

    log_probabilities: (trajectories, classes), float64; a trajectory with a logit that is not
    finite is NaN. log_partition: (trajectories,), float64, log-sum-exp of the logits. features:
    (trajectories, 3 * width), float32. distance: the feature distance of their mean, () float64, if
    it was computed with the batch (`eulerlora.ood_scores.with_distances`).
    """

    log_probabilities: Tensor
    log_partition: Tensor
    features: Tensor
    distance: Tensor | None = None


@torch.inference_mode()
def predict_images(
    network: RowNetwork, images: Tensor, draws: Sequence[Draw], temperature: float = 1.0
) -> list[ImageOutput]:
    """Returns the output of the network for every image.

    images: (n, 3, image_size, image_size) in [0, 1], on the network's device. draws: one per image;
    the rows of an image depend on its draw only, so that its result does not depend on the other
    images of the batch. temperature: the logits are divided by it.
    """
    rows = Rows.of([draw.count for draw in draws], network.settings.adapters)
    drawn = network.draw_rows(draws).to(images)
    output = network.outputs(images, rows.to(images.device), drawn)
    return _image_outputs(output, rows, temperature)


@dataclass(frozen=True)
class ModelImages:
    """Images of one model; arguments as in `predict_images`."""

    runtime: Runtime
    images: Tensor
    draws: Sequence[Draw]
    temperature: float = 1.0


@torch.inference_mode()
def predict_together(models: Sequence[ModelImages]) -> list[list[ImageOutput]]:
    """Returns the output for every image of each model, from passes that all models share.

    The models may have different methods; their runtimes have equal `pass_key`s.
    """
    rows = [
        Rows.of([draw.count for draw in model.draws], model.runtime.settings.adapters)
        for model in models
    ]
    outputs = outputs_of(
        [
            RuntimePart(
                model.runtime,
                model.images,
                model_rows.to(model.images.device),
                model.runtime.draw_rows(model.draws).to(model.images),
            )
            for model, model_rows in zip(models, rows, strict=True)
        ]
    )
    return [
        _image_outputs(output, model_rows, model.temperature)
        for output, model_rows, model in zip(outputs, rows, models, strict=True)
    ]


def _image_outputs(output: NetworkOutput, rows: Rows, temperature: float) -> list[ImageOutput]:
    logits = output.logits.to("cpu", torch.float64) / temperature
    by_image = zip(
        rows.by_image(log_probabilities(logits)),
        rows.by_image(logits.logsumexp(dim=-1)),
        rows.by_image(output.features.to("cpu", torch.float32)),
        strict=True,
    )
    return [ImageOutput(*values) for values in by_image]


def predict_rows(network: RowNetwork, images: Tensor, draws: Sequence[Draw]) -> list[Tensor]:
    """Returns the log-probabilities (trajectories, classes) of every image.

    images, draws: as in `predict_images`.
    """
    return [output.log_probabilities for output in predict_images(network, images, draws)]


def predict_adaptively(
    network: RowNetwork,
    images: Tensor,
    draws: Sequence[Draw],
    rule: StoppingRule,
    distance: FeatureDistance | None = None,
    temperature: float = 1.0,
    det_first: bool = False,
) -> list[ImageOutput]:
    """Returns the output of the network for every image, for `samples="auto"` or mode adaptive.

    Each round runs the images that have not ended. images, temperature: as in `predict_images`.
    draws, rule, distance, det_first: as in `AdaptiveSampling`. Returns n outputs with the
    trajectories of each image's answer, adapter by adapter.
    """
    adapters = network.settings.adapters
    samplings = [AdaptiveSampling(draw, adapters, rule, distance, det_first) for draw in draws]
    rounds: list[list[ImageOutput]] = [[] for _ in draws]
    while pending := {
        index: sampling.next_draw
        for index, sampling in enumerate(samplings)
        if sampling.next_draw is not None
    }:
        outputs = predict_images(
            network, images[list(pending)], list(pending.values()), temperature
        )
        for index, output in zip(pending, outputs, strict=True):
            samplings[index].add(output)
            rounds[index].append(output)
    return [
        join_rounds(outputs[-sampling.kept :], adapters)
        for outputs, sampling in zip(rounds, samplings, strict=True)
    ]


def join_rounds(rounds: Sequence[ImageOutput], adapters: int) -> ImageOutput:
    """Returns the output of one image from the outputs of its rounds, at least one.

    The trajectories are ordered adapter by adapter, with the samples in the order of the rounds.
    """

    def joined(parts: Sequence[Tensor]) -> Tensor:
        by_adapter = [part.unflatten(0, (adapters, -1)) for part in parts]
        return torch.cat(by_adapter, dim=1).flatten(0, 1)

    return ImageOutput(
        log_probabilities=joined([output.log_probabilities for output in rounds]),
        log_partition=joined([output.log_partition for output in rounds]),
        features=joined([output.features for output in rounds]),
    )


def log_probabilities(logits: Tensor) -> Tensor:
    """Returns the log-softmax over the last axis, float64 on the CPU.

    A distribution with a logit that is not finite is NaN.
    """
    exact = logits.detach().to("cpu", torch.float64)
    unusable = ~exact.isfinite().all(dim=-1, keepdim=True)
    return exact.log_softmax(dim=-1).masked_fill(unusable, torch.nan)
