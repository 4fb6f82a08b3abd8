"""Multi-head self-attention with adapted Q, K, V and O, over torchvision's packed weights."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.adapted_linear import adapted_linear, low_rank_update
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
    inputs: Tensor, frozen: nn.MultiheadAttention, adapters: AttentionAdapters, coefficients: Tensor
) -> Tensor:
    """Self-attention of every row with its own coefficients.

    inputs: (rows, tokens, width), after the layer norm. coefficients: (rows, 4, ranks).
    frozen: holds in_proj_weight (3 width, width) and out_proj, as torchvision packs them.
    Returns (rows, tokens, width), the residual not yet added.
    """
    down, up = adapters.down.flatten(1, 2), adapters.up.flatten(1, 2)  # (4, ranks, width)
    assert frozen.in_proj_weight is not None
    packed = F.linear(inputs, frozen.in_proj_weight, frozen.in_proj_bias)
    updates = [
        low_rank_update(inputs, down[index], up[index], coefficients[:, index])
        for index in range(len(PROJECTIONS) - 1)
    ]
    packed = packed + torch.cat(updates, dim=-1)
    rows, tokens, width = inputs.shape
    query, key, value = packed.view(rows, tokens, 3, frozen.num_heads, -1).permute(2, 0, 3, 1, 4)
    context = F.scaled_dot_product_attention(query, key, value)  # (rows, heads, tokens, head_dim)
    context = context.transpose(1, 2).reshape(rows, tokens, width)
    output = frozen.out_proj
    return adapted_linear(
        context, output.weight, output.bias, down[-1], up[-1], coefficients[:, -1]
    )
