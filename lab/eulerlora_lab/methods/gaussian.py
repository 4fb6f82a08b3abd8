"""Normal noise: laws of rows, divergences, and networks with normal weights.

Methods with normal weights (BLoB, IVON, TFB, SWAG and Laplace) have

    weight of a row = mean + root^2 * z,    z standard normal, one for each element and row

`root` is the square root of the standard deviation. The means are `down`, `up` and the heads'
`weight` and `bias`; in mode det, rows use them alone. With Kronecker factors, the elements of a
matrix are independent in other bases, the orthonormal columns of `left` and `right`:

    weight of a row = mean + left (root^2 * z) right'
"""

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.attention import projected_attention
from eulerlora.nn.method import (
    COEFFICIENTS,
    AdapterHeads,
    AttentionAdapters,
    BlockAdapters,
    BlockRows,
    Method,
    MethodSettings,
    NetworkShape,
    RowDraws,
    SettingsType_co,
)
from eulerlora.sampling.masks import (
    INPUT_PROJECTIONS,
    PROJECTIONS,
    AdapterSettings,
    det_coefficients,
)

Weight = Literal["down", "up", "head"]
"""Tensors of a network: A of every projection, B of every projection, the heads."""
WITHOUT_DROPOUT: Mapping[str, Collection[object]] = {"training.adapter_dropout": (0,)}
"""Required keys of methods whose blocks `training.adapter_dropout` cannot compute."""


class NoiseMethod(Method[SettingsType_co]):
    """Rows with the coefficients of mode det and with standard normal noise of their own."""

    noise: Mapping[str, Sequence[int]]  # shape of one row's noise by name

    @abstractmethod
    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        """Draws of rows: coefficients (rows, blocks, 4, rank) of mode det, and noise by name."""

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        rows = self.adapters.adapters * samples
        return self._draws(samples, _independent_noise(rows, self.noise, generator))

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        """Draws pairs z, -z of each adapter; each sample alone is standard normal."""
        pairs = [
            _independent_noise(self.adapters.adapters, self.noise, generator)
            for _ in range(math.ceil((first + samples) / 2))
        ]
        noise = {
            name: torch.stack([sign * pair[name] for pair in pairs for sign in (1, -1)], dim=1)[
                :, first : first + samples
            ].flatten(0, 1)
            for name in self.noise
        }
        return self._draws(samples, noise)

    def _draws(self, samples: int, noise: Mapping[str, Tensor]) -> RowDraws:
        mean = det_coefficients(self.depth, self.adapters).repeat_interleave(samples, dim=0)
        return self.with_noise(mean, noise)


def divergence(mean: Tensor, scale: Tensor, prior_scale: float) -> Tensor:
    """KL(N(mean, scale^2) || N(0, prior_scale^2)), summed over all elements, in nats."""
    ratio = scale / prior_scale
    terms = ratio.square() + (mean / prior_scale).square() - 1 - 2 * ratio.log()
    return 0.5 * terms.sum()


def _independent_noise(
    rows: int, shapes: Mapping[str, Sequence[int]], generator: Generator
) -> dict[str, Tensor]:
    """Standard normal numbers (rows, *shape) for every name."""
    return {name: torch.randn(rows, *shape, generator=generator) for name, shape in shapes.items()}


class GaussianAdapters(AttentionAdapters):
    """The directions of one block, of which `down`, `up` or both are normal.

    down_root, up_root: (4, adapters, rank, width), for the tensors in `weights`. With `rotated`
    also down_left, up_left: (4, adapters, rank, rank), and down_right, up_right: (4, adapters,
    width, width).
    """

    def __init__(
        self,
        width: int,
        settings: AdapterSettings,
        weights: tuple[Weight, ...],
        rotated: bool = False,
    ) -> None:
        super().__init__(width, settings)
        self.sampled = [name for name in ("down", "up") if name in weights]
        for name in self.sampled:
            _add_law(self, name, rotated)

    def attention(self, inputs: Tensor, frozen: nn.MultiheadAttention, rows: BlockRows) -> Tensor:
        if not any(name in rows.draws for name in self.sampled):
            return super().attention(inputs, frozen, rows)
        down, up = self._of_rows("down", rows), self._of_rows("up", rows)

        def project(tokens: Tensor, weight: Tensor, bias: Tensor, index: int) -> Tensor:
            output = F.linear(tokens, weight, bias)
            if index < INPUT_PROJECTIONS:  # rows of an image share it
                output, tokens = rows.of_rows(output), rows.of_rows(tokens)
            # (rows, tokens, width), with `down` and `up` of each row: (rows, rank, width)
            return output + tokens.to(down.dtype) @ down[:, index].mT @ up[:, index]

        return projected_attention(inputs, frozen, project, rows.queries)

    def _of_rows(self, name: str, rows: BlockRows) -> Tensor:
        """The weights `down` or `up` of every row, (rows, 4, rank, width)."""
        return _sampled(self, name, rows.adapter, rows.draws.get(name), dim=1)


class _GaussianHeads(AdapterHeads):
    """Heads whose weights and biases are normal.

    weight_root: (adapters, classes, width).

    Attributes:
        bias_root: (adapters, classes).
        rotated: With weight_left, bias_left: (adapters, classes, classes), and weight_right:
            (adapters, width, width).
    """

    def __init__(self, width: int, classes: int, adapters: int, rotated: bool = False) -> None:
        super().__init__(width, classes, adapters)
        _add_law(self, "weight", rotated)
        self.bias_root = nn.Parameter(torch.zeros_like(self.bias))
        if rotated:
            self.bias_left = nn.Parameter(torch.zeros(adapters, classes, classes))

    def forward(
        self, features: Tensor, adapter: Tensor, draws: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        if not draws:
            return super().forward(features, adapter)
        with torch.autocast(features.device.type, enabled=False):
            weight = _sampled(self, "weight", adapter, draws["weight"], dim=0)
            bias = _sampled(self, "bias", adapter, draws["bias"], dim=0)
            return torch.einsum("nd,ncd->nc", features.float(), weight) + bias


class GaussianWeightsMethod(NoiseMethod[SettingsType_co]):
    """Noise for every element of the sampled tensors, of the row's adapter.

    Attributes:
        rotated: The noise is that of Kronecker factors.
    """

    sampled_weights: tuple[Weight, ...] = ("down", "up", "head")  # the sampled tensors
    rotated = False

    def __init__(self, settings: SettingsType_co, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        weights = self.sampled_weights
        width, rank = shape.backbone.width, self.adapters.rank
        element: tuple[int, ...] = (self.depth, len(PROJECTIONS), rank, width)
        self._block_noise: dict[str, tuple[int, ...]] = {
            name: element for name in ("down", "up") if name in weights
        }
        head: dict[str, tuple[int, ...]] = {
            "weight": (shape.classes, width),
            "bias": (shape.classes,),
        }
        self._head_noise = head if "head" in weights else {}
        self.noise = self._block_noise | self._head_noise

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        return WITHOUT_DROPOUT

    def block(self, index: int) -> BlockAdapters:
        width = self.shape.backbone.width
        return GaussianAdapters(width, self.adapters, self.sampled_weights, self.rotated)

    def heads(self) -> AdapterHeads:
        shape = self.shape
        if "head" not in self.sampled_weights:
            return super().heads()
        width, adapters = shape.backbone.width, self.adapters.adapters
        return _GaussianHeads(width, shape.classes, adapters, self.rotated)

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        blocks = {name: noise[name] for name in self._block_noise}
        head = {name: noise[name] for name in self._head_noise}
        return RowDraws({COEFFICIENTS: coefficients} | blocks, head)


def _add_law(module: nn.Module, name: str, rotated: bool) -> None:
    """Registers the scales of a tensor (..., rows, columns) of a module, and its bases, zero."""
    *others, rows, columns = module.get_parameter(name).shape
    shapes = {"root": (rows, columns)}
    if rotated:
        shapes |= {"left": (rows, rows), "right": (columns, columns)}
    for part, shape in shapes.items():
        parameter = nn.Parameter(torch.zeros(*others, *shape))
        module.register_parameter(f"{name}_{part}", parameter)


def _sampled(
    module: nn.Module, name: str, adapter: Tensor, noise: Tensor | None, dim: int
) -> Tensor:
    """The mean of each row's adapter plus its noise, (rows, ...).

    `adapter` is (rows,), `dim` the axis of the adapters, `noise` (rows, ...) or None for the mean.
    """
    mean: Tensor = getattr(module, name).index_select(dim, adapter).movedim(dim, 0)
    if noise is None:
        return mean
    root: Tensor = getattr(module, f"{name}_root").index_select(dim, adapter).movedim(dim, 0)
    return mean + _rotated(module, name, adapter, root.square() * noise, dim)


def _rotated(module: nn.Module, name: str, adapter: Tensor, deviation: Tensor, dim: int) -> Tensor:
    """left deviation right' with the bases of each row's adapter; without any, deviation.

    The bases of all adapters are applied to all rows: those of every row would need much memory.
    """
    left: Tensor | None = getattr(module, f"{name}_left", None)
    if left is None:
        return deviation
    right: Tensor | None = getattr(module, f"{name}_right", None)
    if right is None:  # of a vector
        rotated = torch.einsum("aij,nj->ani", left, deviation)
    else:
        # One product for all rows; the operator @ would copy `right` for each of them.
        turned = [
            torch.einsum("n...rc,...dc->n...rd", deviation, basis) for basis in right.unbind(dim)
        ]
        turned = [basis @ part for basis, part in zip(left.unbind(dim), turned, strict=True)]
        rotated = torch.stack(turned)
    return rotated[adapter, torch.arange(len(adapter), device=adapter.device)]
