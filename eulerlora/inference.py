"""Log-probabilities of trajectories; every image of a batch has its own draw."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eulerlora.adaptive_sampling import AdaptiveSampling
from eulerlora.coefficients import trajectory_coefficients
from eulerlora.rows import Rows
from eulerlora.settings import AdapterSettings, Draw


class RowNetwork(Protocol):
    """A network that returns the logits of rows, or the runtime of such a network."""

    @property
    def settings(self) -> AdapterSettings: ...

    @property
    def depth(self) -> int: ...

    def __call__(self, images: Tensor, rows: Rows, coefficients: Tensor) -> Tensor: ...


@torch.inference_mode()
def predict_rows(network: RowNetwork, images: Tensor, draws: Sequence[Draw]) -> list[Tensor]:
    """Returns the log-probabilities of the trajectories of every image.

    images: (n, 3, image_size, image_size) in [0, 1], on the network's device. draws: one per image;
    the coefficients of an image depend on its draw only, so that its result does not depend on the
    other images of the batch.
    Returns n tensors (trajectories, classes), float64 on the CPU; a row with a logit that is not
    finite is NaN.
    """
    settings, blocks = network.settings, network.depth
    rows = Rows.of([draw.count for draw in draws], settings.adapters)
    coefficients = torch.cat([trajectory_coefficients(draw, blocks, settings) for draw in draws])
    logits = network(images, rows.to(images.device), coefficients.to(images))
    return list(rows.by_image(log_probabilities(logits)))


def predict_adaptively(
    network: RowNetwork, images: Tensor, draws: Sequence[Draw], threshold: float | None
) -> list[Tensor]:
    """Returns the log-probabilities of the trajectories of every image, for `samples="auto"`.

    Each round runs the images that have not converged. images: as in `predict_rows`.
    draws, threshold: as in `AdaptiveSampling`. Returns n tensors (adapters, samples, classes) with
    the samples that each image needed.
    """
    adapters = network.settings.adapters
    samplings = [AdaptiveSampling(draw, adapters, threshold) for draw in draws]
    while pending := {
        index: sampling.next_draw
        for index, sampling in enumerate(samplings)
        if sampling.next_draw is not None
    }:
        outputs = predict_rows(network, images[list(pending)], list(pending.values()))
        for index, output in zip(pending, outputs, strict=True):
            samplings[index].add(output)
    return [sampling.log_probabilities for sampling in samplings]


def log_probabilities(logits: Tensor) -> Tensor:
    """Returns the log-softmax over the last axis, float64 on the CPU.

    A distribution with a logit that is not finite is NaN.
    """
    exact = logits.detach().to("cpu", torch.float64)
    unusable = ~exact.isfinite().all(dim=-1, keepdim=True)
    return exact.log_softmax(dim=-1).masked_fill(unusable, torch.nan)
