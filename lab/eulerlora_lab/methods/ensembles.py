"""Ensembles that draw nothing: BatchEnsemble, and heads on the frozen backbone.

BatchEnsemble (Wen, Tran and Ba, ICLR 2020): members multiply inputs and outputs by factors.
"""

from collections.abc import Collection, Mapping
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.attention import projected_attention
from eulerlora.nn.method import (
    BlockAdapters,
    BlockRows,
    Method,
    MethodSettings,
    NetworkShape,
    RowDraws,
    SettingsType_co,
)
from eulerlora.sampling.masks import PROJECTIONS, AdapterSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import Positive, PositiveInt
from eulerlora_lab.methods.gaussian import WITHOUT_DROPOUT


class _EnsembleMethod(Method[SettingsType_co]):
    """Members without adapters that draw nothing: a row is a member, and its samples are equal."""

    exportable = False

    @classmethod
    def is_sampled(cls, adapters: AdapterSettings) -> bool:
        return False

    @classmethod
    def members_text(cls, adapters: AdapterSettings) -> str:
        return f"{adapters.adapters} {cls.method_name()} members"

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        return {**WITHOUT_DROPOUT, "adapters.rank": (1,)}

    def det(self) -> RowDraws:
        return RowDraws()

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        return RowDraws()

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        return RowDraws()


class _FrozenAttention(BlockAdapters):
    """No tensors: the rows of an image have the attention of the frozen block."""

    def initialise(self, generator: Generator) -> None:
        """Draws nothing."""

    def attention(self, inputs: Tensor, frozen: nn.MultiheadAttention, rows: BlockRows) -> Tensor:
        def project(tokens: Tensor, weight: Tensor, bias: Tensor, _: int) -> Tensor:
            return F.linear(tokens, weight, bias)

        return rows.of_rows(projected_attention(inputs, frozen, project, rows.queries))


class BatchEnsembleSettings(MethodSettings):
    """Members that share the frozen weights and multiply inputs and outputs by own factors."""

    name: Literal["batch-ensemble"] = "batch-ensemble"
    """The method."""
    blocks: PositiveInt = 2
    """Number of last blocks whose projections have factors."""
    factor_deviation: Positive = 0.1
    """Standard deviation of the initial factors, whose mean is 1."""


class _BatchEnsembleFactors(BlockAdapters):
    """The factors of one block (BatchEnsemble, Wen, Tran and Ba, ICLR 2020).

    Attributes:
        input_factors: (4, members, width), of Q, K, V and O: r in y = s * (W0 (r * x)) + b0.
        output_factors: (4, members, width): s in that equation.
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


class BatchEnsembleMethod(_EnsembleMethod[BatchEnsembleSettings]):
    """Factors in the last blocks; the others are frozen."""

    settings_type = BatchEnsembleSettings

    def __init__(self, settings: BatchEnsembleSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        if settings.blocks > self.depth:
            raise SettingsError(
                f"method.blocks: expected at most {self.depth}, the blocks of the backbone, got "
                f"{settings.blocks}"
            )

    def block(self, index: int) -> BlockAdapters:
        if index < self.depth - self.settings.blocks:
            return _FrozenAttention()
        width = self.shape.backbone.width
        return _BatchEnsembleFactors(width, self.adapters.adapters, self.settings)


class LastLayerEnsembleSettings(MethodSettings):
    """Several heads on the frozen backbone."""

    name: Literal["last-layer-ensemble"] = "last-layer-ensemble"
    """The method."""


class LastLayerEnsembleMethod(_EnsembleMethod[LastLayerEnsembleSettings]):
    """Heads on the frozen backbone, which runs once for an image."""

    settings_type = LastLayerEnsembleSettings

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        heads = {"training.head": ("random", "bootstrap-probes")}  # members differ in nothing else
        return {**super().required_keys(settings), **heads}

    def block(self, index: int) -> BlockAdapters:
        return _FrozenAttention()
