"""Divergence and noise of independent normal distributions, and methods whose rows have noise."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor

from eulerlora.nn.method import Method
from eulerlora.nn.rows import RowDraws
from eulerlora.sampling.masks import det_coefficients


class NoiseMethod(Method):
    """Rows with the coefficients of mode det and with standard normal noise of their own.

    noise: shape of one row's noise by name.
    """

    noise: Mapping[str, Sequence[int]]

    @abstractmethod
    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        """Returns the draws of rows.

        coefficients: (rows, blocks, 4, adapters * rank), of mode det. noise: by name, (rows, ...).
        """

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        rows = self.adapters.adapters * samples
        return self._draws(samples, independent_noise(rows, self.noise, generator))

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        noise = antithetic_noise(first, samples, self.adapters.adapters, self.noise, generator)
        return self._draws(samples, noise)

    def _draws(self, samples: int, noise: Mapping[str, Tensor]) -> RowDraws:
        mean = det_coefficients(self.depth, self.adapters).repeat_interleave(samples, dim=0)
        return self.with_noise(mean, noise)


def divergence(mean: Tensor, scale: Tensor, prior_scale: float) -> Tensor:
    """Returns KL(N(mean, scale^2) || N(0, prior_scale^2)), summed over all elements, in nats.

    mean, scale: any equal shape; scale is positive.
    """
    ratio = scale / prior_scale
    terms = ratio.square() + (mean / prior_scale).square() - 1 - 2 * ratio.log()
    return 0.5 * terms.sum()


def independent_noise(
    rows: int, shapes: Mapping[str, Sequence[int]], generator: Generator
) -> dict[str, Tensor]:
    """Returns standard normal numbers (rows, *shape) for every name."""
    return {name: torch.randn(rows, *shape, generator=generator) for name, shape in shapes.items()}


def antithetic_noise(
    first: int,
    samples: int,
    adapters: int,
    shapes: Mapping[str, Sequence[int]],
    generator: Generator,
) -> dict[str, Tensor]:
    """Returns (adapters * samples, *shape) for every name, adapter by adapter, in pairs z, -z.

    Each sample alone is standard normal. first: samples of each adapter to skip. The first samples
    of an adapter do not depend on how many are drawn.
    """
    pairs = [
        independent_noise(adapters, shapes, generator)
        for _ in range(math.ceil((first + samples) / 2))
    ]
    return {
        name: torch.stack([sign * pair[name] for pair in pairs for sign in (1, -1)], dim=1)[
            :, first : first + samples
        ].flatten(0, 1)
        for name in shapes
    }
