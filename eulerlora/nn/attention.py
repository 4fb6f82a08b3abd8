"""Self-attention with frozen and with adapted projections.

An adapted projection is a frozen one plus coefficient-weighted rank-one directions:

    y = W0 x + b0 + B (c * (A x))

`down` holds the rows a_k of A, and `up` holds the columns b_k of B as rows: direction k is the pair
(down[k], up[k]). Rows come in consecutive groups of equal size, and those of a group have the same
A and B: the groups are the batch dimension of the products with A and B.

With queries q and keys k of a head of width d, token i attends to token j in proportion to
exp(q_i k_j / sqrt(d)), or by distance in proportion to

    exp(-|q_i - k_j|^2 / sqrt(d))

(L2 self-attention, Kim, Papamakarios and Mnih, "The Lipschitz Constant of Self-Attention", ICML
2021). With equal weights for queries and keys a token attends most to tokens like itself.

With rotary positions (Heo et al., "Rotary Position Embedding for Vision Transformer", ECCV 2024; as
in DINOv3, Simeoni et al., 2025) the features i and i + d/2 of the queries and keys of a patch turn,
as a pair, by the angle 2 pi x 100^(-4 j / d), where x in [-1, 1] is the row of the patch's centre
for i = j < d/4, and its column for i = d/4 + j. Class token and registers do not turn.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "DistanceAttention",
    "RotaryAttention",
    "SelfAttention",
    "adapted_attention",
    "adapted_linear",
    "attend",
    "grouped_linear",
    "projected_attention",
]

_ROTARY_BASE = 100.0


def adapted_linear(
    inputs: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor, coefficients: Tensor
) -> Tensor:
    """Returns the adapted projection of every token of every row.

    Args:
        inputs: (rows, tokens, in_features).
        weight: (out_features, in_features), frozen.
        bias: (out_features,), frozen.
        down: (groups, rank, in_features).
        up: (groups, rank, out_features).
        coefficients: (rows, rank), shared by all tokens of a row.

    Returns:
        (rows, tokens, out_features); equals `F.linear` if all coefficients are zero.
    """
    (output,) = _adapted_projections(
        inputs, weight, bias, down[None], up[None], coefficients.unsqueeze(1)
    )
    return output


def grouped_linear(inputs: Tensor, weight: Tensor) -> Tensor:
    """Returns the product of the rows of each group with its weight, (rows, tokens, out_features).

    Args:
        inputs: (rows, tokens, in_features).
        weight: (groups, out_features, in_features).
    """
    groups, _, features = weight.shape  # `len` would be a constant of a traced graph
    grouped = inputs.reshape(groups, -1, features)
    return torch.bmm(grouped, weight.transpose(1, 2)).view(*inputs.shape[:2], -1)


def _adapted_projections(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    down: Tensor,
    up: Tensor,
    coefficients: Tensor,
    image: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Returns several adapted projections of the same inputs, (rows, tokens, out_features) each.

    There is one frozen product, one product with `down` and one with `up` for all of them.

    Args:
        inputs: (rows, tokens, in_features); with `image`, (images, tokens, in_features).
        weight: (count * out_features, in_features).
        bias: (count * out_features,).
        down: (count, groups, rank, in_features).
        up: (count, groups, rank, out_features).
        coefficients: (rows, count, rank).
        image: As in `adapted_attention`.
    """
    count, groups, rank, features = up.shape
    packed = F.linear(inputs.flatten(0, 1), weight, bias)  # (images * tokens, count * features)
    if image is not None:
        packed = packed.unflatten(0, inputs.shape[:2])[image].flatten(0, 1)
        inputs = inputs[image]
    rows, tokens = inputs.shape[:2]
    directions = grouped_linear(inputs, down.transpose(0, 1).flatten(1, 2))
    weighted = directions.unflatten(-1, (count, rank)) * coefficients.unsqueeze(1)
    # The products above are new tensors, so the in-place addition changes no other tensor.
    output = packed.view(-1, count, features).transpose(0, 1)
    output = output.reshape(count * groups, -1, features)
    output.baddbmm_(
        weighted.to(output.dtype).flatten(0, 1).transpose(0, 1).reshape(*output.shape[:2], rank),
        up.to(output.dtype).flatten(0, 1),
    )
    return output.view(count, rows, tokens, features).unbind(0)


def adapted_attention(
    inputs: Tensor,
    frozen: nn.MultiheadAttention,
    down: Tensor,
    up: Tensor,
    coefficients: Tensor,
    image: Tensor | None = None,
    queries: int | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """Returns the self-attention of every row with that row's coefficients.

    Args:
        inputs: (rows, tokens, width), after the layer norm. With `image`, (images, tokens, width):
            the products that the rows of an image share are computed once.
        frozen: Holds in_proj_weight (3 width, width) and out_proj.
        down: (4, groups, rank, width), for Q, K, V and O.
        up: (4, groups, rank, width), for Q, K, V and O.
        coefficients: (rows, 4, rank).
        image: (rows,), index of each row's image.
        queries: Number of leading tokens to return; None returns all.
        added: As in `attend`.

    Returns:
        (rows, queries, width), without the residual.
    """

    assert frozen.in_proj_weight is not None
    assert frozen.in_proj_bias is not None
    weight, bias, width = frozen.in_proj_weight, frozen.in_proj_bias, frozen.embed_dim

    def project(tokens: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        own, packed = slice(first, last), slice(first * width, last * width)
        return _adapted_projections(
            tokens, weight[packed], bias[packed], down[own], up[own], coefficients[:, own], image
        )

    if queries is None:
        query, key, value = project(inputs, 0, 3)
    else:
        (query,) = project(inputs[:, :queries], 0, 1)
        key, value = project(inputs, 1, 3)
    query, key, value = (
        projected.unflatten(-1, (frozen.num_heads, -1)).transpose(1, 2)
        for projected in (query, key, value)
    )
    context = attend(frozen, query, key, value, added)  # (rows, heads, queries, head_dim)
    context = context.transpose(1, 2).flatten(2)
    output = frozen.out_proj
    return adapted_linear(
        context, output.weight, output.bias, down[-1], up[-1], coefficients[:, -1]
    )


class SelfAttention(nn.MultiheadAttention):
    """Self-attention by dot product, with the parameters of `nn.MultiheadAttention`."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, None]:
        """Returns the self-attention of `query` (n, tokens, width), and None for the weights."""
        assert query is key is value
        assert self.in_proj_weight is not None
        packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
        heads = packed.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        context = attend(self, *heads.unbind(0)).transpose(1, 2).flatten(2)
        return self.out_proj(context), None


class DistanceAttention(SelfAttention):
    """Self-attention by distance."""


class RotaryAttention(SelfAttention):
    """Self-attention by dot product with rotary positions.

    Args:
        width: Of a token.
        heads: `width` is a multiple of four times their number.
        side: Number of rows and of columns of patches, which are the last tokens.
        others: Number of tokens before them.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, side: int, others: int) -> None:
        super().__init__(width, heads, batch_first=True)
        head_dim = width // heads
        cpu = torch.device("cpu")  # also where parameters have no values: none are loaded for these
        frequency = _ROTARY_BASE ** -torch.arange(0, 1, 4 / head_dim, device=cpu)
        centre = (2 * torch.arange(side, device=cpu) + 1) / side - 1
        centres = torch.cartesian_prod(centre, centre)  # (patches, 2)
        angles = (2 * math.pi * centres.unsqueeze(-1) * frequency).flatten(1).tile(2)
        angles = F.pad(angles, [0, 0, others, 0])  # (tokens, head_dim)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotated(self, heads: Tensor) -> Tensor:
        """Rotates the first tokens of queries or keys, (rows, heads, tokens, head_dim)."""
        tokens = heads.shape[-2]
        first, second = heads.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        return (heads * self.cos[:tokens] + turned * self.sin[:tokens]).to(heads.dtype)


def attend(
    attention: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor | None = None,
) -> Tensor:
    """Returns the values that the queries attend to, (rows, heads, queries, head_dim).

    Args:
        attention: Decides between distance and dot product, and rotates.
        query: (rows, heads, queries, head_dim).
        key: (rows, heads, tokens, head_dim).
        value: (rows, heads, tokens, head_dim).
        added: (rows, heads, queries, tokens), added to the attention logits; None for zeros.
    """
    if isinstance(attention, DistanceAttention):
        return _attend_by_distance(query, key, value, added)
    if isinstance(attention, RotaryAttention):
        query, key = attention.rotated(query), attention.rotated(key)
    if _has_slow_gradient(query, key, value):
        with torch.autocast(query.device.type, enabled=False):
            added = None if added is None else added.float()
            context = F.scaled_dot_product_attention(
                query.float(), key.float(), value.float(), attn_mask=added
            )
        return context.to(value.dtype)
    added = None if added is None else added.to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=added)


def _attend_by_distance(query: Tensor, key: Tensor, value: Tensor, added: Tensor | None) -> Tensor:
    """Returns the values that the queries attend to by distance; arguments as in `attend`.

    -|q - k|^2 = 2 q k - |k|^2 - |q|^2, of which the softmax over keys removes the last term. In
    float32, because the terms are much larger than their sum.
    """
    scale = query.shape[-1] ** -0.5
    with torch.autocast(query.device.type, enabled=False):
        query, key = query.float(), key.float()
        bias = -scale * key.square().sum(dim=-1).unsqueeze(-2)  # (rows, heads, 1, tokens)
        bias = bias if added is None else bias + added.float()
        context = F.scaled_dot_product_attention(
            query, key, value.float(), attn_mask=bias, scale=2 * scale
        )
    return context.to(value.dtype)


def _has_slow_gradient(*heads: Tensor) -> bool:
    """True if the gradient would be that of torch's CPU kernel in bfloat16.

    It takes 14 times as long as that in float32 for 10 tokens, 4 times for 37 and 1.4 times for
    197 (docs/results/performance.md).
    """
    return (
        torch.is_grad_enabled()
        and heads[0].device.type == "cpu"
        and heads[0].dtype == torch.bfloat16
        and any(head.requires_grad for head in heads)
    )


_Project = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(tokens, weight, bias, index) -> the projection `index` of Q, K, V and O of the tokens of rows.

weight, bias: those of the frozen block.
"""


def projected_attention(
    inputs: Tensor, frozen: nn.MultiheadAttention, project: _Project, queries: int | None = None
) -> Tensor:
    """Returns the self-attention with other projections, (rows, queries, width).

    The residual is not added.

    Args:
        inputs: As `project` reads them, (..., tokens, width), after the layer norm.
        frozen: Its weights, biases and number of heads are used.
        project: Replaces the linear maps Q, K, V and O.
        queries: Number of leading tokens to return; None returns all.
    """
    assert frozen.in_proj_weight is not None
    assert frozen.in_proj_bias is not None
    weights = [*frozen.in_proj_weight.chunk(3), frozen.out_proj.weight]
    biases = [*frozen.in_proj_bias.chunk(3), frozen.out_proj.bias]
    heads = [
        project(tokens, weights[index], biases[index], index)
        .unflatten(-1, (frozen.num_heads, -1))
        .transpose(1, 2)
        for index, tokens in enumerate((inputs[:, :queries], inputs, inputs))
    ]
    context = attend(frozen, *heads)  # (rows, heads, queries, head_dim)
    return project(context.transpose(1, 2).flatten(2), weights[3], biases[3], 3)
