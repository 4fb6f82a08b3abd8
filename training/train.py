"""Trains adapters on a frozen backbone and leaves a calibrated, servable checkpoint."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor
from torchvision.models import VisionTransformer

from eulerlora.backbone import load_backbone, published_backbone, settings_of
from eulerlora.checkpoint import check_free, load_checkpoint, save_checkpoint, write_card
from eulerlora.coefficients import draw_trajectories, on_stacked_ranks
from eulerlora.config import (
    AdapterConfig,
    BackboneConfig,
    CheckpointConfig,
    Preprocessing,
    Provenance,
)
from eulerlora.errors import NonFiniteError
from eulerlora.model import EulerLoRA
from eulerlora.rows import Rows
from eulerlora.safetensor_files import tensors_sha256
from eulerlora.settings import Mode
from eulerlora.vision_transformer import AdaptedVisionTransformer
from training.augment import Transform, flip_and_rotate, training_view
from training.calibrate import calibrate
from training.class_weights import effective_number_weights
from training.datasets import ImageParts, class_counts, read_dataset
from training.evaluate import evaluate, read_ood_set
from training.loop import fit
from training.losses import mean_loss, trajectory_loss
from training.model_card import model_card
from training.provenance import provenance_of
from training.recipe import AdapterRecipe, AdapterTraining

LOSSES = {"trajectory": trajectory_loss, "mean": mean_loss}


@dataclass(frozen=True)
class Frozen:
    """A frozen backbone, the name of its published weights if they are, and its provenance."""

    backbone: VisionTransformer
    published: str | None
    provenance: Provenance


def train(
    recipe: AdapterRecipe, recipe_folder: Path, data: Path, out: Path, device: torch.device
) -> None:
    """Runs a recipe to its end: trains, saves, calibrates, evaluates, writes the model card.

    The checkpoint appears in `out` whole once training is done; an interruption before that
    leaves nothing, a later one a checkpoint without thresholds or figures.
    recipe_folder: what a backbone file's path in the recipe is relative to.
    """
    check_free(out)
    images = read_dataset(recipe.data, data)
    ood = {Path(name).name: read_ood_set(data / name) for name in recipe.evaluation.ood}
    frozen = read_backbone(recipe.backbone.weights, recipe_folder)
    network = AdaptedVisionTransformer(frozen.backbone, recipe.adapters, len(images.classes))
    network.initialise(Generator().manual_seed(recipe.seed))
    facts = train_adapters(network.to(device), recipe, images, device)
    dtype = getattr(torch, recipe.stored)
    round_adapters(network.cpu(), dtype)
    config = _config(recipe, network, frozen, images, facts)
    save_checkpoint(out, network, config, model_card(config, None), dtype)
    calibrate(out, images, device)
    checkpoint = load_checkpoint(out)
    questions: list[tuple[Mode, int]] = [("det", 1), ("stoch", recipe.evaluation.samples)]
    report = evaluate(EulerLoRA(checkpoint, device), images, ood, questions)
    write_card(out, model_card(checkpoint.config, report))


def train_adapters(
    network: AdaptedVisionTransformer,
    recipe: AdapterRecipe,
    images: ImageParts,
    device: torch.device,
) -> Provenance:
    """Fits adapters and heads in place; returns what the run was."""
    settings, size = recipe.training, network.backbone.image_size
    weights = _class_weights(settings, images)
    loss_of = LOSSES[settings.loss]
    generator = Generator().manual_seed(recipe.seed)
    blocks = len(network.blocks)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        trajectories = recipe.adapters.adapters * settings.samples
        own = draw_trajectories(trajectories, blocks, recipe.adapters, generator)
        shared = on_stacked_ranks(own, recipe.adapters.adapters).to(device)
        rows = Rows.of([settings.samples] * len(pixels), recipe.adapters.adapters).to(device)
        logits = network(pixels, rows, shared.repeat(len(pixels), 1, 1, 1))
        each = logits.float().unflatten(0, (len(pixels), trajectories))
        return loss_of(each, labels, None if weights is None else weights.to(device))

    def view(epoch: int) -> Transform:
        return training_view(size, recipe.seed, epoch, flip_and_rotate)

    parameters = [parameter for _, parameter in network.adapter_parameters()]
    train_images = images.parts["train"]
    return asdict(fit(parameters, loss, train_images, view, settings, recipe.seed, device))


def read_backbone(weights: str, recipe_folder: Path) -> Frozen:
    """The backbone that a recipe names: a file, relative to the recipe, or published weights."""
    if weights.endswith(".safetensors"):
        file = load_backbone(recipe_folder / weights)
        return Frozen(file.backbone, None, file.provenance)
    return Frozen(published_backbone(weights), weights, {})


@torch.no_grad()
def round_adapters(network: AdaptedVisionTransformer, dtype: torch.dtype) -> None:
    """Rounds adapters and heads to what `dtype` can store, so that all that follows is measured
    on the weights as they will be loaded. Raises NonFiniteError for a value out of range.
    """
    for name, parameter in network.adapter_parameters():
        parameter.copy_(parameter.to(dtype).float())
        if not parameter.isfinite().all():
            raise NonFiniteError(f"{name} has values that {dtype} cannot hold")


def _class_weights(settings: AdapterTraining, images: ImageParts) -> Tensor | None:
    if settings.class_weights == "none":
        return None
    counts = class_counts(images.parts["train"], len(images.classes))
    return effective_number_weights(counts, settings.beta).float()


def _config(
    recipe: AdapterRecipe,
    network: AdaptedVisionTransformer,
    frozen: Frozen,
    images: ImageParts,
    facts: Provenance,
) -> CheckpointConfig:
    shape = settings_of(network.backbone)
    return CheckpointConfig(
        name=recipe.name,
        backbone=BackboneConfig(
            settings=shape,
            published=frozen.published,
            sha256=tensors_sha256(network.backbone.state_dict()),
            provenance=frozen.provenance,
        ),
        adapters=AdapterConfig(
            settings=recipe.adapters, sha256=tensors_sha256(dict(network.adapter_parameters()))
        ),
        classes=images.classes,
        preprocessing=Preprocessing(size=shape.image_size),
        provenance=provenance_of(recipe) | {"data": images.name, "training": facts},
    )
