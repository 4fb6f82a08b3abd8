"""Methods of random masks: rank dropout, and MC dropout of keys.

Rank dropout masks directions of the adapters, with one law at all four projections.

MC dropout of keys (DropKey, Li et al., CVPR 2023) masks the attention logits of a row:

    softmax(q k' / sqrt(d) + M),   M = -1e12 with probability `rate` for every query and key, or 0

The softmax renormalises over the kept keys. Masks are independent over rows, blocks, heads, queries
and keys.
"""

from collections.abc import Collection, Mapping
from statistics import NormalDist
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from eulerlora.nn.attention import adapted_attention
from eulerlora.nn.method import (
    COEFFICIENTS,
    AttentionAdapters,
    BlockAdapters,
    BlockRows,
    Method,
    MethodSettings,
    NetworkShape,
    RowDraws,
)
from eulerlora.sampling.masks import GROUP, PROJECTIONS, consecutive_masks
from eulerlora_lab.methods.gaussian import WITHOUT_DROPOUT, NoiseMethod

_DROPPED = "dropped_keys"
"""Name of the masks, (rows, blocks, heads, tokens, tokens): 1 where a key is dropped for a query.
They have 0.5 MB for a row of 8 blocks with 4 heads and 65 tokens."""
_DROPPED_LOGIT = -1e12
"""Finite: a query without any key attends to all equally."""


class RankDropoutSettings(MethodSettings):
    """Dropout of whole directions, with one probability at all projections."""

    name: Literal["rank-dropout"] = "rank-dropout"
    """The method."""
    law: Literal["bernoulli", "fixed"] = "bernoulli"
    """`bernoulli` keeps each direction with probability `kept`; `fixed` keeps a random subset of
    the nearest number of directions, at least one.
    """
    kept: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Share of the directions that a sample uses; the paper's ranks 10 to 20 of 20 use 0.75."""


class RankDropoutMethod(Method[RankDropoutSettings]):
    """Masks of one law at all four projections; the number of Euler steps has no effect.

    A kept direction is divided by the probability that it is kept, so that the mean is 1.
    """

    settings_type = RankDropoutSettings

    def __init__(self, settings: RankDropoutSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        self.active = max(1, round(settings.kept * self.adapters.rank))

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        shape = (self.adapters.adapters * samples, self.depth, len(PROJECTIONS), self.adapters.rank)
        keys = torch.rand(*shape, generator=generator)
        if self.settings.law == "fixed":
            positions = keys.argsort(dim=-1).argsort(dim=-1)  # uniform permutations of 0..rank-1
            return self._draws((positions < self.active) * (shape[-1] / self.active))
        return self._draws((keys <= self.settings.kept) / self.settings.kept)

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        """`fixed`: consecutive arcs of a random circle; `bernoulli`: pairs u, 1 - u."""
        adapters, rank = self.adapters.adapters, self.adapters.rank
        group, count = GROUP if self.settings.law == "fixed" else 2, first + samples
        keys = [
            torch.rand(adapters, self.depth, len(PROJECTIONS), rank, generator=generator)
            for _ in range(-(-count // group))
        ]
        if self.settings.law == "fixed":
            active = torch.full((*keys[0].shape[:-1], GROUP), self.active)
            groups = [consecutive_masks(key.argsort(dim=-1), active) for key in keys]
            masks = torch.cat(groups, dim=-2).permute(0, 3, 1, 2, 4)
        else:
            uniform = torch.stack([part for key in keys for part in (key, 1 - key)], dim=1)
            masks = (uniform <= self.settings.kept) / self.settings.kept
        return self._draws(masks[:, first:count].flatten(0, 1))

    def _draws(self, masks: Tensor) -> RowDraws:
        return RowDraws.of_coefficients(masks.float())


class DropKeySettings(MethodSettings):
    """MC dropout of keys: random attention logits are masked, in training and in mode stoch."""

    name: Literal["dropkey"] = "dropkey"
    """The method."""
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Probability that a key is masked for a query of a head."""


class _DropKeyAdapters(AttentionAdapters):
    """The directions of one block; a row's masks are added to its attention logits."""

    def attention(self, inputs: Tensor, frozen: nn.MultiheadAttention, rows: BlockRows) -> Tensor:
        (down, up), coefficients = self.directions(rows), self.coefficients(rows)
        dropped = rows.draws.get(_DROPPED)
        added = None if dropped is None else _DROPPED_LOGIT * dropped[:, :, : rows.queries]
        return adapted_attention(
            inputs, frozen, down, up, coefficients, rows.image, rows.queries, added
        )


class DropKeyMethod(NoiseMethod[DropKeySettings]):
    """A key is dropped where standard normal noise is below a quantile; in training too, every row
    of every image has its own masks.
    """

    settings_type = DropKeySettings
    noise_per_image = True

    def __init__(self, settings: DropKeySettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        backbone = shape.backbone
        self.quantile = NormalDist().inv_cdf(settings.rate)
        self.noise = {_DROPPED: (self.depth, backbone.heads, backbone.tokens, backbone.tokens)}

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        return WITHOUT_DROPOUT

    def block(self, index: int) -> BlockAdapters:
        return _DropKeyAdapters(self.shape.backbone.width, self.adapters)

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        return RowDraws(
            {COEFFICIENTS: coefficients, _DROPPED: (noise[_DROPPED] < self.quantile).float()}
        )
