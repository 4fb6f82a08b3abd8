"""The training of a network in memory, by a recipe and its images.

`train_adapters` changes the network and the stored state of the run, and nothing else: it reads
no recipe and writes no checkpoint. With equal arguments, or continued from a stored state, it ends
with equal weights.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from typing import Literal

import torch
from accelerate import Accelerator
from torch import Tensor

from eulerlora.nn.method import LabelledBatch
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.settings import Provenance
from eulerlora_contract.errors import DataError
from eulerlora_contract.progress import track
from training.adaptation.objective import objective_and_batches
from training.data.images import (
    ImageParts,
    OodSet,
    evenly_spaced,
    pixel_batches,
)
from training.optimisation.batches import LoadedBatches
from training.optimisation.loop import optimise
from training.optimisation.run import Run
from training.recipe.schema import AdapterRecipe

__all__ = ["train_adapters"]


def train_adapters(
    network: AdaptedVisionTransformer,
    recipe: AdapterRecipe,
    images: ImageParts,
    outliers: OodSet | None,
    run: Run,
) -> Provenance:
    """Trains the network's adapters and heads in place; returns facts on the training.

    Args:
        network: On any device; it moves to that of the run.
        recipe: With the length of the training.
        images: With a train part, and a validation part if the recipe chooses the best epoch.
        outliers: Those of the recipe, None if it has none.
        run: Where its state is stored, and whether it continues from there.
    """
    network.to(run.accelerator.device)
    objective, batches = objective_and_batches(network, recipe, images, outliers, run.shard)
    length = batches.length
    result: Provenance = {"steps": 0, "seconds": 0.0}
    if length.epochs:
        result = {"epochs": length.epochs, "batch_size": length.batch_size}
        result |= asdict(optimise(objective, batches, run))
        if objective.validation is not None:
            result |= objective.validation.result()
    finished = _RecipeRun(network, recipe, images, outliers, batches, run.accelerator)
    network.method.after_training(network, finished)
    return result


@dataclass(frozen=True)
class _RecipeRun:
    """The `FinishedRun` of a recipe.

    Attributes:
        batches: Of this process.
    """

    network: AdaptedVisionTransformer
    recipe: AdapterRecipe
    images: ImageParts
    outliers: OodSet | None
    batches: LoadedBatches
    accelerator: Accelerator

    @property
    def image_count(self) -> int:
        return len(self.images.parts["train"])

    @property
    def clip_norm(self) -> float:
        return self.recipe.training.clip_norm

    def last_epoch(self) -> Iterator[LabelledBatch]:
        return self.batches.epoch(max(0, self.batches.length.epochs - 1), skip=0)

    def inputs(self, part: Literal["train", "calibration"], count: int) -> LabelledBatch:
        """Raises DataError for a part that the data set does not have."""
        if part not in self.images.parts:
            raise DataError(f"expected a part {part}, got {', '.join(self.images.parts)}")
        chosen = evenly_spaced(self.images.parts[part], count)
        whole = self.network.preprocessing.of_whole_images
        (pixels,) = pixel_batches(chosen, whole, len(chosen))
        labels = torch.tensor([image.label for image in chosen])
        return pixels.to(self.accelerator.device), labels

    def losses(self, steps: int) -> Iterator[Tensor]:
        """Yields the losses of whole batches, those of the first epochs, in every process."""
        objective, batches = objective_and_batches(
            self.network, self.recipe, self.images, self.outliers
        )
        endless = chain.from_iterable(batches.epoch(epoch, skip=0) for epoch in count())
        steps_taken = track(islice(endless, steps), "further steps", "steps", steps)
        for step, batch in enumerate(steps_taken):
            pixels, labels = (part.to(self.accelerator.device) for part in batch)
            draw = objective.draw(batches.seed, step, 0)
            yield objective.loss(self.network, pixels, labels, draw) / objective.weight(labels)

    def total(self, values: Tensor) -> Tensor:
        summed: Tensor = self.accelerator.reduce(values)
        return summed
