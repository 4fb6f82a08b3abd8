"""What adapter training minimises: the loss of trajectories drawn anew for each step."""

import numpy as np
from torch import Generator, Tensor

from eulerlora.coefficients import draw_trajectories, on_stacked_ranks
from eulerlora.rows import Rows
from eulerlora.vision_transformer import AdaptedVisionTransformer, adapted_block
from training.fit.losses import image_weights, mean_loss, trajectory_loss, wanted_shares
from training.fit.objective import Objective
from training.fit.recomputation import recomputed
from training.recipe.schema import AdapterTraining

LOSSES = {"trajectory": trajectory_loss, "mean": mean_loss}


class AdapterObjective(Objective):
    """The loss of adapters whose coefficients are drawn anew for each step.

    One draw per trajectory, shared by the step's images; a function of the seed and the step, so
    that micro-batches, processes and a resumed run all see the same. class_weights: (classes,).
    outside: the weight of images of none of the classes, as in `losses.image_weights`.
    """

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        training: AdapterTraining,
        class_weights: Tensor,
        seed: int,
        outside: float = 1.0,
    ) -> None:
        super().__init__()
        self.network = network
        if training.activation_checkpointing:
            network.block = recomputed(adapted_block)
        self.training_settings = training
        self.seed = seed
        self.outside = outside
        self.class_weights: Tensor
        self.register_buffer("class_weights", class_weights)

    def forward(self, images: Tensor, labels: Tensor, step: int) -> Tensor:
        count, samples = len(images), self.training_settings.samples
        settings = self.network.settings
        own = draw_trajectories(
            settings.adapters * samples,
            self.network.depth,
            settings,
            step_generator(self.seed, step),
        )
        shared = on_stacked_ranks(own, settings.adapters).to(images.device)
        rows = Rows.of([samples] * count, settings.adapters).to(images.device)
        logits = self.network(images, rows, shared.repeat(count, 1, 1, 1))
        trajectories = logits.float().unflatten(0, (count, -1))
        shares = wanted_shares(labels, trajectories.shape[-1])
        weights = image_weights(labels, self.class_weights, self.outside)
        return LOSSES[self.training_settings.loss](trajectories, shares, weights)

    def weight(self, labels: Tensor) -> Tensor:
        return image_weights(labels, self.class_weights, self.outside).sum()

    def rows_per_image(self) -> int:
        return self.network.settings.adapters * self.training_settings.samples


def step_generator(seed: int, step: int) -> Generator:
    """The generator of one step's draws."""
    state = np.random.SeedSequence((seed, step)).generate_state(1)
    return Generator().manual_seed(int(state[0]))
