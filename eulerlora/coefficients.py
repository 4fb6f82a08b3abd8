"""All of the method's randomness: the coefficient of every rank-one direction, drawn up front.

A trajectory's coefficients have the shape (blocks, 4, adapters * rank): for each block and each
of the projections Q, K, V, O, one number per stacked rank-one direction. A trajectory belongs to
one adapter and has zeros on the directions of all others, so trajectories of any adapter, mode
and sample count can share a batch.
"""

import math

import torch
from torch import Generator, Tensor

from eulerlora.balanced_masks import draw_balanced_masks
from eulerlora.settings import AdapterSettings, Draw

PROJECTIONS = ("query", "key", "value", "output")
INPUTS = len(PROJECTIONS) - 1
LATER_SEED = 2_654_435_769  # 2**32 over the golden ratio: later draws meet no near seed's first


def draw_masks(shape: tuple[int, ...], rank: int, min_rank: int, generator: Generator) -> Tensor:
    """Rank configurations M: r/K on a uniform subset of K directions, 0 elsewhere.

    K is uniform on {min_rank, ..., rank}, independently for every entry of `shape`; its subset is
    uniform without replacement. Returns (*shape, rank) on the CPU; every entry has mean 1
    (paper, "Stochastic rank configurations").
    """
    active = torch.randint(min_rank, rank + 1, (*shape, 1), generator=generator)
    keys = torch.rand(*shape, rank, generator=generator, dtype=torch.float64)
    order = keys.argsort(dim=-1).argsort(dim=-1)  # each row a uniform permutation of 0..rank-1
    return torch.where(order < active, rank / active, 0.0)


def terminal_coefficients(masks: Tensor, scale: float) -> Tensor:
    """What the compensated Euler steps leave on each direction (paper, eq. terminal state).

    masks: (steps, ..., rank), each entry r/K on the drawn subset and 0 elsewhere.
    Returns (..., rank); its mean over draws is 1 for every number of steps.
    """
    return 1 + scale / math.sqrt(len(masks)) * (masks - 1).sum(dim=0)


def draw_trajectories(
    count: int, blocks: int, settings: AdapterSettings, generator: Generator
) -> Tensor:
    """Stochastic coefficients of `count` independent trajectories on their own directions.

    Q, K and V get one rank configuration each, O the terminal coefficients of `steps` of them;
    all are independent over trajectories, blocks, projections and steps.
    Returns (count, blocks, 4, rank).
    """
    masks = draw_masks(
        (INPUTS + settings.steps, count, blocks), settings.rank, settings.min_rank, generator
    )
    return _coefficients_of(masks, settings.scale)


def draw_balanced_trajectories(
    count: int, blocks: int, settings: AdapterSettings, generator: Generator, first: int = 0
) -> Tensor:
    """The same with the trajectories of an adapter balanced against one another.

    Each alone has the law of `draw_trajectories`: adapters, blocks, projections and the steps at O
    are independent of one another. The first trajectories of an adapter do not depend on how many
    are drawn. first: as many of each adapter are left out before the `count`.
    Returns (count, blocks, 4, rank), adapter by adapter.
    """
    masks = draw_balanced_masks(
        (INPUTS + settings.steps, settings.adapters, blocks),
        first + count // settings.adapters,
        settings.rank,
        settings.min_rank,
        generator,
    )[..., first:, :]  # (.., adapters, blocks, samples, rank)
    return _coefficients_of(masks.transpose(2, 3).flatten(1, 2), settings.scale)


def _coefficients_of(masks: Tensor, scale: float) -> Tensor:
    """(count, blocks, 4, rank) from masks (inputs + steps, count, blocks, rank)."""
    output = terminal_coefficients(masks[INPUTS:], scale)
    return torch.stack([*masks[:INPUTS], output], dim=2)


def trajectory_coefficients(draw: Draw, blocks: int, settings: AdapterSettings) -> Tensor:
    """Coefficients of the trajectories of one image that are to be run, adapter by adapter.

    Trajectory a * S + s is sample s of adapter a, of the S = draw.count. The generator is seeded
    for this draw alone, so the result depends on nothing else.
    Returns (A * S, blocks, 4, A * rank), float32, CPU.
    """
    count = settings.adapters * draw.count
    if draw.mode == "det":
        own = torch.ones(count, blocks, len(PROJECTIONS), settings.rank)
    elif draw.sampler == "balanced":
        generator = Generator().manual_seed(draw.seed)
        own = draw_balanced_trajectories(count, blocks, settings, generator, draw.first)
    else:
        generator = Generator().manual_seed((draw.seed + LATER_SEED * draw.first) % 2**32)
        own = draw_trajectories(count, blocks, settings, generator)
    return on_stacked_ranks(own, settings.adapters)


def on_stacked_ranks(own: Tensor, adapters: int) -> Tensor:
    """Each trajectory's coefficients on its own adapter's directions, zero on the others'.

    own: (A * S, blocks, 4, rank), adapter by adapter. Returns (A * S, blocks, 4, A * rank).
    """
    count, blocks, projections, rank = own.shape
    stacked = own.new_zeros(
        adapters, count // adapters, blocks, projections, adapters, rank, dtype=torch.float32
    )
    for adapter, part in enumerate(own.chunk(adapters)):
        stacked[adapter, :, :, :, adapter] = part
    return stacked.reshape(count, blocks, projections, adapters * rank)
