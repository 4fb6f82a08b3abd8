"""BayesLoRA: variational dropout whose noise is tied over each rank direction.

Doyle et al., "Low-Rank Variational Dropout" (arXiv 2506.22809, version 3), as in the authors'
program (github.com/mercury0100/bayeslora, commit 0d097b67): the elements of A and B are normal with
learned means, and one learned variance for all elements of a direction, of A and B alike,

    weight of a row = mean + sigma_k * z,    z standard normal, one for each element and row

The prior is log-uniform. Its divergence has no closed form; the approximation is that of Molchanov,
Ashukha and Vetrov ("Variational Dropout Sparsifies Deep Neural Networks", ICML 2017, eq. 14) in
alpha = sigma^2 / mean^2. In mode det the weights are their means. Directions are not pruned.
"""

from typing import Literal

import torch
from torch import Generator, Tensor, nn

from eulerlora.nn.method import BlockAdapters, MethodSettings
from eulerlora.sampling.masks import PROJECTIONS, AdapterSettings
from eulerlora_contract.settings import NotNegative
from eulerlora_lab.methods.gaussian import GaussianAdapters, GaussianWeightsMethod, Weight

_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695  # of the approximation
_INITIAL_UP = 1e-3
_MIN_SQUARE = 1e-8


class BayesLoRASettings(MethodSettings):
    """Normal elements of A and B with one learned variance for each direction (BayesLoRA)."""

    name: Literal["bayeslora"] = "bayeslora"
    """The method."""
    initial_log_variance: float = -8.0
    """Logarithm of the initial variance of an element."""
    kl_weight: NotNegative = 0.005
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound. The
    authors add 1e-6 of it to the mean loss, which is 0.005 with 5,000 training images.
    """


class _BayesLoRAAdapters(GaussianAdapters):
    """The directions of one block and the logarithm of their variance, (4, adapters, rank)."""

    def __init__(self, width: int, adapters: AdapterSettings, settings: BayesLoRASettings) -> None:
        super().__init__(width, adapters, ())
        self.sampled = ["down", "up"]
        self.settings = settings
        shape = (len(PROJECTIONS), adapters.adapters, adapters.rank)
        self.log_variance = nn.Parameter(torch.zeros(shape))

    @property
    def down_root(self) -> Tensor:
        """Square root of the standard deviation of all elements of a direction."""
        return (self.log_variance / 4).exp().unsqueeze(-1)

    up_root = down_root

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws `down` as for LoRA, and `up` uniform within 1e-3, as the authors do."""
        super().initialise(generator)
        self.up.uniform_(-_INITIAL_UP, _INITIAL_UP, generator=generator)
        self.log_variance.fill_(self.settings.initial_log_variance)

    def divergence(self) -> Tensor:
        weights = torch.stack([self.down, self.up])
        return self.settings.kl_weight * _log_uniform_divergence(
            weights, self.log_variance.unsqueeze(-1)
        )


class BayesLoRAMethod(GaussianWeightsMethod[BayesLoRASettings]):
    """Noise on A and B, with one scale for each direction."""

    settings_type = BayesLoRASettings
    sampled_weights: tuple[Weight, ...] = ("down", "up")

    def block(self, index: int) -> BlockAdapters:
        return _BayesLoRAAdapters(self.shape.backbone.width, self.adapters, self.settings)


def _log_uniform_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || log-uniform) up to a constant, summed over all elements."""
    log_alpha = log_variance - (mean.square() + _MIN_SQUARE).log()
    negative = (
        _K1 * torch.sigmoid(_K2 + _K3 * log_alpha) - 0.5 * torch.log1p((-log_alpha).exp()) - _K1
    )
    return -negative.sum()
