"""Blocks that compute their projections one by one, and ordinary adapter dropout.

Dropout is a control of the paper's stochastic training. Elements of the input of each down
projection are dropped, as with PEFT's `lora_dropout`:

    y = W0 x + b0 + B (c * (A dropout(x)))

The frozen projection gets the whole input. Prediction drops nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.attention import AttentionAdapters, attend
from eulerlora.nn.backbone import EncoderBlock
from eulerlora.nn.network import BlockPart


class ProjectedBlock(ABC):
    """`row_pass.adapted_block` that computes each projection by itself, for rows of one network."""

    @abstractmethod
    def projection(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        adapters: AttentionAdapters,
        index: int,
        coefficients: Tensor,
    ) -> Tensor:
        """Returns an adapted projection of the inputs (rows, tokens, width), of the same shape.

        index: of the projection in `PROJECTIONS`. weight, bias: frozen. coefficients: (rows, 4,
        ranks).
        """

    def __call__(
        self,
        tokens: Tensor,
        frozen: nn.Module,
        parts: Sequence[BlockPart],
        image: Tensor | None,
        queries: int | None,
    ) -> Tensor:
        """Shapes as in `adapted_block`, for the rows of one network."""
        assert isinstance(frozen, EncoderBlock)
        (part,) = parts
        adapters = part.adapters
        assert isinstance(adapters, AttentionAdapters)
        coefficients = adapters.coefficients(part.rows)
        tokens = tokens if image is None else tokens[image]  # (rows, tokens, width)
        normalised = frozen.ln_1(tokens)
        attended = self._attention(
            normalised, frozen.self_attention, adapters, coefficients, queries
        )
        return frozen.after_attention(tokens[:, :queries], attended)

    def _attention(
        self,
        inputs: Tensor,
        frozen: nn.MultiheadAttention,
        adapters: AttentionAdapters,
        coefficients: Tensor,
        queries: int | None,
    ) -> Tensor:
        """Returns (rows, queries, width); arguments as in `adapted_attention`, for every row."""
        assert frozen.in_proj_weight is not None
        assert frozen.in_proj_bias is not None
        weights = [*frozen.in_proj_weight.chunk(3), frozen.out_proj.weight]
        biases = [*frozen.in_proj_bias.chunk(3), frozen.out_proj.bias]

        def project(tokens: Tensor, index: int) -> Tensor:
            return self.projection(
                tokens, weights[index], biases[index], adapters, index, coefficients
            )

        heads = [
            project(tokens, index).unflatten(-1, (frozen.num_heads, -1)).transpose(1, 2)
            for index, tokens in enumerate((inputs[:, :queries], inputs, inputs))
        ]
        context = attend(frozen, *heads)  # (rows, heads, queries, head_dim)
        return project(context.transpose(1, 2).flatten(2), 3)


@dataclass(frozen=True)
class DropoutBlock(ProjectedBlock):
    """A block with adapter dropout.

    probability: of dropping an element; the others are divided by 1 - probability. generator: on
    the CPU. Elements are independent over rows, tokens, features and projections, so that every
    call draws new ones; the block must not be computed again in a backward pass.
    """

    probability: float
    generator: Generator

    def dropped(self, inputs: Tensor) -> Tensor:
        """Returns the inputs with dropped elements."""
        kept = torch.empty(inputs.shape).bernoulli_(1 - self.probability, generator=self.generator)
        return inputs * kept.to(inputs) / (1 - self.probability)

    def projection(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        adapters: AttentionAdapters,
        index: int,
        coefficients: Tensor,
    ) -> Tensor:
        directions = F.linear(self.dropped(inputs), adapters.down[index].flatten(0, 1))
        weighted = directions * coefficients[:, index].unsqueeze(1)  # (rows, tokens, ranks)
        adapted = F.linear(weighted, adapters.up[index].flatten(0, 1).T)
        return F.linear(inputs, weight, bias) + adapted
