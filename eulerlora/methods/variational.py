"""Variational methods, whose learned normal laws have a divergence from a prior in the loss.

BLoB (Wang et al., NeurIPS 2024): normal elements of A. ScalaBL (Samplawski et al., UAI 2025):
normal coefficients with learned mean and scale,

    c = mean + scale * z,    z standard normal, one for each direction, projection and row

In mode det, A and c are their means.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from eulerlora.methods.gaussian import (
    GaussianAdapters,
    GaussianWeightsMethod,
    NoiseMethod,
    Weight,
    divergence,
)
from eulerlora.nn.attention import (
    COEFFICIENTS,
    AttentionAdapters,
    BlockAdapters,
    BlockRows,
    initial_bound,
)
from eulerlora.nn.method import MethodSettings, NetworkShape, RowDraws
from eulerlora.sampling.masks import on_stacked_ranks
from eulerlora.settings import PROJECTIONS, AdapterSettings
from eulerlora_client.errors import SettingsError
from eulerlora_client.settings import NotNegative, Positive

COEFFICIENT_NOISE = "coefficient_noise"


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


class GaussianCoefficientsSettings(MethodSettings):
    """Normal coefficients with learned mean and scale, after ScalaBL."""

    name: Literal["gaussian-coefficients"] = "gaussian-coefficients"
    """The method."""
    initial_scale: Positive = 0.1
    """Greatest initial standard deviation; the initial mean is 1."""
    prior_scale: Positive = 1.0
    """Standard deviation of the prior, whose mean is 0."""
    kl_weight: NotNegative = 1.0
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound."""


class GaussianCoefficientAdapters(AttentionAdapters):
    """The directions of one block and the law of their coefficients.

    mean, log_scale: (4, adapters, rank), of the coefficients.
    """

    def __init__(
        self, width: int, adapters: AdapterSettings, settings: GaussianCoefficientsSettings
    ) -> None:
        super().__init__(width, adapters)
        self.settings = settings
        shape = (len(PROJECTIONS), adapters.adapters, adapters.rank)
        self.mean = nn.Parameter(torch.zeros(shape))
        self.log_scale = nn.Parameter(torch.zeros(shape))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws `down` with orthogonal rows and the scales; sets the means to 1 and `up` to zero.

        The rows of `down` are right singular vectors times singular values of the usual initial
        matrix. Scales are uniform between initial_scale / sqrt(2) and initial_scale.
        """
        super().initialise(generator)
        _, values, vectors = torch.linalg.svd(self.down, full_matrices=False)
        self.down.copy_(values.unsqueeze(-1) * vectors)
        self.mean.fill_(1.0)
        greatest = self.settings.initial_scale
        self.log_scale.uniform_(greatest / math.sqrt(2), greatest, generator=generator).log_()

    @property
    def det_down(self) -> Tensor:
        return self.mean.unsqueeze(-1) * self.down

    def coefficients(self, rows: BlockRows) -> Tensor:
        """Returns (rows, 4, adapters * rank); zero on the directions of other adapters."""
        coefficients = rows.draws[COEFFICIENTS] * self.mean.flatten(1)
        if COEFFICIENT_NOISE not in rows.draws:
            return coefficients
        return coefficients + rows.draws[COEFFICIENT_NOISE] * self.log_scale.exp().flatten(1)

    def divergence(self) -> Tensor:
        """Returns the weighted divergence of the coefficients' law from the prior, in nats."""
        settings = self.settings
        exact = divergence(self.mean, self.log_scale.exp(), settings.prior_scale)
        return settings.kl_weight * exact


class GaussianCoefficientsMethod(NoiseMethod[GaussianCoefficientsSettings]):
    """Coefficients with noise; the noise of a row is zero on the directions of other adapters."""

    settings_type = GaussianCoefficientsSettings

    def __init__(self, settings: GaussianCoefficientsSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        width, rank = shape.backbone.width, shape.adapters.rank
        if rank > width:
            raise SettingsError(f"adapters.rank: expected a rank of at most {width}, got {rank}")
        self.noise = {COEFFICIENT_NOISE: (self.depth, len(PROJECTIONS), self.adapters.rank)}

    def block(self) -> BlockAdapters:
        width = self.shape.backbone.width
        return GaussianCoefficientAdapters(width, self.adapters, self.settings)

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        stacked = on_stacked_ranks(noise[COEFFICIENT_NOISE], self.adapters.adapters)
        return RowDraws({COEFFICIENTS: coefficients, COEFFICIENT_NOISE: stacked})
