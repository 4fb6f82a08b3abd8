"""Logits -> log-probabilities per trajectory, for images that may each be asked differently."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eulerlora.adaptive_sampling import joined, rounds, settled
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


def predict_until_settled(
    network: RowNetwork, images: Tensor, draws: Sequence[Draw], threshold: float | None
) -> list[Tensor]:
    """The same for `samples="auto"`: in rounds, of the images that are not settled yet.

    draws: as for `settling.rounds`. threshold: as for `settling.settled`. Returns n tensors
    (adapters, samples, classes), of each image the samples that it took.
    """
    adapters = network.settings.adapters
    found: list[list[Tensor]] = [[] for _ in draws]
    going = list(range(len(draws)))
    for asked in zip(*map(rounds, draws), strict=True):
        answers = predict_rows(network, images[going], [asked[each] for each in going])
        for each, answer in zip(going, answers, strict=True):
            found[each].append(answer)
        together = {each: joined(found[each], adapters) for each in going}
        going = [each for each in going if not settled(together[each].exp(), threshold)]
        if not going:
            break
    return [joined(each, adapters) for each in found]


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax over the last axis in float64 on the CPU; NaN where a logit is not finite."""
    exact = logits.detach().to("cpu", torch.float64)
    unusable = ~exact.isfinite().all(dim=-1, keepdim=True)
    return exact.log_softmax(dim=-1).masked_fill(unusable, torch.nan)
