"""Multi-head self-attention with adapted Q, K, V and O, over packed weights."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.adapted_linear import adapted_linear
from eulerlora.coefficients import PROJECTIONS
from eulerlora.row_draws import COEFFICIENTS, BlockRows
from eulerlora.self_attention import attend
from eulerlora.settings import AdapterSettings

INITIAL_GAIN = 10.0


def initial_bound(rank: int, width: int) -> float:
    """Returns the bound of the uniform initial elements of `down`: Xavier with gain 10."""
    return INITIAL_GAIN * math.sqrt(6 / (rank + width))


class BlockAdapters(nn.Module, ABC):
    """The tensors that a method adds to one block, and its self-attention."""

    def divergence(self) -> Tensor | None:
        """Returns the weighted divergence of learned laws from their priors, a scalar in nats.

        Training adds it to the loss, divided by the number of images; None without such a law.
        """
        return None

    def constrain(self) -> None:
        """Moves the tensors into their admissible set, by default all values.

        Training calls it after each step of the optimiser.
        """

    @abstractmethod
    def initialise(self, generator: Generator) -> None:
        """Draws the tensors from `generator`; the block then equals the frozen block, or nearly."""

    @abstractmethod
    def attention(
        self,
        inputs: Tensor,
        frozen: nn.MultiheadAttention,
        rows: BlockRows,
        queries: int | None = None,
    ) -> Tensor:
        """Returns the self-attention of every row, (rows, queries, width), without the residual.

        inputs: (rows, tokens, width), after the layer norm; with `rows.image`, (images, tokens,
        width). frozen: as in `adapted_attention`. queries: number of leading tokens to return; None
        returns all.
        """


class AttentionAdapters(BlockAdapters):
    """The trainable directions of one block: all adapters, all four projections.

    down: (4, adapters, rank, width), initialised Xavier-uniform with gain 10 for each (rank, width)
    matrix. up: (4, adapters, rank, width), initialised to zero: the block then equals the frozen
    block.
    """

    def __init__(self, width: int, settings: AdapterSettings) -> None:
        super().__init__()
        shape = (len(PROJECTIONS), settings.adapters, settings.rank, width)
        self.down = nn.Parameter(torch.zeros(shape))
        self.up = nn.Parameter(torch.zeros(shape))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws `down` from `generator` and sets `up` to zero."""
        bound = initial_bound(*self.down.shape[-2:])
        self.down.uniform_(-bound, bound, generator=generator)
        self.up.zero_()

    @property
    def det_down(self) -> Tensor:
        """`down` times the coefficients of mode det."""
        return self.down

    def coefficients(self, rows: BlockRows) -> Tensor:
        """Returns the coefficients (rows, 4, ranks) of the rows' directions."""
        return rows.draws[COEFFICIENTS]

    def attention(
        self,
        inputs: Tensor,
        frozen: nn.MultiheadAttention,
        rows: BlockRows,
        queries: int | None = None,
    ) -> Tensor:
        coefficients = self.coefficients(rows)
        return adapted_attention(inputs, frozen, self, coefficients, rows.image, queries)


def adapted_attention(
    inputs: Tensor,
    frozen: nn.MultiheadAttention,
    adapters: AttentionAdapters,
    coefficients: Tensor,
    image: Tensor | None = None,
    queries: int | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """Returns the self-attention of every row with that row's coefficients.

    inputs: (rows, tokens, width), after the layer norm. With `image`, (images, tokens, width): the
    products that the rows of an image share are computed once.
    frozen: holds in_proj_weight (3 width, width) and out_proj.
    coefficients: (rows, 4, ranks). image: (rows,), index of each row's image.
    queries: number of leading tokens to return; None returns all. added: as in `attend`.
    Returns (rows, queries, width), without the residual.
    """

    def project(tokens: Tensor, projections: slice) -> tuple[Tensor, ...]:
        return _input_projections(tokens, frozen, adapters, coefficients, projections, image)

    if queries is None:
        query, key, value = project(inputs, slice(0, 3))
    else:
        (query,) = project(inputs[:, :queries], slice(0, 1))
        key, value = project(inputs, slice(1, 3))
    query, key, value = (
        projected.unflatten(-1, (frozen.num_heads, -1)).transpose(1, 2)
        for projected in (query, key, value)
    )
    context = attend(frozen, query, key, value, added)  # (rows, heads, queries, head_dim)
    context = context.transpose(1, 2).flatten(2)
    down, up = adapters.down[-1].flatten(0, 1), adapters.up[-1].flatten(0, 1)  # (ranks, width)
    output = frozen.out_proj
    return adapted_linear(context, output.weight, output.bias, down, up, coefficients[:, -1])


def _input_projections(
    inputs: Tensor,
    frozen: nn.MultiheadAttention,
    adapters: AttentionAdapters,
    coefficients: Tensor,
    projections: slice,
    image: Tensor | None,
) -> tuple[Tensor, ...]:
    """Returns the selected ones of Q, K and V, (rows, tokens, width) each.

    Equals `adapted_linear` for each of them, with one frozen product, one product with `down` and
    one with `up` for all.
    """
    assert frozen.in_proj_weight is not None
    assert frozen.in_proj_bias is not None
    tokens, width = inputs.shape[1:]
    weight = frozen.in_proj_weight.unflatten(0, (3, width))[projections].flatten(0, 1)
    bias = frozen.in_proj_bias.unflatten(0, (3, width))[projections].flatten()
    down, up = adapters.down[projections].flatten(1, 2), adapters.up[projections].flatten(1, 2)
    count = len(up)
    packed = F.linear(inputs.flatten(0, 1), weight, bias)  # (images * tokens, count * width)
    directions = F.linear(inputs, down.flatten(0, 1))  # (images, tokens, count * ranks)
    if image is not None:
        packed = packed.unflatten(0, inputs.shape[:2])[image].flatten(0, 1)
        directions = directions[image]
    weighted = directions.unflatten(-1, (count, -1)) * coefficients[:, None, projections]
    output = torch.baddbmm(  # (count, rows * tokens, width)
        packed.unflatten(-1, (count, width)).transpose(0, 1),
        weighted.flatten(0, 1).transpose(0, 1).to(packed.dtype),
        up.to(packed.dtype),
    )
    return output.view(count, -1, tokens, width).unbind(0)
