"""The best matrix-product rate that this process reaches: the ceiling of any matrix network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measurement.timing import alternating_seconds
from eulerlora.settings import BackboneSettings


@dataclass(frozen=True)
class Product:
    """(rows, inner) @ (inner, columns), as a linear layer computes it."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """A multiply-add is two."""
        return 2 * self.rows * self.inner * self.columns

    def operands(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs (rows, inner) and weight (columns, inner)."""
        inputs = torch.randn(self.rows, self.inner, device=device).to(dtype)
        return inputs, torch.randn(self.columns, self.inner, device=device).to(dtype)


class Ceiling:
    """A product's repeated computation. flops: of one call."""

    def __init__(self, product: Product, dtype: torch.dtype, device: torch.device) -> None:
        self.product = product
        self.flops = product.flops
        self._inputs, self._weight = product.operands(dtype, device)

    @torch.inference_mode()
    def __call__(self) -> None:
        F.linear(self._inputs, self._weight)


def candidates(backbone: BackboneSettings, rows: int, squares: Sequence[int]) -> list[Product]:
    """Large square products and those of the network's own frozen layers over all its rows."""
    tokens, width, wide = rows * backbone.tokens, backbone.width, backbone.mlp_width
    shapes = [(side, side, side) for side in squares]
    shapes += [(tokens, width, 3 * width), (tokens, width, wide), (tokens, wide, width)]
    return [Product(*shape) for shape in shapes]


def best_ceiling(
    products: Sequence[Product],
    dtype: torch.dtype,
    device: torch.device,
    repeats: int,
    warmups: int,
) -> Ceiling:
    """The candidate with the highest rate, by the median of alternating runs."""
    ceilings = [Ceiling(each, dtype, device) for each in products]
    seconds = alternating_seconds(ceilings, repeats, warmups, device)
    rates = [
        each.flops / sorted(own)[len(own) // 2] for each, own in zip(ceilings, seconds, strict=True)
    ]
    return ceilings[rates.index(max(rates))]
