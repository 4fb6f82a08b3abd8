"""Normal weights of adapters and heads: BLoB, IVON, TFB, SWAG and Laplace.

    weight of a row = mean + root^2 * z,    z standard normal, one for each element and row

`root` is the square root of the standard deviation. The means are `down`, `up` and the heads'
`weight` and `bias`; in mode det, rows use them alone. With Kronecker factors, the elements of a
matrix are independent in other bases, the orthonormal columns of `left` and `right`:

    weight of a row = mean + left (root^2 * z) right'
"""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.methods.gaussian import NoiseMethod
from eulerlora.methods.settings import GaussianWeightsSettings, Weight
from eulerlora.nn.attention import AttentionAdapters, BlockAdapters, attend
from eulerlora.nn.method import AdapterHeads, NetworkShape
from eulerlora.nn.rows import COEFFICIENTS, BlockRows, RowDraws
from eulerlora.sampling.masks import PROJECTIONS
from eulerlora.settings import AdapterSettings


class GaussianAdapters(AttentionAdapters):
    """The directions of one block, of which `down`, `up` or both are normal.

    down_root, up_root: (4, adapters, rank, width), for the tensors in `weights`. rotated: with
    down_left, up_left: (4, adapters, rank, rank), and down_right, up_right: (4, adapters, width,
    width).
    """

    def __init__(
        self,
        width: int,
        settings: AdapterSettings,
        weights: Collection[Weight],
        rotated: bool = False,
    ) -> None:
        super().__init__(width, settings)
        self.sampled = [name for name in ("down", "up") if name in weights]
        for name in self.sampled:
            _add_law(self, name, rotated)

    def attention(
        self,
        inputs: Tensor,
        frozen: nn.MultiheadAttention,
        rows: BlockRows,
        queries: int | None = None,
    ) -> Tensor:
        if not any(name in rows.draws for name in self.sampled):
            return super().attention(inputs, frozen, rows, queries)
        assert frozen.in_proj_weight is not None
        assert frozen.in_proj_bias is not None
        down, up = self._of_rows("down", rows), self._of_rows("up", rows)
        weights = frozen.in_proj_weight.chunk(3), frozen.in_proj_bias.chunk(3)
        heads = []
        for index, (weight, bias) in enumerate(zip(*weights, strict=True)):
            tokens = inputs[:, :queries] if index == 0 else inputs
            shared = rows.of_rows(F.linear(tokens, weight, bias))
            projected = shared + low_rank(rows.of_rows(tokens), down[:, index], up[:, index])
            heads.append(projected.unflatten(-1, (frozen.num_heads, -1)).transpose(1, 2))
        context = attend(frozen, *heads)  # (rows, heads, queries, head_dim)
        context = context.transpose(1, 2).flatten(2)
        output = F.linear(context, frozen.out_proj.weight, frozen.out_proj.bias)
        return output + low_rank(context, down[:, -1], up[:, -1])

    def _of_rows(self, name: str, rows: BlockRows) -> Tensor:
        """Returns the weights `down` or `up` of every row, (rows, 4, rank, width)."""
        return _sampled(self, name, rows.adapter, rows.draws.get(name), dim=1)


class GaussianHeads(AdapterHeads):
    """Heads whose weights and biases are normal.

    weight_root: (adapters, classes, width). bias_root: (adapters, classes). rotated: with
    weight_left, bias_left: (adapters, classes, classes), and weight_right: (adapters, width,
    width).
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


class GaussianWeightsMethod(NoiseMethod):
    """Noise for every element of the tensors in `weights`, of the row's adapter.

    rotated: the noise is that of Kronecker factors.
    """

    def __init__(
        self, settings: GaussianWeightsSettings, shape: NetworkShape, rotated: bool = False
    ) -> None:
        super().__init__(settings, shape)
        weights = settings.weights
        self.weights, self.rotated = weights, rotated
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

    def block(self) -> BlockAdapters:
        width = self.shape.backbone.width
        return GaussianAdapters(width, self.adapters, self.weights, self.rotated)

    def heads(self) -> AdapterHeads:
        shape = self.shape
        if "head" not in self.weights:
            return super().heads()
        width, adapters = shape.backbone.width, self.adapters.adapters
        return GaussianHeads(width, shape.classes, adapters, self.rotated)

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        blocks = {name: noise[name] for name in self._block_noise}
        head = {name: noise[name] for name in self._head_noise}
        return RowDraws({COEFFICIENTS: coefficients} | blocks, head)


def low_rank(inputs: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """Returns B A x with weights of each row.

    inputs: (rows, tokens, width). down, up: (rows, rank, width). Returns (rows, tokens, width).
    """
    return inputs.to(down.dtype) @ down.mT @ up


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
    """Returns (rows, ...): the mean of each row's adapter plus its noise.

    adapter: (rows,). noise: (rows, ...), or None for the mean. dim: axis of the adapters.
    """
    mean: Tensor = getattr(module, name).index_select(dim, adapter).movedim(dim, 0)
    if noise is None:
        return mean
    root: Tensor = getattr(module, f"{name}_root").index_select(dim, adapter).movedim(dim, 0)
    return mean + _rotated(module, name, adapter, root.square() * noise, dim)


def _rotated(module: nn.Module, name: str, adapter: Tensor, deviation: Tensor, dim: int) -> Tensor:
    """Returns left deviation right' with the bases of each row's adapter; without any, deviation.

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
