"""Spectral-normalised neural Gaussian process (SNGP, Liu et al., NeurIPS 2020) on adapters.

The trained part of every projection, B A, has a bounded spectral norm, and the heads are Gaussian
processes. In mode det a row has mean-field logits; in mode stoch it draws its logits.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from eulerlora.adapted_attention import AttentionAdapters, BlockAdapters
from eulerlora.adapter_heads import AdapterHeads
from eulerlora.method_settings import SNGPSettings
from eulerlora.methods.contract import NetworkShape
from eulerlora.methods.gaussian import NoiseMethod
from eulerlora.row_draws import COEFFICIENTS, RowDraws
from eulerlora.settings import AdapterSettings
from eulerlora.structured_methods.gaussian_process_heads import (
    NOISE,
    SAMPLED,
    GaussianProcessHeads,
)


class BoundedAdapters(AttentionAdapters):
    """The directions of one block; the spectral norm of B A is at most `bound`."""

    def __init__(self, width: int, adapters: AdapterSettings, bound: float) -> None:
        super().__init__(width, adapters)
        self.bound = bound

    @torch.no_grad()
    def constrain(self) -> None:
        """Scales every B whose B A has a greater norm, as SNGP does with weights."""
        factors = (self.bound / product_norms(self.down, self.up)).clamp(max=1)
        self.up.mul_(factors[..., None, None])


def product_norms(down: Tensor, up: Tensor) -> Tensor:
    """Returns the spectral norms of B A, (...). down, up: (..., rank, width).

    With B = Q R and A' = P T, they are the norms of the small matrices R T'.
    """
    upper = torch.linalg.qr(up.mT, mode="r").R
    lower = torch.linalg.qr(down.mT, mode="r").R.mT
    norms: Tensor = torch.linalg.matrix_norm(upper @ lower, ord=2)
    return norms


class SNGPMethod(NoiseMethod):
    """Bounded adapters with heads that draw the logits of every row."""

    features_differ = "adapter"

    def __init__(self, settings: SNGPSettings, shape: NetworkShape) -> None:
        super().__init__(shape)
        self.settings = settings
        self.noise = {NOISE: (shape.classes,)}

    def block(self) -> BlockAdapters:
        width = self.shape.backbone.width
        return BoundedAdapters(width, self.adapters, self.settings.norm_bound)

    def heads(self) -> AdapterHeads:
        shape = self.shape
        return GaussianProcessHeads(
            shape.backbone.width, shape.classes, self.adapters.adapters, self.settings
        )

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        return RowDraws(
            {COEFFICIENTS: coefficients}, {**noise, SAMPLED: torch.ones(len(coefficients), 1)}
        )
