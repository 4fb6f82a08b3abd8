"""Ensembles whose members are no adapters: BatchEnsemble and an ensemble of last layers.

Nothing is drawn: every sample is that of mode det, one row for each member.
"""

import torch
from torch import Generator, Tensor, nn

from eulerlora.errors import SettingsError
from eulerlora.methods.settings import BatchEnsembleSettings
from eulerlora.nn.attention import (
    BlockAdapters,
    Factors,
    FrozenAttention,
    frozen_attention,
)
from eulerlora.nn.method import Method, NetworkShape
from eulerlora.nn.rows import BlockRows, RowDraws
from eulerlora.sampling.masks import PROJECTIONS


class EnsembleMethod(Method):
    """Members without random input."""

    def det(self) -> RowDraws:
        return RowDraws()

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        return RowDraws()

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        return RowDraws()


class LastLayerEnsembleMethod(EnsembleMethod):
    """Heads on the frozen backbone, which runs once for an image."""

    features_differ = "image"

    def block(self) -> BlockAdapters:
        return FrozenAttention()


class BatchEnsembleFactors(BlockAdapters):
    """The factors of one block (BatchEnsemble, Wen, Tran and Ba, ICLR 2020).

    input_factors, output_factors: (4, members, width), of Q, K, V and O: r and s in
    y = s * (W0 (r * x)) + b0.
    """

    def __init__(self, width: int, members: int, settings: BatchEnsembleSettings) -> None:
        super().__init__()
        self.deviation = settings.factor_deviation
        shape = (len(PROJECTIONS), members, width)
        self.input_factors = nn.Parameter(torch.zeros(shape))
        self.output_factors = nn.Parameter(torch.zeros(shape))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws normal factors around 1, so that the members differ."""
        self.input_factors.normal_(1, self.deviation, generator=generator)
        self.output_factors.normal_(1, self.deviation, generator=generator)

    def attention(
        self,
        inputs: Tensor,
        frozen: nn.MultiheadAttention,
        rows: BlockRows,
        queries: int | None = None,
    ) -> Tensor:
        factors = Factors(
            self.input_factors[:, rows.adapter].unsqueeze(2),
            self.output_factors[:, rows.adapter].unsqueeze(2),
        )
        return frozen_attention(rows.of_rows(inputs), frozen, queries, factors)


class BatchEnsembleMethod(EnsembleMethod):
    """Factors in the last blocks; the others are frozen."""

    def __init__(self, settings: BatchEnsembleSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        if settings.blocks > self.depth:
            raise SettingsError(
                f"method.blocks: expected at most {self.depth}, the blocks of the backbone, got "
                f"{settings.blocks}"
            )

    def block(self) -> BlockAdapters:
        width = self.shape.backbone.width
        return BatchEnsembleFactors(width, self.adapters.adapters, self.settings)

    def blocks(self) -> list[BlockAdapters]:
        frozen = self.depth - self.settings.blocks
        return [
            FrozenAttention() if index < frozen else self.block() for index in range(self.depth)
        ]
