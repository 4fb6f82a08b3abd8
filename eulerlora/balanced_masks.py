"""Rank configurations of several samples, drawn jointly so that their mean varies little.

Each sample alone has exactly the law of `coefficients.draw_masks`: docs/sampling.md has the proof.
Samples come in groups of four. A group lays its subsets end to end around a circle of the
directions of its own: two of K directions, then two of K' = min_rank + rank - K.
"""

import math

import torch
from torch import Generator, Tensor

GROUP = 4
GOLDEN = (3 - math.sqrt(5)) / 2  # of a circle; multiples of it spread evenly, however many


def draw_balanced_masks(
    shape: tuple[int, ...], samples: int, rank: int, min_rank: int, generator: Generator
) -> Tensor:
    """Masks of `samples` samples, balanced against one another and independent over `shape`.

    The first samples are the same however many follow, for a generator in the same state.
    Returns (*shape, samples, rank) on the CPU.
    """
    groups = math.ceil(samples / GROUP)
    first = torch.randint(rank - min_rank + 1, (*shape, 1), generator=generator)
    keys = [  # one group after the other, so that more of them change nothing
        torch.rand(*shape, rank, generator=generator, dtype=torch.float64) for _ in range(groups)
    ]
    places = torch.stack(keys, dim=-2).argsort(dim=-1)  # (*shape, groups, rank), permutations
    masks = consecutive_masks(places, balanced_ranks(first, groups, rank, min_rank))
    return masks.flatten(-3, -2)[..., :samples, :]


def balanced_ranks(first: Tensor, groups: int, rank: int, min_rank: int) -> Tensor:
    """The number of active directions of every sample: K, K, K', K' in each group.

    first: (..., 1), K - min_rank of the first group; from one group to the next it goes a fixed
    golden_stride around its range. Where it is uniform, so is K of every sample.
    Returns (..., groups, 4).
    """
    count = rank - min_rank + 1
    above = (first + golden_stride(count) * torch.arange(groups)) % count
    active, mirrored = min_rank + above, rank - above
    return torch.stack([active, active, mirrored, mirrored], dim=-1)


def consecutive_masks(places: Tensor, active: Tensor) -> Tensor:
    """Masks r/K of samples that take one stretch after another of a circle of the directions.

    places: (..., rank), where each direction stands on the circle. active: (..., samples), how
    many directions K each sample takes. Returns (..., samples, rank).
    """
    rank = places.shape[-1]
    starts = active.cumsum(dim=-1) - active
    steps = (places.unsqueeze(-2) - starts.unsqueeze(-1)) % rank
    return torch.where(steps < active.unsqueeze(-1), (rank / active).unsqueeze(-1), 0.0)


def golden_stride(count: int) -> int:
    """The step nearest to the golden section of a circle of `count` places that visits them all."""
    steps = [step for step in range(1, count + 1) if math.gcd(step, count) == 1]
    return min(steps, key=lambda step: abs(step - GOLDEN * count))
