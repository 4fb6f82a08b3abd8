"""The highest matrix-product rate of this process, an upper bound for the network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measurement.timing import alternating_seconds
from eulerlora.settings import BackboneSettings


@dataclass(frozen=True)
class Product:
    """Shape of the product (rows, inner) @ (inner, columns) of a linear layer."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Floating-point operations; a multiply-add counts as two."""
        return 2 * self.rows * self.inner * self.columns

    def operands(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns random inputs (rows, inner) and weight (columns, inner)."""
        inputs = torch.randn(self.rows, self.inner, device=device).to(dtype)
        return inputs, torch.randn(self.columns, self.inner, device=device).to(dtype)


class Ceiling:
    """Computes a product when called. flops: of one call."""

    def __init__(self, product: Product, dtype: torch.dtype, device: torch.device) -> None:
        self.product = product
        self.flops = product.flops
        self._inputs, self._weight = product.operands(dtype, device)

    @torch.inference_mode()
    def __call__(self) -> None:
        F.linear(self._inputs, self._weight)


def candidates(backbone: BackboneSettings, rows: int, squares: Sequence[int]) -> list[Product]:
    """Returns square products and the products of the frozen layers over all rows."""
    tokens, width, mlp_width = rows * backbone.tokens, backbone.width, backbone.mlp_width
    shapes = [(side, side, side) for side in squares]
    shapes += [(tokens, width, 3 * width), (tokens, width, mlp_width)]
    shapes += [(tokens, mlp_width, width)]
    return [Product(*shape) for shape in shapes]


def best_ceiling(
    products: Sequence[Product],
    dtype: torch.dtype,
    device: torch.device,
    repeats: int,
    warmups: int,
) -> Ceiling:
    """Returns the product with the highest rate, by the median of alternating runs."""
    ceilings = [Ceiling(product, dtype, device) for product in products]
    seconds = alternating_seconds(ceilings, repeats, warmups, device)
    rates = [
        ceiling.flops / sorted(times)[len(times) // 2]
        for ceiling, times in zip(ceilings, seconds, strict=True)
    ]
    return ceilings[rates.index(max(rates))]
