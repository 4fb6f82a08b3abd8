"""Methods whose coefficients are random masks of the directions."""

import torch
from torch import Generator, Tensor

from eulerlora.methods.settings import EulerLoRASettings, RankDropoutSettings
from eulerlora.nn.attention import AttentionAdapters, BlockAdapters
from eulerlora.nn.method import Method, NetworkShape
from eulerlora.nn.rows import RowDraws
from eulerlora.sampling.masks import (
    GROUP,
    INPUTS,
    PROJECTIONS,
    consecutive_masks,
    draw_balanced_trajectories,
    draw_trajectories,
    on_stacked_ranks,
)


class EulerLoRAMethod(Method):
    """The paper's coefficients (`eulerlora.sampling.masks`), at all projections or at one side."""

    def __init__(self, settings: EulerLoRASettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)

    def block(self) -> BlockAdapters:
        return AttentionAdapters(self.shape.backbone.width, self.adapters)

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        count = self.adapters.adapters * samples
        return self._draws(draw_trajectories(count, self.depth, self.adapters, generator))

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        count = self.adapters.adapters * samples
        return self._draws(
            draw_balanced_trajectories(count, self.depth, self.adapters, generator, first)
        )

    def _draws(self, coefficients: Tensor) -> RowDraws:
        """coefficients: (rows, blocks, 4, rank)."""
        if self.settings.sides == "input":
            coefficients[:, :, INPUTS:] = 1
        elif self.settings.sides == "output":
            coefficients[:, :, :INPUTS] = 1
        stacked = on_stacked_ranks(coefficients, self.adapters.adapters)
        return RowDraws.of_coefficients(stacked)


class RankDropoutMethod(Method):
    """Masks of one law at all four projections; the number of Euler steps has no effect.

    A kept direction is divided by the probability that it is kept, so that the mean is 1.
    """

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
