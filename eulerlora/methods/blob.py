"""Learned normal elements of A (BLoB, Wang et al., NeurIPS 2024)."""

import math
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from eulerlora.methods.gaussian import (
    GaussianAdapters,
    GaussianWeightsMethod,
    NotNegative,
    Weight,
    divergence,
)
from eulerlora.nn.attention import BlockAdapters, initial_bound
from eulerlora.nn.method import MethodSettings
from eulerlora.settings import AdapterSettings, Positive


class BLoBSettings(MethodSettings):
    """Normal elements of A with learned means and scales, with new noise per row (BLoB)."""

    name: Literal["blob"] = "blob"
    """The method."""
    initial_scale: Positive = 0.2
    """Greatest initial standard deviation, in units of that of the initial A."""
    prior_scale: Positive = 20.0
    """Standard deviation of the prior in the same units; its mean is 0."""
    kl_weight: NotNegative = 0.01
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound."""


class BLoBAdapters(GaussianAdapters):
    """The directions of one block with learned normal `down`."""

    down_root: nn.Parameter

    def __init__(self, width: int, adapters: AdapterSettings, settings: BLoBSettings) -> None:
        super().__init__(width, adapters, ("down",))
        self.settings = settings
        self.unit = initial_bound(adapters.rank, width) / math.sqrt(3)
        """Standard deviation of the initial elements of `down`."""

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws `down` and its scales: uniform between half of initial_scale and initial_scale."""
        super().initialise(generator)
        greatest = math.sqrt(self.settings.initial_scale * self.unit)
        self.down_root.uniform_(greatest / math.sqrt(2), greatest, generator=generator)

    def divergence(self) -> Tensor:
        """Returns the weighted divergence of the law of `down` from the prior, in nats."""
        settings = self.settings
        prior_scale = settings.prior_scale * self.unit
        return settings.kl_weight * divergence(self.down, self.down_root.square(), prior_scale)


class BLoBMethod(GaussianWeightsMethod[BLoBSettings]):
    """Noise on A; in training, every row of every image has its own."""

    settings_type = BLoBSettings
    sampled_weights: tuple[Weight, ...] = ("down",)
    noise_per_image = True

    def block(self) -> BlockAdapters:
        return BLoBAdapters(self.shape.backbone.width, self.adapters, self.settings)
