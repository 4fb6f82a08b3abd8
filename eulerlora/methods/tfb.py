"""Training-free Bayesianization of adapters (Shi et al., NeurIPS 2025).

With B = U D V', the adapter B A is also (U D) (V' A). Normal noise of standard deviation s / D_k on
row k of V' A adds U E to the weights, where all elements of E have the standard deviation s. The
search finds the largest s that changes the labels of few anchors.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from eulerlora.methods.fitting import FitSettings, FitSource, FittedMethod, predicted_probabilities
from eulerlora.methods.gaussian import GaussianAdapters, GaussianWeightsMethod, Weight
from eulerlora.nn.method import MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora_client.settings import NotNegative, PositiveInt

START = 2.0**-10
RANGE = 2.0**-30, 2.0**10
BISECTIONS = 6
SMALLEST_VALUE = 1e-6
"""Singular values below this part of the largest one get no noise: their noise has no effect."""


class TFBSettings(MethodSettings):
    """Training-free Bayesianization of finished adapters: noise on A, equal in weight space."""

    name: Literal["tfb"] = "tfb"
    deviation: NotNegative
    """Standard deviation of each element of the noise that U adds to the weights."""
    tolerance: Annotated[float, Field(ge=0, lt=1)]
    """Accepted share of anchors with another label."""
    anchors: Annotated[int, Field(ge=1)]
    """Number of anchors."""


class TFBFit(FitSettings):
    """Noise on A of the greatest size that hardly changes labels (TFB)."""

    name: Literal["tfb"] = "tfb"
    """The method."""
    images: PositiveInt = 256
    """Number of training images, evenly spaced, that the fit uses."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Accepted share of these images whose label the noise changes."""


class TFBMethod(GaussianWeightsMethod[TFBSettings], FittedMethod[TFBSettings]):
    """Noise on A."""

    settings_type = TFBSettings
    fit_settings = TFBFit
    sampled_weights: tuple[Weight, ...] = ("down",)

    @classmethod
    def fit(cls, settings: TFBFit, source: FitSource) -> AdaptedVisionTransformer:
        """Returns the network with the largest noise that changes few labels."""
        anchors = source.inputs("train", settings.images).pixels
        return cls.with_largest_noise(source.network, anchors, settings.tolerance)

    @classmethod
    def with_largest_noise(
        cls, source: AdaptedVisionTransformer, anchors: Tensor, tolerance: float
    ) -> AdaptedVisionTransformer:
        """Returns the network with the largest accepted noise.

        anchors: (n, 3, size, size). tolerance: accepted share of anchors with another label.
        """
        stated = TFBSettings(deviation=0.0, tolerance=tolerance, anchors=len(anchors))
        network = cls.network_of(stated, source)
        values = rotate(network)
        labels = predicted_probabilities(network, anchors, samples=None).argmax(dim=-1)

        def changed(deviation: float) -> float:
            set_deviation(network, values, deviation)
            sampled = predicted_probabilities(network, anchors).argmax(dim=-1)
            return (sampled != labels).double().mean().item()

        deviation = largest_accepted(lambda value: changed(value) <= tolerance)
        set_deviation(network, values, deviation)
        network.method.settings = stated.model_copy(update={"deviation": deviation})
        return network


@torch.no_grad()
def rotate(network: AdaptedVisionTransformer) -> list[Tensor]:
    """Replaces B by U D and A by V' A in all adapters, in place: B A does not change.

    Returns the singular values D of each block, (4, adapters, rank).
    """
    values = []
    for block in _adapters(network):
        left, singular, right = torch.linalg.svd(block.up, full_matrices=False)  # up is B'
        block.down.copy_(_padded(left.mT @ block.down, block.down))
        block.up.copy_(_padded(singular.unsqueeze(-1) * right, block.up))
        missing = block.up.shape[-2] - singular.shape[-1]  # of a rank above the width
        values.append(torch.nn.functional.pad(singular, (0, missing)))
    return values


def _adapters(network: AdaptedVisionTransformer) -> Iterator[GaussianAdapters]:
    """Yields the adapters of each block."""
    for block in network.blocks:
        assert isinstance(block, GaussianAdapters)
        yield block


def _padded(rows: Tensor, like: Tensor) -> Tensor:
    return torch.nn.functional.pad(rows, (0, 0, 0, like.shape[-2] - rows.shape[-2]))


@torch.no_grad()
def set_deviation(
    network: AdaptedVisionTransformer, values: list[Tensor], deviation: float
) -> None:
    """Sets the scales of rotated adapters so that weights get noise U E of this deviation.

    values: of `rotate`.
    """
    for block, singular in zip(_adapters(network), values, strict=True):
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
