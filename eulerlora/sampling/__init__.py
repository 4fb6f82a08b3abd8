"""What is drawn at random: masks, coefficients, and how many samples an image gets.

masks = draw_masks((3, 8), rank=20, min_rank=10, generator=generator)  # (3, 8, 20), mean 1
coefficients = terminal_coefficients(masks, scale=1.0)  # (8, 20), at O after 3 Euler steps
"""

from eulerlora.sampling.masks import (
    PROJECTIONS,
    det_coefficients,
    draw_balanced_masks,
    draw_balanced_trajectories,
    draw_masks,
    draw_trajectories,
    terminal_coefficients,
)

__all__ = [
    "PROJECTIONS",
    "det_coefficients",
    "draw_balanced_masks",
    "draw_balanced_trajectories",
    "draw_masks",
    "draw_trajectories",
    "terminal_coefficients",
]
