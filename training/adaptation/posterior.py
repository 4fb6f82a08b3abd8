"""A new checkpoint with a weight distribution around the adapters of a finished one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eulerlora.checkpoint.config import AdapterConfig, CheckpointConfig
from eulerlora.checkpoint.files import (
    load_checkpoint,
    read_training_images,
    save_checkpoint,
)
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.methods.posteriors import FitImages
from eulerlora.methods.registry import method_type, methods, plain_methods
from eulerlora.nn.method import FitSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora_contract.errors import CheckpointError, DataError
from eulerlora_contract.output_files import check_free
from eulerlora_contract.progress import track
from eulerlora_contract.sampling import Auto
from training.adaptation.objective import objective_and_batches
from training.calibration.calibrate import calibrate
from training.data.images import ImageParts, OodSet, evenly_spaced, pixel_batches
from training.optimisation.run import round_parameters
from training.recipe.schema import CALIBRATED_SAMPLES, AdapterRecipe
from training.reporting.model_card import model_card


@dataclass(frozen=True)
class RecipeFitSource:
    """The `FitSource` of a finished network and the data set of its recipe.

    config: with a recipe in the provenance. outliers: reads those of the recipe, which few methods
    need.
    """

    network: AdaptedVisionTransformer
    config: CheckpointConfig
    images: ImageParts
    device: torch.device
    outliers: Callable[[], OodSet | None]

    @cached_property
    def recipe(self) -> AdapterRecipe:
        return AdapterRecipe.model_validate(self.config.provenance["recipe"])

    @property
    def training_images(self) -> int:
        return len(self.images.parts["train"])

    @property
    def clip_norm(self) -> float:
        return self.recipe.training.clip_norm

    def inputs(self, part: Literal["train", "held-out"], count: int) -> FitImages:
        """Returns at most `count` evenly spaced images, as in a prediction.

        Held-out images are those of the part `calibration`.
        """
        name = "train" if part == "train" else "calibration"
        chosen = evenly_spaced(self.images.parts[name], count)
        (pixels,) = pixel_batches(chosen, self.config.preprocessing, len(chosen))
        labels = torch.tensor([image.label for image in chosen])
        return FitImages(pixels.to(self.device), labels)

    def losses(self, steps: int) -> Iterator[Tensor]:
        """Yields the mean loss of each step, with the objective and the batches of the recipe."""
        objective, batches = objective_and_batches(
            self.network, self.recipe, self.images, self.outliers()
        )
        endless = chain.from_iterable(batches.epoch(epoch, 0) for epoch in count())
        for step, (pixels, labels) in enumerate(
            track(islice(endless, steps), "SGD", "steps", steps)
        ):
            images, targets = pixels.to(self.device), labels.to(self.device)
            draw = objective.draw(batches.seed, step, 0)
            yield objective.loss(self.network, images, targets, draw) / objective.weight(targets)


def bayesianise(
    folder: Path,
    images: ImageParts,
    settings: FitSettings,
    out: Path,
    device: torch.device,
    outliers: Callable[[], OodSet | None],
) -> CheckpointConfig:
    """Writes the checkpoint of `folder` with a fitted weight distribution to `out`, calibrated.

    images: the checkpoint's data set. outliers: reads those of its recipe. The name of the
    checkpoint gets the method's name as suffix. The numbers of samples of its thresholds are those
    of the source, if that draws samples.
    Raises CheckpointError for a source without plain adapters or an `out` that is not empty.
    """
    check_free(out)
    checkpoint = load_checkpoint(folder)
    source = checkpoint.config
    if not checkpoint.network.method.plain_adapters:
        raise CheckpointError(
            folder,
            f"expected a checkpoint of the method {' or '.join(plain_methods())}, got "
            f"{source.method.name}",
        )
    if not isinstance(source.provenance.get("recipe"), dict):
        raise DataError(f"{folder}: expected a recipe in the checkpoint's provenance, got none")
    network, config = fit_posterior(settings, checkpoint.network, source, images, device, outliers)
    config = config.model_copy(
        update={
            "name": f"{source.name}-{config.method.name}"[:64],
            "provenance": source.provenance | {"fitted_to": checkpoint.revision},
        }
    )
    card, dtype = model_card(config, None), _stored_dtype(config)
    save_checkpoint(out, network, config, card, dtype, read_training_images(folder))
    return calibrate(out, images, device, _calibrated_samples(source))


def fit_posterior(
    settings: FitSettings,
    network: AdaptedVisionTransformer,
    config: CheckpointConfig,
    images: ImageParts,
    device: torch.device,
    outliers: Callable[[], OodSet | None],
) -> tuple[AdaptedVisionTransformer, CheckpointConfig]:
    """Returns a network with a fitted weight distribution, on the CPU, and its config.

    network: finished, with plain adapters; it is not usable afterwards. config: its config, with a
    recipe in the provenance. outliers: reads those of the recipe. The weights are rounded to the
    type of the stored ones; the config has no thresholds. Raises DataError as
    `check_calibration_part`.
    """
    check_calibration_part(settings, images)
    method = methods()[settings.name]
    fitted = method.fit(
        settings, RecipeFitSource(network.to(device), config, images, device, outliers)
    )
    fitted.cpu()
    round_parameters(fitted.adapter_parameters(), _stored_dtype(config))
    adapters = AdapterConfig(
        settings=fitted.settings, sha256=tensors_sha256(dict(fitted.adapter_parameters()))
    )
    return fitted, config.model_copy(
        update={
            "adapters": adapters,
            "method": fitted.method.settings,
            "thresholds": (),
            "features": None,
            "prediction_sets": (),
        }
    )


def check_calibration_part(settings: FitSettings, images: ImageParts) -> None:
    """Raises DataError for a fit to held-out images if the split has no calibration part.

    The test part may choose nothing, and the network was trained on the others.
    """
    held_out = methods()[settings.name].fits_to_held_out(settings)
    if held_out and "calibration" not in images.parts:
        raise DataError(
            "posterior.prior_precision: expected a value for a split without a calibration part "
            f"to choose it on, got none and the parts {', '.join(images.parts)}"
        )


def _stored_dtype(config: CheckpointConfig) -> torch.dtype:
    stored = config.provenance["recipe"].get("stored", "float32")
    dtype: torch.dtype = getattr(torch, stored)
    return dtype


def _calibrated_samples(source: CheckpointConfig) -> tuple[int | Auto, ...]:
    own = {entry.samples: None for entry in source.thresholds if entry.mode == "stoch"}
    sampled = method_type(source.method).is_sampled(source.adapters.settings)
    return tuple(own) if own and sampled else CALIBRATED_SAMPLES
