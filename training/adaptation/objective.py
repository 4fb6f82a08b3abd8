"""The objective of adapter training: a loss over trajectories that are drawn for every step.

Ordinary adapter dropout is a control of the paper's stochastic training. Elements of the input of
each down projection are dropped, as with PEFT's `lora_dropout`:

    y = W0 x + b0 + B (c * (A dropout(x)))

The frozen projection gets the whole input. Prediction drops nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.classifier import trajectory_loss
from eulerlora.nn.attention import grouped_linear
from eulerlora.nn.method import RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer, Block, ProjectedBlock, adapted_block
from eulerlora.nn.rows import Rows, balanced_views
from training.adaptation.validation import EpochValidation
from training.data.augmentation import Transform, training_view
from training.data.images import OUTSIDE, ImageParts, LabelledImage, OodSet, class_counts
from training.evaluation.intervals import Floats, Ints
from training.evaluation.metrics import log_mean_probability
from training.optimisation.batches import IGNORED, LoadedBatches, Shard
from training.optimisation.step import Objective
from training.recipe.schema import AdapterRecipe, AdapterTraining

_trajectory_losses = partial(trajectory_loss, reduction="none")


def _mean_probability_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of the mean probability of every image, (n,); targets are probabilities."""
    return -(targets * log_mean_probability(logits.log_softmax(dim=-1))).sum(dim=-1)


def _balanced_counts(labels: Ints, class_balance: float) -> Floats:
    """How often each image is drawn on average, (n,); the sum is n.

    The images of a class together are drawn in proportion to size ** (1 - class_balance): 0 keeps
    the frequencies of the classes, 1 draws all classes equally often. OUTSIDE is drawn once.
    """
    inside = labels >= 0
    sizes = np.bincount(labels[inside]).astype(np.float64)
    shares = np.where(sizes > 0, sizes ** (1 - class_balance), 0.0)
    shares *= inside.sum() / shares.sum()
    per_image = shares / np.maximum(sizes, 1)
    return np.where(inside, per_image[labels * inside], 1.0)


def _log_frequency_ratio(labels: Ints, expected_counts: Floats, classes: int) -> Tensor:
    """The logarithm of drawn over present images of each class, (classes,) float32.

    Training adds it to the logits (logit adjustment, Menon et al., ICLR 2021). Classes without
    images have 0. `labels` and `expected_counts` are (n,).
    """
    inside = labels >= 0
    present = np.bincount(labels[inside], minlength=classes)
    drawn = np.bincount(labels[inside], weights=expected_counts[inside], minlength=classes)
    ratio = np.where(present > 0, drawn / np.maximum(present, 1), 1.0)
    return torch.from_numpy(np.log(ratio)).float()


def _class_frequencies(counts: Tensor, class_weights: Tensor) -> Tensor:
    """The classes' shares of the loss over the training images, (classes,) float32, with sum 1.

    These are the probabilities with the lowest loss for a network that cannot tell images apart,
    and so the target of images that belong to no class. Balanced draws do not change them, because
    `_log_frequency_ratio` corrects for the draws.

    Args:
        counts: (classes,), the training images per class, as they are.
        class_weights: (classes,), of the loss; equal weights give the frequencies of the images.
    """
    weighted = counts.double() * class_weights.double()
    return (weighted / weighted.sum()).float()


def _target_probabilities(labels: Tensor, outside: Tensor) -> Tensor:
    """One-hot labels, `outside` (classes,) for OUTSIDE, zeros for IGNORED; (n, classes)."""
    one_hot = F.one_hot(labels.clamp(min=0), len(outside)) * (labels >= 0).unsqueeze(-1)
    return one_hot + (labels == OUTSIDE).unsqueeze(-1) * outside


def _image_weights(labels: Tensor, class_weights: Tensor, outlier_weight: float) -> Tensor:
    """The weight of the label's class, and 0 for IGNORED, (n,).

    `outlier_weight` is the weight of OUTSIDE, in units of the mean class weight.
    """
    outlier = torch.stack([outlier_weight * class_weights.mean(), class_weights.new_zeros(())])
    return torch.where(
        labels >= 0, class_weights[labels.clamp(min=0)], outlier[(labels == IGNORED).long()]
    )


def _effective_number_weights(counts: Tensor, beta: float) -> Tensor:
    """Class weights proportional to (1 - beta) / (1 - beta^n), with sum 1, (classes,) float64.

    Effective number of samples, Cui et al., CVPR 2019. `counts` are the training images per class,
    all at least 1. `beta` is in [0, 1); 0 gives equal weights.
    """
    weights = (1 - beta) / (1 - beta ** counts.double())
    return weights / weights.sum()


@dataclass(frozen=True)
class DropoutBlock(ProjectedBlock):
    """A block with adapter dropout.

    Elements are independent over rows, tokens, features and projections. Every call draws new ones,
    so that the block must not be computed again in a backward pass.

    Attributes:
        probability: Of dropping an element; the others are divided by 1 - probability.
        generator: On the CPU.
    """

    probability: float
    generator: Generator

    def dropped(self, inputs: Tensor) -> Tensor:
        kept = torch.empty(inputs.shape).bernoulli_(1 - self.probability, generator=self.generator)
        return inputs * kept.to(inputs) / (1 - self.probability)

    def projection(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        down: Tensor,
        up: Tensor,
        coefficients: Tensor,
    ) -> Tensor:
        directions = grouped_linear(self.dropped(inputs), down)
        weighted = directions * coefficients.unsqueeze(1)  # (rows, tokens, rank)
        adapted = grouped_linear(weighted, up.mT)
        return F.linear(inputs, weight, bias) + adapted


_DROPOUT, _NOISE, _VIEW_ORDER = 1, 2, 3
"""Separate the draws of dropout, of single images and of views from those of the trajectories."""


@dataclass(frozen=True)
class _AdapterDraw:
    """The random input of a step.

    Attributes:
        row_draws: Of a number of images, image by image.
        block: Computes one block; with dropout it draws further elements at every call.
        views: Draws the views of further images.
    """

    row_draws: Callable[[int], RowDraws]
    block: Block
    views: Generator


class AdapterObjective(Objective[_AdapterDraw]):
    """The loss of adapters and heads on a frozen backbone.

    Args:
        class_weights: (classes,), on the network's device.
        counts: (classes,), the training images per class; None for equally many of each. Their
            shares, times the class weights, are the target of images that belong to no class.
        outlier_weight: Of an image that belongs to no class, in units of the mean class weight.
        logit_adjustment: (classes,), added to the logits of images that belong to a class.
        image_count: Of the training images, for a learned law and a method's own optimiser.
    """

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        settings: AdapterTraining,
        class_weights: Tensor,
        counts: Tensor | None = None,
        outlier_weight: float = 1.0,
        logit_adjustment: Tensor | None = None,
        validation: EpochValidation | None = None,
        image_count: int = 1,
    ) -> None:
        method, self.adapters = network.method, network.settings.adapters
        super().__init__(network, self.adapters * settings.samples)
        self.settings, self.method = settings, method
        self.divergence, self.constrain = network.divergence, network.constrain
        self.class_weights, self.outlier_weight = class_weights, outlier_weight
        counts = torch.ones_like(class_weights) if counts is None else counts.to(class_weights)
        self.outside = _class_frequencies(counts, class_weights)
        self.logit_adjustment, self.validation = logit_adjustment, validation
        self.image_count = image_count

    def draw(self, seed: int, step: int, process: int) -> _AdapterDraw:
        """One draw per trajectory, shared by all images of the step and the same in all processes.

        Or draws of each image; those and dropout differ between processes.
        """
        settings = self.settings
        row_draws: Callable[[int], RowDraws]
        if not settings.sampling:
            row_draws = self.method.det().to(self.class_weights).repeated
        elif self.method.noise_per_image:
            noise = _step_generator(seed, step, process, _NOISE)
            row_draws = partial(self._draws_of_each, generator=noise)
        else:
            drawn = self.method.sample(settings.samples, _step_generator(seed, step))
            row_draws = drawn.to(self.class_weights).repeated
        block: Block = adapted_block
        if settings.adapter_dropout:
            dropping = _step_generator(seed, step, process, _DROPOUT)
            block = DropoutBlock(settings.adapter_dropout, dropping)
        return _AdapterDraw(row_draws, block, _step_generator(seed, step, process, _VIEW_ORDER))

    def _draws_of_each(self, count: int, generator: Generator) -> RowDraws:
        parts = [self.method.sample(self.settings.samples, generator) for _ in range(count)]
        return RowDraws.cat(parts, [self.rows_per_image] * count).to(self.class_weights)

    def loss(
        self, network: Callable[..., Tensor], images: Tensor, labels: Tensor, draw: _AdapterDraw
    ) -> Tensor:
        """Takes images (n, adapters, 3, size, size) too, with a view for each adapter."""
        count, samples, adapters = len(images), self.settings.samples, self.adapters
        rows = Rows.of([samples] * count, adapters)
        if images.ndim == 5:
            rows, images = rows.with_own_images(adapters), images.flatten(0, 1)
        if self.settings.views > 1:
            sizes = samples, self.settings.views, adapters
            views = [balanced_views(*sizes, draw.views).flatten() for _ in range(count)]
            seen = rows.with_views(images, torch.cat(views))
            images, rows = seen.images, seen.rows
        rows = rows.to(images.device)
        logits = network(images, rows, draw.row_draws(count), block=draw.block)
        trajectories = logits.float().unflatten(0, (count, -1))  # (n, trajectories, classes)
        if self.logit_adjustment is not None:
            belongs = (labels >= 0)[:, None, None]
            trajectories = trajectories + belongs * self.logit_adjustment
        targets = _target_probabilities(labels, self.outside)
        weights = self._weights(labels)
        losses = _mean_probability_losses if self.settings.loss == "mean" else _trajectory_losses
        loss = losses(trajectories, targets) @ weights
        divergence = self.divergence()
        if divergence is None:
            return loss
        # The likelihood is a mean over adapters, the divergence a sum over them.
        return loss + divergence / (adapters * self.image_count) * weights.sum()

    def optimiser(
        self, parameters: Mapping[str, nn.Parameter], weight_decay: float
    ) -> torch.optim.Optimizer | None:
        return self.method.optimiser(parameters, self.image_count, weight_decay)

    def after_step(self) -> None:
        self.constrain()

    def after_epoch(self) -> None:
        if self.validation is not None:
            self.validation.validate()

    def epoch_metrics(self) -> Mapping[str, float]:
        return {} if self.validation is None else self.validation.last

    def extra_state(self) -> Mapping[str, Tensor]:
        return {} if self.validation is None else self.validation.tensors

    def weight(self, labels: Tensor) -> Tensor:
        return self._weights(labels).sum()

    def _weights(self, labels: Tensor) -> Tensor:
        return _image_weights(labels, self.class_weights, self.outlier_weight)


def _step_generator(seed: int, step: int, *purpose: int) -> Generator:
    state = np.random.SeedSequence((seed, step, *purpose)).generate_state(1)
    return torch.Generator().manual_seed(int(state[0]))


_WHOLE_BATCH = Shard()


def trained_images(images: ImageParts, outliers: OodSet | None) -> list[LabelledImage]:
    """The images of an epoch: the train part and the outliers, whose label is OUTSIDE."""
    return [*images.parts["train"], *([] if outliers is None else outliers.images)]


def objective_and_batches(
    network: AdaptedVisionTransformer,
    recipe: AdapterRecipe,
    images: ImageParts,
    outliers: OodSet | None,
    shard: Shard = _WHOLE_BATCH,
) -> tuple[AdapterObjective, LoadedBatches]:
    """The objective and the batches of a recipe, for its training and fits to its result.

    The network is on its device. `outliers` are those of the recipe, None if it has none.
    """
    settings, device = recipe.training, next(network.parameters()).device
    training = trained_images(images, outliers)
    labels = np.array([image.label for image in training])
    counts = _balanced_counts(labels, settings.class_balance) if settings.class_balance else None
    views = recipe.adapters.adapters if settings.augmented_views == "own" else None
    present = class_counts(images.parts["train"], len(images.classes))
    weights = torch.ones(len(images.classes))
    if settings.class_weights == "effective-number":
        weights = _effective_number_weights(present, settings.beta).float()

    def view(epoch: int) -> Transform:
        return training_view(
            network.preprocessing, recipe.seed, epoch, settings.augmentation, views
        )

    batches = LoadedBatches(training, view, settings, recipe.seed, shard, counts)
    validation = None
    if settings.best_epoch or settings.metrics_by_epoch:
        drawn = settings.metrics_by_epoch and network.method.is_sampled(network.settings)
        validation = EpochValidation(
            network,
            images.parts["validation"],
            batches.length.epochs,
            samples=recipe.evaluation.samples if drawn else 0,
            keep_best=settings.best_epoch,
            views=recipe.evaluation.views,
        )
    objective = AdapterObjective(
        network,
        settings,
        weights.to(device),
        counts=present,
        outlier_weight=1.0 if recipe.outliers is None else recipe.outliers.weight,
        logit_adjustment=None
        if counts is None
        else _log_frequency_ratio(labels, counts, len(images.classes)).to(device),
        validation=validation,
        image_count=len(training),
    )
    return objective, batches
