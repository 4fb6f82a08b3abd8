"""Logits -> log-probabilities per trajectory, for images that may each be asked differently."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eulerlora.adaptive_sampling import AdaptiveSampling
from eulerlora.coefficients import trajectory_coefficients
from eulerlora.rows import Rows
from eulerlora.settings import AdapterSettings, Draw


class RowNetwork(Protocol):
    """What answers rows: a network, or a runtime of one."""

    @property
    def settings(self) -> AdapterSettings: ...

    @property
    def depth(self) -> int: ...

    def __call__(self, images: Tensor, rows: Rows, coefficients: Tensor) -> Tensor: ...


@torch.inference_mode()
def predict_rows(network: RowNetwork, images: Tensor, draws: Sequence[Draw]) -> list[Tensor]:
    """The trajectories' log-probabilities of every image, all rows in one forward pass.

    images: (n, 3, image_size, image_size) in [0, 1], on the network's device; one draw for each.
    Each image's coefficients come from its own draw alone, so its answer does not depend on its
    neighbours. Returns n tensors (trajectories, classes), float64 on the CPU; a row whose logits
    are not finite is all NaN.
    """
    settings, blocks = network.settings, network.depth
    rows = Rows.of([draw.count for draw in draws], settings.adapters)
    coefficients = torch.cat([trajectory_coefficients(draw, blocks, settings) for draw in draws])
    logits = network(images, rows.to(images.device), coefficients.to(images))
    return list(rows.by_image(log_probabilities(logits)))


def predict_adaptively(
    network: RowNetwork, images: Tensor, draws: Sequence[Draw], threshold: float | None
) -> list[Tensor]:
    """The same for `samples="auto"`: each round runs the images that have not converged yet.

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
    """Log-softmax over the last axis in float64 on the CPU; NaN where a logit is not finite."""
    exact = logits.detach().to("cpu", torch.float64)
    unusable = ~exact.isfinite().all(dim=-1, keepdim=True)
    return exact.log_softmax(dim=-1).masked_fill(unusable, torch.nan)
