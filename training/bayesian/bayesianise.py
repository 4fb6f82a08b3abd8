"""A new checkpoint with a weight distribution around the adapters of a finished one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from eulerlora.checkpoint import check_free, load_checkpoint, save_checkpoint
from eulerlora.config import AdapterConfig, CheckpointConfig
from eulerlora.errors import DataError
from eulerlora.method_settings import (
    LaplaceSettings,
    MethodSettings,
    SWAGSettings,
    is_sampled,
)
from eulerlora.safetensor_files import tensors_sha256
from eulerlora.settings import Auto
from eulerlora.validation import validated
from eulerlora.vision_transformer import AdaptedVisionTransformer
from training.adaptation.losses import LOSSES
from training.adaptation.objective import AdapterObjective
from training.adaptation.train import class_weights
from training.augmentation.views import Transform, training_view
from training.bayesian.laplace import fit_laplace
from training.bayesian.source import Source, check_plain
from training.bayesian.swag import fit_swag
from training.bayesian.tfb import fit_tfb
from training.calibration.calibrate import calibrate
from training.data.labelled_images import ImageParts
from training.fit.batches import LoadedBatches
from training.fit.run_state import round_parameters
from training.recipe.schema import SAMPLES, AdapterRecipe
from training.reporting.model_card import model_card


@dataclass(frozen=True)
class Fitted:
    """A network with its method."""

    network: AdaptedVisionTransformer
    method: MethodSettings


Fit = Callable[[Source], Fitted]


@dataclass(frozen=True)
class TFBFit:
    """images: number of anchors, of the training part. tolerance: as in `fit_tfb`."""

    images: int
    tolerance: float

    def __call__(self, source: Source) -> Fitted:
        anchors = source.inputs("train", self.images).pixels
        return Fitted(*fit_tfb(source.checkpoint.network, anchors, self.tolerance))


@dataclass(frozen=True)
class LaplaceFit:
    """images: at most so many of the training part, and of the held-out part for the search.

    layers, structure: as in `LaplaceSettings`. prior_precision: None searches it.
    """

    images: int
    layers: str
    structure: str
    prior_precision: float | None

    def __call__(self, source: Source) -> Fitted:
        training = source.inputs("train", self.images).pixels
        fields = {
            "layers": self.layers,
            "structure": self.structure,
            "prior_precision": self.prior_precision or 1.0,
            "images": len(training),
        }
        return Fitted(
            *fit_laplace(
                source.checkpoint.network,
                training,
                len(source.images.parts["train"]),
                source.inputs(source.held_out, self.images),
                validated(LaplaceSettings, fields),
                search=self.prior_precision is None,
            )
        )


@dataclass(frozen=True)
class SWAGFit:
    """settings: of SGD. It trains with the objective and the views of the checkpoint's recipe."""

    settings: SWAGSettings

    def __call__(self, source: Source) -> Fitted:
        network, images = source.checkpoint.network, source.images
        recipe = AdapterRecipe.model_validate(source.checkpoint.config.provenance["recipe"])
        training = recipe.training

        def view(epoch: int) -> Transform:
            return training_view(network.preprocessing, recipe.seed, epoch, training.augmentation)

        objective = AdapterObjective(
            network,
            training.samples,
            LOSSES[training.loss],
            class_weights(training, images).to(source.device),
            sampling=training.sampling,
        )
        batches = LoadedBatches(images.parts["train"], view, training, recipe.seed)
        fitted = fit_swag(objective, network, batches, self.settings, training.clip_norm)
        return Fitted(fitted, self.settings)


def bayesianise(
    folder: Path, images: ImageParts, fit: Fit, out: Path, device: torch.device
) -> CheckpointConfig:
    """Writes the checkpoint of `folder` with a fitted weight distribution to `out`, calibrated.

    images: the checkpoint's data set. The name of the checkpoint gets the method's name as suffix.
    The numbers of samples of its thresholds are those of the source, if that draws samples.
    Raises CheckpointError for a source without plain adapters or an `out` that is not empty.
    """
    check_free(out)
    checkpoint = load_checkpoint(folder)
    check_plain(checkpoint)
    if not isinstance(checkpoint.config.provenance.get("recipe"), dict):
        raise DataError(f"{folder}: expected a recipe in the checkpoint's provenance, got none")
    checkpoint.network.to(device)
    fitted = fit(Source(checkpoint, images, device))
    network = fitted.network.cpu()
    stored = checkpoint.config.provenance["recipe"].get("stored", "float32")
    dtype: torch.dtype = getattr(torch, stored)
    round_parameters(network.adapter_parameters(), dtype)
    config = _config(checkpoint.config, checkpoint.revision, network, fitted.method)
    save_checkpoint(out, network, config, model_card(config, None), dtype)
    return calibrate(out, images, device, _calibrated_samples(checkpoint.config))


def _calibrated_samples(source: CheckpointConfig) -> tuple[int | Auto, ...]:
    own = {entry.samples: None for entry in source.thresholds if entry.mode == "stoch"}
    return tuple(own) if own and is_sampled(source.method, source.adapters.settings) else SAMPLES


def _config(
    source: CheckpointConfig,
    revision: str,
    network: AdaptedVisionTransformer,
    method: MethodSettings,
) -> CheckpointConfig:
    adapters = AdapterConfig(
        settings=network.settings, sha256=tensors_sha256(dict(network.adapter_parameters()))
    )
    return source.model_copy(
        update={
            "name": f"{source.name}-{method.name}"[:64],
            "adapters": adapters,
            "method": method,
            "thresholds": (),
            "features": None,
            "prediction_sets": (),
            "provenance": source.provenance | {"fitted_to": revision},
        }
    )
