"""Multi-head self-attention by dot product or by distance, in the precision that suits the device.

With queries q and keys k of a head of width d, token i attends to token j in proportion to
exp(q_i k_j / sqrt(d)), or by distance in proportion to

    exp(-|q_i - k_j|^2 / sqrt(d))

(L2 self-attention, Kim, Papamakarios and Mnih, "The Lipschitz Constant of Self-Attention", ICML
2021). With equal weights for queries and keys a token attends most to tokens like itself.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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

    attention: decides between distance and dot product. query: (rows, heads, queries, head_dim).
    key, value: (rows, heads, tokens, head_dim). added: (rows, heads, queries, tokens), added to the
    attention logits; None for zeros.
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
    197 (docs/performance.md).
    """
    return (
        torch.is_grad_enabled()
        and heads[0].device.type == "cpu"
        and heads[0].dtype == torch.bfloat16
        and any(head.requires_grad for head in heads)
    )
