"""Self-attention with frozen and with adapted projections.

An adapted projection is a frozen one plus coefficient-weighted rank-one directions:

    y = W0 x + b0 + B (c * (A x))

`down` holds the rows a_k of A, and `up` holds the columns b_k of B as rows: direction k is the pair
(down[k], up[k]). Directions of several adapters are stacked along k; the coefficients c of a row
are zero on the directions of other adapters.

With queries q and keys k of a head of width d, token i attends to token j in proportion to
exp(q_i k_j / sqrt(d)), or by distance in proportion to

    exp(-|q_i - k_j|^2 / sqrt(d))

(L2 self-attention, Kim, Papamakarios and Mnih, "The Lipschitz Constant of Self-Attention", ICML
2021). With equal weights for queries and keys a token attends most to tokens like itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "DistanceAttention",
    "SelfAttention",
    "adapted_attention",
    "adapted_linear",
    "attend",
    "projected_attention",
]


def adapted_linear(
    inputs: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor, coefficients: Tensor
) -> Tensor:
    """Returns the adapted projection of every token of every row.

    Args:
        inputs: (rows, tokens, in_features).
        weight: (out_features, in_features), frozen.
        bias: (out_features,), frozen.
        down: (ranks, in_features).
        up: (ranks, out_features).
        coefficients: (rows, ranks), shared by all tokens of a row.

    Returns:
        (rows, tokens, out_features); equals `F.linear` if all coefficients are zero.
    """
    weighted = F.linear(inputs, down) * coefficients.unsqueeze(1)  # (rows, tokens, ranks)
    # F.linear of a matrix returns a new tensor, so the in-place addition changes no other tensor.
    output: Tensor = F.linear(inputs.flatten(0, 1), weight, bias)  # (rows * tokens, out_features)
    output.addmm_(weighted.flatten(0, 1).to(output.dtype), up.to(output.dtype))
    return output.view(*inputs.shape[:2], -1)


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
        down: (4, adapters, rank, width), for Q, K, V and O.
        up: (4, adapters, rank, width), for Q, K, V and O.
        coefficients: (rows, 4, ranks).
        image: (rows,), index of each row's image.
        queries: Number of leading tokens to return; None returns all.
        added: As in `attend`.

    Returns:
        (rows, queries, width), without the residual.
    """

    def project(tokens: Tensor, projections: slice) -> tuple[Tensor, ...]:
        return _input_projections(tokens, frozen, down, up, coefficients, projections, image)

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
    output, last_down, last_up = frozen.out_proj, down[-1].flatten(0, 1), up[-1].flatten(0, 1)
    return adapted_linear(
        context, output.weight, output.bias, last_down, last_up, coefficients[:, -1]
    )


def _input_projections(
    inputs: Tensor,
    frozen: nn.MultiheadAttention,
    down: Tensor,
    up: Tensor,
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
    down, up = (
        down[projections].flatten(1, 2),
        up[projections].flatten(1, 2),
    )  # (count, ranks, width)
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


def attend(
    attention: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor | None = None,
) -> Tensor:
    """Returns the values that the queries attend to, (rows, heads, queries, head_dim).

    Args:
        attention: Decides between distance and dot product.
        query: (rows, heads, queries, head_dim).
        key: (rows, heads, tokens, head_dim).
        value: (rows, heads, tokens, head_dim).
        added: (rows, heads, queries, tokens), added to the attention logits; None for zeros.
    """
    if isinstance(attention, DistanceAttention):
        return _attend_by_distance(query, key, value, added)
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
