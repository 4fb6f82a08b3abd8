"""Training-free Bayesianization of adapters (Shi et al., NeurIPS 2025).

With B = U D V', the adapter B A is also (U D) (V' A). Normal noise of standard deviation s / D_k on
row k of V' A adds U E to the weights, where all elements of E have the standard deviation s. The
search finds the largest s that changes the labels of few anchors.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from eulerlora.methods.gaussian_weights import GaussianAdapters
from eulerlora.methods.settings import TFBSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from training.bayesian.source import adapters_of, mean_probabilities, with_method

START = 2.0**-10
RANGE = 2.0**-30, 2.0**10
BISECTIONS = 6
SMALLEST_VALUE = 1e-6
"""Singular values below this part of the largest one get no noise: their noise has no effect."""


def fit_tfb(
    source: AdaptedVisionTransformer, anchors: Tensor, tolerance: float
) -> tuple[AdaptedVisionTransformer, TFBSettings]:
    """Returns the network with the largest accepted noise, and its settings.

    anchors: (n, 3, size, size). tolerance: accepted share of anchors with another label.
    """
    settings = TFBSettings(deviation=0.0, tolerance=tolerance, anchors=len(anchors))
    network = with_method(source, settings)
    values = rotate(network)
    labels = mean_probabilities(network, anchors, samples=None).argmax(dim=-1)

    def changed(deviation: float) -> float:
        set_deviation(network, values, deviation)
        sampled = mean_probabilities(network, anchors).argmax(dim=-1)
        return (sampled != labels).double().mean().item()

    deviation = largest_accepted(lambda value: changed(value) <= tolerance)
    set_deviation(network, values, deviation)
    return network, settings.model_copy(update={"deviation": deviation})


@torch.no_grad()
def rotate(network: AdaptedVisionTransformer) -> list[Tensor]:
    """Replaces B by U D and A by V' A in all adapters, in place: B A does not change.

    Returns the singular values D of each block, (4, adapters, rank).
    """
    values = []
    for block in adapters_of(network):
        left, singular, right = torch.linalg.svd(block.up, full_matrices=False)  # up is B'
        block.down.copy_(_padded(left.mT @ block.down, block.down))
        block.up.copy_(_padded(singular.unsqueeze(-1) * right, block.up))
        missing = block.up.shape[-2] - singular.shape[-1]  # of a rank above the width
        values.append(torch.nn.functional.pad(singular, (0, missing)))
    return values


def _padded(rows: Tensor, like: Tensor) -> Tensor:
    return torch.nn.functional.pad(rows, (0, 0, 0, like.shape[-2] - rows.shape[-2]))


@torch.no_grad()
def set_deviation(
    network: AdaptedVisionTransformer, values: list[Tensor], deviation: float
) -> None:
    """Sets the scales of rotated adapters so that weights get noise U E of this deviation.

    values: of `rotate`.
    """
    for block, singular in zip(adapters_of(network), values, strict=True):
        assert isinstance(block, GaussianAdapters)
        effective = singular > SMALLEST_VALUE * singular.amax(dim=-1, keepdim=True)
        scale = torch.where(effective, deviation / singular, 0.0)
        block.get_parameter("down_root").copy_(scale.sqrt().unsqueeze(-1).expand_as(block.down))


def largest_accepted(is_accepted: Callable[[float], bool]) -> float:
    """Returns the largest accepted number, to 2%, for a property that only small ones have.

    0 if even the smallest of `RANGE` is not accepted.
    """
    accepted = START
    while accepted >= RANGE[0] and not is_accepted(accepted):
        accepted /= 2
    if accepted < RANGE[0]:
        return 0.0
    rejected = 2 * accepted
    while rejected <= RANGE[1] and is_accepted(rejected):
        accepted, rejected = rejected, 2 * rejected
    for _ in range(BISECTIONS):
        middle = (accepted * rejected) ** 0.5
        if is_accepted(middle):
            accepted = middle
        else:
            rejected = middle
    return accepted
