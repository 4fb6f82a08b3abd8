"""Dropout of whole directions: masks of one law at all four projections."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from eulerlora.nn.attention import AttentionAdapters, BlockAdapters
from eulerlora.nn.method import Method, MethodSettings, NetworkShape
from eulerlora.nn.rows import RowDraws
from eulerlora.sampling.masks import GROUP, PROJECTIONS, consecutive_masks, on_stacked_ranks


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
    plain_adapters = True

    def __init__(self, settings: RankDropoutSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        self.active = max(1, round(settings.kept * self.adapters.rank))

    def block(self) -> BlockAdapters:
        return AttentionAdapters(self.shape.backbone.width, self.adapters)

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
        """masks: (rows, blocks, 4, rank)."""
        return RowDraws.of_coefficients(on_stacked_ranks(masks.float(), self.adapters.adapters))
