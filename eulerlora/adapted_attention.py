"""Multi-head self-attention with adapted Q, K, V and O, over torchvision's packed weights."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.adapted_linear import adapted_linear, add_low_rank
from eulerlora.coefficients import PROJECTIONS
from eulerlora.settings import AdapterSettings

INITIAL_GAIN = 10.0


class AttentionAdapters(nn.Module):
    """The trainable directions of one block: all adapters, all four projections.

    down: (4, adapters, rank, width), Xavier-uniform with gain 10 for each (rank, width) matrix.
    up: (4, adapters, rank, width), zero at first, so that the block starts as the frozen one.
    """

    def __init__(self, width: int, settings: AdapterSettings) -> None:
        super().__init__()
        shape = (len(PROJECTIONS), settings.adapters, settings.rank, width)
        self.down = nn.Parameter(torch.zeros(shape))
        self.up = nn.Parameter(torch.zeros(shape))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draws `down` from `generator` and sets `up` to zero."""
        rank, width = self.down.shape[-2:]
        bound = INITIAL_GAIN * math.sqrt(6 / (rank + width))
        self.down.uniform_(-bound, bound, generator=generator)
        self.up.zero_()


def adapted_attention(
    inputs: Tensor,
    frozen: nn.MultiheadAttention,
    adapters: AttentionAdapters,
    coefficients: Tensor,
    image: Tensor | None = None,
    queries: int | None = None,
) -> Tensor:
    """Self-attention of every row with its own coefficients.

    inputs: (rows, tokens, width), after the layer norm; or (images, tokens, width) with
    image: (rows,), which of them each row has, so that what its rows share is computed once.
    coefficients: (rows, 4, ranks). queries: how many tokens, from the first, are wanted; None: all.
    frozen: holds in_proj_weight (3 width, width) and out_proj, as torchvision packs them.
    Returns (rows, queries, width), the residual not yet added.
    """

    def projected(own_inputs: Tensor, which: slice) -> list[Tensor]:
        return _projected(own_inputs, frozen, adapters, coefficients, which, image)

    if queries is None:
        query, key, value = projected(inputs, slice(0, 3))
    else:
        (query,) = projected(inputs[:, :queries], slice(0, 1))
        key, value = projected(inputs, slice(1, 3))
    heads = [
        each.unflatten(-1, (frozen.num_heads, -1)).transpose(1, 2) for each in (query, key, value)
    ]
    context = F.scaled_dot_product_attention(*heads)  # (rows, heads, queries, head_dim)
    context = context.transpose(1, 2).flatten(2)
    down, up = adapters.down[-1].flatten(0, 1), adapters.up[-1].flatten(0, 1)  # (ranks, width)
    output = frozen.out_proj
    return adapted_linear(context, output.weight, output.bias, down, up, coefficients[:, -1])


def _projected(
    inputs: Tensor,
    frozen: nn.MultiheadAttention,
    adapters: AttentionAdapters,
    coefficients: Tensor,
    which: slice,
    image: Tensor | None,
) -> list[Tensor]:
    """Those of Q, K and V that `which` selects, (rows, tokens, width) each.

    One frozen product and one product with all directions serve all of them and all rows of an
    image.
    """
    assert frozen.in_proj_weight is not None
    assert frozen.in_proj_bias is not None
    width = inputs.shape[-1]
    weight = frozen.in_proj_weight.unflatten(0, (3, width))[which].flatten(0, 1)
    bias = frozen.in_proj_bias.unflatten(0, (3, width))[which].flatten()
    down, up = adapters.down[which].flatten(1, 2), adapters.up[which].flatten(1, 2)
    packed = F.linear(inputs, weight, bias)
    directions = F.linear(inputs, down.flatten(0, 1))  # (rows or images, tokens, which * ranks)
    if image is not None:
        packed, directions = packed[image], directions[image]
    weighted = directions.unflatten(-1, (len(up), -1)) * coefficients[:, None, which]
    return [
        add_low_rank(own, along, each)
        for own, along, each in zip(
            packed.split(width, dim=-1), weighted.unbind(-2), up, strict=True
        )
    ]
