"""The self-attention of a frozen block, with factors of members or without any tensors."""

from dataclasses import dataclass

from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.adapted_attention import BlockAdapters
from eulerlora.row_draws import BlockRows
from eulerlora.self_attention import attend


@dataclass(frozen=True)
class Factors:
    """Factors of the inputs and outputs of Q, K, V and O, (4, rows, 1, width) each."""

    inputs: Tensor
    outputs: Tensor


def frozen_attention(
    inputs: Tensor,
    frozen: nn.MultiheadAttention,
    queries: int | None = None,
    factors: Factors | None = None,
) -> Tensor:
    """Returns the self-attention of a frozen block, (rows, queries, width), without the residual.

    With factors r and s, every projection is y = s * (W0 (r * x)) + b0. inputs: (rows, tokens,
    width), after the layer norm. queries: number of leading tokens to return; None returns all.
    """
    assert frozen.in_proj_weight is not None
    assert frozen.in_proj_bias is not None
    weights = [*frozen.in_proj_weight.chunk(3), frozen.out_proj.weight]
    biases = [*frozen.in_proj_bias.chunk(3), frozen.out_proj.bias]

    def project(tokens: Tensor, index: int) -> Tensor:
        if factors is None:
            return F.linear(tokens, weights[index], biases[index])
        product = F.linear(tokens * factors.inputs[index], weights[index])
        return product * factors.outputs[index] + biases[index]

    heads = [
        project(tokens, index).unflatten(-1, (frozen.num_heads, -1)).transpose(1, 2)
        for index, tokens in enumerate((inputs[:, :queries], inputs, inputs))
    ]
    context = attend(frozen, *heads)  # (rows, heads, queries, head_dim)
    return project(context.transpose(1, 2).flatten(2), 3)


class FrozenAttention(BlockAdapters):
    """No tensors: the rows of an image have the attention of the frozen block."""

    def initialise(self, generator: Generator) -> None:
        """Draws nothing."""

    def attention(
        self,
        inputs: Tensor,
        frozen: nn.MultiheadAttention,
        rows: BlockRows,
        queries: int | None = None,
    ) -> Tensor:
        return rows.of_rows(frozen_attention(inputs, frozen, queries))
