"""Masks of several samples, drawn jointly to reduce the variance of their mean.

Each sample alone has exactly the law of `coefficients.draw_masks`; docs/sampling.md has the proof.
Samples come in groups of four. A group places the directions on a circle in random order, and its
samples take consecutive arcs: two of K directions, then two of K' = min_rank + rank - K.
"""

import math

import torch
from torch import Generator, Tensor

GROUP = 4
GOLDEN = (3 - math.sqrt(5)) / 2  # fraction of a circle whose multiples are evenly spread


def draw_balanced_masks(
    shape: tuple[int, ...], samples: int, rank: int, min_rank: int, generator: Generator
) -> Tensor:
    """Returns masks (*shape, samples, rank) on the CPU; samples are balanced against each other.

    The entries of `shape` are independent. For a generator in the same state, the first samples do
    not depend on the number of samples.
    """
    groups = math.ceil(samples / GROUP)
    first = torch.randint(rank - min_rank + 1, (*shape, 1), generator=generator)
    keys = [  # one draw per group: more groups do not change the earlier ones
        torch.rand(*shape, rank, generator=generator, dtype=torch.float64) for _ in range(groups)
    ]
    positions = torch.stack(keys, dim=-2).argsort(dim=-1)  # (*shape, groups, rank), permutations
    masks = consecutive_masks(positions, balanced_ranks(first, groups, rank, min_rank))
    return masks.flatten(-3, -2)[..., :samples, :]


def balanced_ranks(first: Tensor, groups: int, rank: int, min_rank: int) -> Tensor:
    """Returns the number of active directions of every sample, (..., groups, 4): K, K, K', K'.

    first: (..., 1), K - min_rank of the first group. Each further group advances it by a fixed
    stride, modulo the number of possible values. If it is uniform, so is K of every sample.
    """
    count = rank - min_rank + 1
    offset = (first + golden_stride(count) * torch.arange(groups)) % count
    active, mirrored = min_rank + offset, rank - offset
    return torch.stack([active, active, mirrored, mirrored], dim=-1)


def consecutive_masks(positions: Tensor, active: Tensor) -> Tensor:
    """Returns masks (..., samples, rank) of consecutive arcs on the circle, with entries r/K.

    positions: (..., rank), the position of each direction on the circle. active: (..., samples),
    the number of directions K of each sample.
    """
    rank = positions.shape[-1]
    starts = active.cumsum(dim=-1) - active
    distances = (positions.unsqueeze(-2) - starts.unsqueeze(-1)) % rank
    return torch.where(distances < active.unsqueeze(-1), (rank / active).unsqueeze(-1), 0.0)


def golden_stride(count: int) -> int:
    """Returns the step coprime to `count` that is nearest to the golden section of `count`."""
    steps = [step for step in range(1, count + 1) if math.gcd(step, count) == 1]
    return min(steps, key=lambda step: abs(step - GOLDEN * count))
