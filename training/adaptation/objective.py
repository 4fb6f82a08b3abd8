"""The objective of adapter training: a loss over trajectories that are drawn for every step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Generator, Tensor

from eulerlora.methods.settings import IVONSettings
from eulerlora.nn.network import AdaptedVisionTransformer, Block, adapted_block
from eulerlora.nn.rows import RowDraws, Rows
from training.adaptation.dropout import DropoutBlock
from training.adaptation.losses import Loss, image_weights, target_probabilities
from training.adaptation.validation import EpochValidation
from training.fit.ivon import Posterior
from training.fit.objective import Objective, recomputed

DROPOUT, NOISE = 1, 2
"""Separate the draws of dropout and of single images from those of the trajectories."""


@dataclass(frozen=True)
class AdapterDraw:
    """The random input of a step.

    images: returns the draws of a number of images, image by image. block: computes one block; with
    dropout it draws further elements at every call.
    """

    images: Callable[[int], RowDraws]
    block: Block


class AdapterObjective(Objective[AdapterDraw]):
    """The loss of adapters and heads on a frozen backbone.

    samples: stochastic samples per adapter and step. weighted_loss: one of `losses.LOSSES`.
    logit_adjustment: (classes,), added to the logits of images that belong to a class
    (`losses.log_frequency_ratio`); None for zeros. validation: measures each epoch; None for none.
    patience: epochs without a lower validation loss after which the run is finished; None for all.
    An image has one view for all adapters, or one for each.
    class_weights: (classes,), on the network's device. outlier_weight: as in
    `losses.image_weights`. recompute: use activation checkpointing; not with dropout. sampling:
    False trains with the draws of mode det. dropout: probability of adapter dropout. image_count:
    of the training images, by which the divergence of a learned law from its prior is divided.
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
        validation: EpochValidation | None = None,
        sampling: bool = True,
        dropout: float = 0.0,
        patience: int | None = None,
        image_count: int = 1,
    ) -> None:
        super().__init__(
            network, network.settings.adapters * samples, _posterior(network, image_count)
        )
        self.settings, self.method = network.settings, network.method
        self.divergence, self.constrain = network.divergence, network.constrain
        self.samples = samples
        self.weighted_loss = weighted_loss
        self.class_weights, self.outlier_weight = class_weights, outlier_weight
        self.validation, self.patience = validation, patience
        self.sampling, self.dropout, self.image_count = sampling, dropout, image_count
        self.logit_adjustment = logit_adjustment
        self.block = recomputed(adapted_block) if recompute else adapted_block

    def draw(self, seed: int, step: int, process: int) -> AdapterDraw:
        """Returns one draw per trajectory, shared by all images of the step and the same in all
        processes, or draws of each image. Those and dropout differ between processes.
        """
        generator = step_generator(seed, step)
        images: Callable[[int], RowDraws]
        if self.sampling and self.method.noise_per_image:
            own = step_generator(seed, step, process, NOISE)
            images = partial(self._own_draws, generator=own)
        else:
            drawn = (
                self.method.sample(self.samples, generator) if self.sampling else self.method.det()
            )
            images = drawn.to(self.class_weights).repeated
        block: Block = self.block
        if self.dropout:
            block = DropoutBlock(self.dropout, step_generator(seed, step, process, DROPOUT))
        return AdapterDraw(images, block)

    def _own_draws(self, count: int, generator: Generator) -> RowDraws:
        """Returns the draws of `count` images, each with its own."""
        parts = [self.method.sample(self.samples, generator) for _ in range(count)]
        return RowDraws.cat(parts, [self.rows_per_image] * count).to(self.class_weights)

    def loss(
        self, network: Callable[..., Tensor], images: Tensor, labels: Tensor, draw: AdapterDraw
    ) -> Tensor:
        """images: (n, 3, size, size), or (n, adapters, 3, size, size)."""
        count = len(images)
        rows = Rows.of([self.samples] * count, self.settings.adapters)
        if images.ndim == 5:
            rows, images = rows.with_own_images(self.settings.adapters), images.flatten(0, 1)
        rows = rows.to(images.device)
        logits = network(images, rows, draw.images(count), block=draw.block)
        trajectories = logits.float().unflatten(0, (count, -1))  # (n, trajectories, classes)
        if self.logit_adjustment is not None:
            belongs = (labels >= 0)[:, None, None]
            trajectories = trajectories + belongs * self.logit_adjustment
        targets = target_probabilities(labels, trajectories.shape[-1])
        weights = self._weights(labels)
        loss = self.weighted_loss(trajectories, targets, weights)
        divergence = self.divergence()
        if divergence is None:
            return loss
        return loss + divergence / self.image_count * weights.sum()

    def after_step(self) -> None:
        """Moves the tensors into the admissible sets of the method."""
        self.constrain()

    def after_epoch(self) -> None:
        """Validates the epoch."""
        if self.validation is not None:
            self.validation.validate()

    def epoch_metrics(self) -> Mapping[str, float]:
        """Returns the validation metrics of the last epoch."""
        return {} if self.validation is None else self.validation.last

    @property
    def finished(self) -> bool:
        """True if the validation loss has not decreased for `patience` epochs."""
        if self.validation is None or self.patience is None:
            return False
        return self.validation.epochs_without_gain() >= self.patience

    def averages(self) -> Mapping[str, Tensor]:
        """Returns the kept adapters and the metrics of the epochs."""
        return {} if self.validation is None else self.validation.tensors

    def weight(self, labels: Tensor) -> Tensor:
        return self._weights(labels).sum()

    def _weights(self, labels: Tensor) -> Tensor:
        return image_weights(labels, self.class_weights, self.outlier_weight)


def _posterior(network: AdaptedVisionTransformer, image_count: int) -> Posterior | None:
    """Returns what IVON fits to a network of its method.

    The loss is a mean over adapters, each of which has a posterior from all images.
    """
    method = network.method.settings
    if not isinstance(method, IVONSettings):
        return None
    images = image_count * network.settings.adapters / method.kl_weight
    return Posterior(images, method.initial_curvature, method.curvature_decay)


def step_generator(seed: int, step: int, *purpose: int) -> Generator:
    """Returns the generator of a step's draws. purpose: numbers that separate several draws."""
    state = np.random.SeedSequence((seed, step, *purpose)).generate_state(1)
    return torch.Generator().manual_seed(int(state[0]))
