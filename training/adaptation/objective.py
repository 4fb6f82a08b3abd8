"""The objective of adapter training: a loss over trajectories that are drawn for every step."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from eulerlora.coefficients import draw_trajectories, on_stacked_ranks
from eulerlora.rows import Rows
from eulerlora.vision_transformer import AdaptedVisionTransformer, adapted_block
from training.fit.losses import Loss, image_weights, target_probabilities
from training.fit.objective import Objective, recomputed


class AdapterObjective(Objective[Tensor]):
    """The loss of adapters and heads on a frozen backbone.

    samples: stochastic samples per adapter and step. weighted_loss: one of `losses.LOSSES`.
    class_weights: (classes,), on the network's device. outlier_weight: as in
    `losses.image_weights`. recompute: use activation checkpointing.
    """

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        samples: int,
        weighted_loss: Loss,
        class_weights: Tensor,
        outlier_weight: float = 1.0,
        recompute: bool = False,
    ) -> None:
        super().__init__(network, rows_per_image=network.settings.adapters * samples)
        self.settings, self.depth = network.settings, network.depth
        self.samples = samples
        self.weighted_loss = weighted_loss
        self.class_weights, self.outlier_weight = class_weights, outlier_weight
        self.block = recomputed(adapted_block) if recompute else adapted_block

    def draw(self, seed: int, step: int, process: int) -> Tensor:
        """Returns coefficients (trajectories, blocks, 4, adapters * rank), the same in all
        processes: one draw per trajectory, shared by all images of the step.
        """
        coefficients = draw_trajectories(
            self.rows_per_image, self.depth, self.settings, step_generator(seed, step)
        )
        stacked = on_stacked_ranks(coefficients, self.settings.adapters)
        return stacked.to(self.class_weights.device)

    def loss(
        self, network: Callable[..., Tensor], images: Tensor, labels: Tensor, draw: Tensor
    ) -> Tensor:
        """draw: the step's coefficients."""
        count = len(images)
        rows = Rows.of([self.samples] * count, self.settings.adapters).to(images.device)
        logits = network(images, rows, draw.repeat(count, 1, 1, 1), block=self.block)
        trajectories = logits.float().unflatten(0, (count, -1))  # (n, trajectories, classes)
        targets = target_probabilities(labels, trajectories.shape[-1])
        return self.weighted_loss(trajectories, targets, self._weights(labels))

    def weight(self, labels: Tensor) -> Tensor:
        return self._weights(labels).sum()

    def _weights(self, labels: Tensor) -> Tensor:
        return image_weights(labels, self.class_weights, self.outlier_weight)


def step_generator(seed: int, step: int) -> Generator:
    """Returns the generator of a step's draws."""
    state = np.random.SeedSequence((seed, step)).generate_state(1)
    return torch.Generator().manual_seed(int(state[0]))
