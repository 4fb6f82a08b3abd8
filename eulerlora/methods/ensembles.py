"""Ensembles that draw nothing: BatchEnsemble, and heads on the frozen backbone.

BatchEnsemble (Wen, Tran and Ba, ICLR 2020): members multiply inputs and outputs by factors.
"""

from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.attention import projected_attention
from eulerlora.nn.method import (
    BlockAdapters,
    BlockRows,
    FrozenAttention,
    Method,
    MethodSettings,
    NetworkShape,
    RowDraws,
    SettingsType_co,
    TrainingKeys,
)
from eulerlora.sampling.masks import PROJECTIONS, AdapterSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import Positive, PositiveInt


class EnsembleMethod(Method[SettingsType_co]):
    """Members without adapters that draw nothing: a row is a member, and its samples are equal."""

    has_adapters = False
    takes_dropout = False
    exportable = False

    @classmethod
    def is_sampled(cls, adapters: AdapterSettings) -> bool:
        return False

    def det(self) -> RowDraws:
        return RowDraws()

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        return RowDraws()

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        return RowDraws()


class BatchEnsembleSettings(MethodSettings):
    """Members that share the frozen weights and multiply inputs and outputs by own factors."""

    name: Literal["batch-ensemble"] = "batch-ensemble"
    """The method."""
    blocks: PositiveInt = 2
    """Number of last blocks whose projections have factors."""
    factor_deviation: Positive = 0.1
    """Standard deviation of the initial factors, whose mean is 1."""


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

    def attention(self, inputs: Tensor, frozen: nn.MultiheadAttention, rows: BlockRows) -> Tensor:
        r, s = (
            factors[:, rows.adapter].unsqueeze(2)  # (4, rows, 1, width)
            for factors in (self.input_factors, self.output_factors)
        )

        def project(tokens: Tensor, weight: Tensor, bias: Tensor, index: int) -> Tensor:
            return s[index] * F.linear(r[index] * tokens, weight) + bias

        return projected_attention(rows.of_rows(inputs), frozen, project, rows.queries)


class BatchEnsembleMethod(EnsembleMethod[BatchEnsembleSettings]):
    """Factors in the last blocks; the others are frozen."""

    settings_type = BatchEnsembleSettings

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


class LastLayerEnsembleSettings(MethodSettings):
    """Several heads on the frozen backbone."""

    name: Literal["last-layer-ensemble"] = "last-layer-ensemble"
    """The method."""


class LastLayerEnsembleMethod(EnsembleMethod[LastLayerEnsembleSettings]):
    """Heads on the frozen backbone, which runs once for an image."""

    settings_type = LastLayerEnsembleSettings
    features_differ = "image"

    @classmethod
    def check_recipe(cls, adapters: AdapterSettings, training: TrainingKeys) -> None:
        super().check_recipe(adapters, training)
        if training.head == "linear-probe":
            raise ValueError(
                "expected training.head=random or bootstrap-probes with method "
                "last-layer-ensemble, whose members differ in nothing else, got linear-probe"
            )

    def block(self) -> BlockAdapters:
        return FrozenAttention()
