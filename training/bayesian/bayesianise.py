"""A new checkpoint with a weight distribution around the adapters of a finished one."""

from pathlib import Path

import torch

from eulerlora.checkpoint.config import AdapterConfig, CheckpointConfig
from eulerlora.checkpoint.files import Checkpoint, check_free, load_checkpoint, save_checkpoint
from eulerlora.checkpoint.safetensor_files import tensors_sha256
from eulerlora.errors import CheckpointError, DataError
from eulerlora.methods.settings import (
    LaplaceSettings,
    MethodSettings,
    SWAGSettings,
    is_sampled,
)
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora_client.contract.sampling import Auto
from training.adaptation.objective import LOSSES, AdapterObjective
from training.adaptation.train import class_weights
from training.bayesian.laplace import fit_laplace
from training.bayesian.source import Source
from training.bayesian.swag import fit_swag
from training.bayesian.tfb import fit_tfb
from training.calibration.calibrate import calibrate
from training.data.augmentation import Transform, training_view
from training.data.images import ImageParts
from training.fit.batches import LoadedBatches
from training.fit.run import round_parameters
from training.recipe.schema import (
    PLAIN_ADAPTERS,
    SAMPLES,
    AdapterRecipe,
    LaplaceFit,
    PosteriorFit,
    SWAGFit,
    TFBFit,
)
from training.reporting.model_card import model_card


def bayesianise(
    folder: Path, images: ImageParts, settings: PosteriorFit, out: Path, device: torch.device
) -> CheckpointConfig:
    """Writes the checkpoint of `folder` with a fitted weight distribution to `out`, calibrated.

    images: the checkpoint's data set. The name of the checkpoint gets the method's name as suffix.
    The numbers of samples of its thresholds are those of the source, if that draws samples.
    Raises CheckpointError for a source without plain adapters or an `out` that is not empty.
    """
    check_free(out)
    checkpoint = load_checkpoint(folder)
    source = checkpoint.config
    _check_plain(folder, checkpoint)
    if not isinstance(source.provenance.get("recipe"), dict):
        raise DataError(f"{folder}: expected a recipe in the checkpoint's provenance, got none")
    network, config = fit_posterior(settings, checkpoint.network, source, images, device)
    config = config.model_copy(
        update={
            "name": f"{source.name}-{config.method.name}"[:64],
            "provenance": source.provenance | {"fitted_to": checkpoint.revision},
        }
    )
    save_checkpoint(out, network, config, model_card(config, None), _stored_dtype(config))
    return calibrate(out, images, device, _calibrated_samples(source))


def fit_posterior(
    settings: PosteriorFit,
    network: AdaptedVisionTransformer,
    config: CheckpointConfig,
    images: ImageParts,
    device: torch.device,
) -> tuple[AdaptedVisionTransformer, CheckpointConfig]:
    """Returns a network with a fitted weight distribution, on the CPU, and its config.

    network: finished, with plain adapters; it is not usable afterwards. config: its config, with a
    recipe in the provenance. The weights are rounded to the type of the stored ones; the config has
    no thresholds.
    """
    source = Source(network.to(device), config, images, device)
    match settings:
        case TFBFit():
            fitted, method = _fitted_tfb(settings, source)
        case LaplaceFit():
            fitted, method = _fitted_laplace(settings, source)
        case SWAGFit():
            fitted, method = _fitted_swag(settings, source)
    fitted.cpu()
    round_parameters(fitted.adapter_parameters(), _stored_dtype(config))
    adapters = AdapterConfig(
        settings=fitted.settings, sha256=tensors_sha256(dict(fitted.adapter_parameters()))
    )
    return fitted, config.model_copy(
        update={
            "adapters": adapters,
            "method": method,
            "thresholds": (),
            "features": None,
            "prediction_sets": (),
        }
    )


Fitted = tuple[AdaptedVisionTransformer, MethodSettings]


def _fitted_tfb(settings: TFBFit, source: Source) -> Fitted:
    anchors = source.inputs("train", settings.images).pixels
    return fit_tfb(source.network, anchors, settings.tolerance)


def _fitted_laplace(settings: LaplaceFit, source: Source) -> Fitted:
    training = source.inputs("train", settings.images).pixels
    return fit_laplace(
        source.network,
        training,
        len(source.images.parts["train"]),
        source.inputs(source.held_out, settings.images),
        LaplaceSettings(
            layers=settings.layers,
            structure=settings.structure,
            prior_precision=settings.prior_precision or 1.0,
            images=len(training),
        ),
        search=settings.prior_precision is None,
    )


def _fitted_swag(settings: SWAGFit, source: Source) -> Fitted:
    """Trains with the objective and the views of the recipe."""
    network, images = source.network, source.images
    recipe = AdapterRecipe.model_validate(source.config.provenance["recipe"])
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
    method = SWAGSettings(**settings.model_dump())
    return fit_swag(objective, network, batches, method, training.clip_norm), method


def _stored_dtype(config: CheckpointConfig) -> torch.dtype:
    stored = config.provenance["recipe"].get("stored", "float32")
    dtype: torch.dtype = getattr(torch, stored)
    return dtype


def _check_plain(folder: Path, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError for a method without plain adapters."""
    name = checkpoint.config.method.name
    if name not in PLAIN_ADAPTERS:
        raise CheckpointError(
            folder, f"expected a checkpoint of the method {' or '.join(PLAIN_ADAPTERS)}, got {name}"
        )


def _calibrated_samples(source: CheckpointConfig) -> tuple[int | Auto, ...]:
    own = {entry.samples: None for entry in source.thresholds if entry.mode == "stoch"}
    return tuple(own) if own and is_sampled(source.method, source.adapters.settings) else SAMPLES
