"""The objective of adapter training: a loss over trajectories that are drawn for every step."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Generator, Tensor

from eulerlora.coefficients import draw_trajectories, on_stacked_ranks
from eulerlora.rows import Rows
from eulerlora.vision_transformer import AdaptedVisionTransformer, adapted_block
from training.adaptation.best_epoch import BestEpoch
from training.fit.losses import Loss, image_weights, target_probabilities
from training.fit.objective import Objective, recomputed


class AdapterObjective(Objective[Tensor]):
    """The loss of adapters and heads on a frozen backbone.

    samples: stochastic samples per adapter and step. weighted_loss: one of `losses.LOSSES`.
    logit_adjustment: (classes,), added to the logits of images that belong to a class
    (`losses.log_frequency_ratio`); None for zeros. best_epoch: validated after each epoch; None
    keeps the adapters of the last epoch. An image has one view for all adapters, or one for each.
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
        logit_adjustment: Tensor | None = None,
        best_epoch: BestEpoch | None = None,
    ) -> None:
        super().__init__(network, rows_per_image=network.settings.adapters * samples)
        self.settings, self.depth = network.settings, network.depth
        self.samples = samples
        self.weighted_loss = weighted_loss
        self.class_weights, self.outlier_weight = class_weights, outlier_weight
        self.best_epoch = best_epoch
        self.logit_adjustment = logit_adjustment
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
        """images: (n, 3, size, size), or (n, adapters, 3, size, size). draw: the coefficients."""
        count = len(images)
        rows = Rows.of([self.samples] * count, self.settings.adapters)
        if images.ndim == 5:
            rows, images = rows.with_own_images(self.settings.adapters), images.flatten(0, 1)
        rows = rows.to(images.device)
        logits = network(images, rows, draw.repeat(count, 1, 1, 1), block=self.block)
        trajectories = logits.float().unflatten(0, (count, -1))  # (n, trajectories, classes)
        if self.logit_adjustment is not None:
            belongs = (labels >= 0)[:, None, None]
            trajectories = trajectories + belongs * self.logit_adjustment
        targets = target_probabilities(labels, trajectories.shape[-1])
        return self.weighted_loss(trajectories, targets, self._weights(labels))

    def after_epoch(self) -> None:
        """Validates the epoch, if its adapters may be kept."""
        if self.best_epoch is not None:
            self.best_epoch.validate()

    def averages(self) -> Mapping[str, Tensor]:
        """Returns the kept adapters and the metrics of the epochs."""
        return {} if self.best_epoch is None else self.best_epoch.tensors

    def weight(self, labels: Tensor) -> Tensor:
        return self._weights(labels).sum()

    def _weights(self, labels: Tensor) -> Tensor:
        return image_weights(labels, self.class_weights, self.outlier_weight)


def step_generator(seed: int, step: int) -> Generator:
    """Returns the generator of a step's draws."""
    state = np.random.SeedSequence((seed, step)).generate_state(1)
    return torch.Generator().manual_seed(int(state[0]))
