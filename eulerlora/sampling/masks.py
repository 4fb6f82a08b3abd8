"""The coefficients c of the paper's method: the only random numbers that it draws.

Q, K and V have a mask M each; O has 1 + scale/sqrt(steps) * sum of (M - 1), over independent masks:
the closed form of the Euler recursion, so that no code loops over its steps. In mode det all
coefficients are 1. The network reads (blocks, 4, rank) for each trajectory, for the directions of
its adapter, so that a batch may mix adapters, modes and numbers of samples.

Masks are independent, or balanced: drawn jointly to reduce the variance of the mean of several
samples. Each balanced sample alone has exactly the law of `draw_masks`
(docs/explanation/sampling.md has the proof). Samples come in groups of four. A group places the
directions on a circle in random order, and its samples take consecutive arcs: two of K directions,
then two of K' = min_rank + rank - K.
"""

import math
from typing import Annotated, Any, Self

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor

from eulerlora_contract.settings import NotNegative, PositiveInt, Settings, optional

__all__ = [
    "GROUP",
    "INIT_GAIN",
    "INPUT_PROJECTIONS",
    "PROJECTIONS",
    "AdapterSettings",
    "balanced_ranks",
    "consecutive_masks",
    "det_coefficients",
    "draw_balanced_masks",
    "draw_balanced_trajectories",
    "draw_masks",
    "draw_trajectories",
    "terminal_coefficients",
]

PROJECTIONS = ("query", "key", "value", "output")
"""The adapted projections of a block, in the order of all tensors and coefficients."""
INPUT_PROJECTIONS = len(PROJECTIONS) - 1  # Q, K and V; also the index of O
GROUP = 4
INIT_GAIN = 0.3
"""Gain of the initial A for `adapt`, PEFT and recipes that are not the paper's: with it EulerLoRA
trains at the rates at which LoRA does (lab/docs/protocols.md).
"""
_GOLDEN = (3 - math.sqrt(5)) / 2  # fraction of a circle whose multiples are evenly spread


def _half_of_rank(values: dict[str, Any]) -> int:
    rank: int = values.get("rank", 1)  # missing if it is invalid
    return (rank + 1) // 2


class AdapterSettings(Settings):
    """Number, rank and sampling law of adapters."""

    adapters: Annotated[PositiveInt, Field(le=1024)] = 2
    """Number of independent adapters A, each with its own classification head."""
    rank: Annotated[PositiveInt, Field(le=4096)] = 20
    """Number of rank-one directions r of each adapter at each projection."""
    min_rank: PositiveInt = Field(default_factory=_half_of_rank)
    """Least number of active directions Kmin, 1 to rank; by default half of rank, rounded up."""
    steps: Annotated[PositiveInt, Field(le=1000)] = 2
    """Number of Euler steps T at the output projection."""
    scale: NotNegative = 1.0
    """Sigma, the scale of the fluctuation at the output projection; 0 removes it."""
    init_gain: float = optional(10.0, gt=0)
    """Gain of the Xavier-uniform initial A; 10 in the paper. The rate that fits depends on it: the
    first updates of B A grow with their product.
    """

    @model_validator(mode="after")
    def _min_rank_within_rank(self) -> Self:
        if self.min_rank > self.rank:
            raise ValueError(f"expected min_rank of at most rank={self.rank}, got {self.min_rank}")
        return self


def draw_masks(shape: tuple[int, ...], rank: int, min_rank: int, generator: Generator) -> Tensor:
    """Masks M (*shape, rank) on the CPU: r/K on a random subset of K directions, else 0.

    K is uniform on {min_rank, ..., rank}, independently for every entry of `shape`; the subset is
    uniform without replacement. Every entry has mean 1 (paper, "Stochastic rank configurations").
    """
    active = torch.randint(min_rank, rank + 1, (*shape, 1), generator=generator)
    keys = torch.rand(*shape, rank, generator=generator, dtype=torch.float64)
    order = keys.argsort(dim=-1).argsort(dim=-1)  # each a uniform permutation of 0..rank-1
    return torch.where(order < active, rank / active, 0.0)


def terminal_coefficients(masks: Tensor, scale: float) -> Tensor:
    """The coefficients at O after all Euler steps (paper, eq. terminal state).

    The mean over draws is 1 for every number of steps.

    Args:
        masks: (steps, ..., rank), entries r/K on the drawn subset and 0 elsewhere.
        scale: Of the fluctuation, sigma in the paper.

    Returns:
        (..., rank).
    """
    return 1 + scale / math.sqrt(len(masks)) * (masks - 1).sum(dim=0)


def draw_trajectories(
    count: int, blocks: int, settings: AdapterSettings, generator: Generator
) -> Tensor:
    """Coefficients (count, blocks, 4, rank) of independent trajectories, of any adapters.

    Q, K and V have one mask each, O has the terminal coefficients of `settings.steps` masks. All
    masks are independent over trajectories, blocks, projections and steps.
    """
    masks = draw_masks(
        (INPUT_PROJECTIONS + settings.steps, count, blocks),
        settings.rank,
        settings.min_rank,
        generator,
    )
    return _coefficients(masks, settings.scale)


def _coefficients(masks: Tensor, scale: float) -> Tensor:
    """(count, blocks, 4, rank) from masks (3 + steps, count, blocks, rank)."""
    output = terminal_coefficients(masks[INPUT_PROJECTIONS:], scale)
    return torch.stack([*masks[:INPUT_PROJECTIONS], output], dim=2)


def det_coefficients(blocks: int, settings: AdapterSettings) -> Tensor:
    """The coefficients (adapters, blocks, 4, rank) of mode det: ones."""
    return torch.ones(settings.adapters, blocks, len(PROJECTIONS), settings.rank)


def draw_balanced_trajectories(
    samples: int, blocks: int, settings: AdapterSettings, generator: Generator, first: int = 0
) -> Tensor:
    """Coefficients (adapters * samples, blocks, 4, rank), adapter by adapter.

    The trajectories of an adapter are balanced against each other; each alone has the law of
    `draw_trajectories`. Adapters, blocks, projections and steps are independent. The first
    trajectories of an adapter do not depend on how many are drawn; `first` of them are drawn and
    left out before its `samples`.
    """
    masks = draw_balanced_masks(
        (INPUT_PROJECTIONS + settings.steps, settings.adapters, blocks),
        first + samples,
        settings.rank,
        settings.min_rank,
        generator,
    )[..., first:, :]  # (3 + steps, adapters, blocks, samples, rank)
    return _coefficients(masks.transpose(2, 3).flatten(1, 2), settings.scale)


def draw_balanced_masks(
    shape: tuple[int, ...], samples: int, rank: int, min_rank: int, generator: Generator
) -> Tensor:
    """Masks (*shape, samples, rank) on the CPU; samples are balanced against each other.

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
    """The number of active directions of every sample, (..., groups, 4): K, K, K', K'.

    Args:
        first: (..., 1), K - min_rank of the first group. Each further group advances it by a fixed
            stride, modulo the number of possible values. If it is uniform, so is K of every sample.
        groups: Number of groups of four samples.
        rank: Number of directions, the greatest K.
        min_rank: The least K, 1 to `rank`.
    """
    count = rank - min_rank + 1
    offset = (first + _golden_stride(count) * torch.arange(groups)) % count
    active, mirrored = min_rank + offset, rank - offset
    return torch.stack([active, active, mirrored, mirrored], dim=-1)


def consecutive_masks(positions: Tensor, active: Tensor) -> Tensor:
    """Masks (..., samples, rank) of consecutive arcs on the circle, with entries r/K.

    Args:
        positions: (..., rank), the position of each direction on the circle.
        active: (..., samples), the number of directions K of each sample.
    """
    rank = positions.shape[-1]
    starts = active.cumsum(dim=-1) - active
    distances = (positions.unsqueeze(-2) - starts.unsqueeze(-1)) % rank
    return torch.where(distances < active.unsqueeze(-1), (rank / active).unsqueeze(-1), 0.0)


def _golden_stride(count: int) -> int:
    """The step coprime to `count` that is nearest to the golden section of `count`."""
    steps = [step for step in range(1, count + 1) if math.gcd(step, count) == 1]
    return min(steps, key=lambda step: abs(step - _GOLDEN * count))
