"""Trains adapters on a frozen backbone and leaves a calibrated, servable checkpoint."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torchvision.models import VisionTransformer

from eulerlora.backbone import at_image_size, load_backbone, published_backbone, settings_of
from eulerlora.checkpoint import CONFIG, check_free, load_checkpoint, save_checkpoint
from eulerlora.config import (
    AdapterConfig,
    BackboneConfig,
    CheckpointConfig,
    Preprocessing,
    Provenance,
)
from eulerlora.errors import NonFiniteError, SettingsError
from eulerlora.model import EulerLoRA
from eulerlora.safetensor_files import tensors_sha256
from eulerlora.vision_transformer import AdaptedVisionTransformer
from training.adaptation.objective import AdapterObjective
from training.adaptation.probe import fit_heads
from training.data.augmentation import Transform, training_view
from training.data.bad_images import announce
from training.data.datasets import (
    ImageParts,
    OodSet,
    class_counts,
    read_dataset,
    read_ood_set,
    read_outliers,
)
from training.energy import energy_used
from training.evaluation.calibration import calibrate
from training.evaluation.evaluate import evaluate
from training.evaluation.inference import SamplingOptions
from training.fit.class_weights import effective_number_weights
from training.fit.loop import fit
from training.fit.provenance import data_facts, provenance_of
from training.fit.run import Run, accelerator_on
from training.recipe.schema import AdapterRecipe, AdapterTraining, BackboneSource
from training.reporting.model_card import model_card, write_model_card
from training.reporting.report import write_report

REPORT = "report"


@dataclass(frozen=True)
class Frozen:
    """A frozen backbone, the name of its published weights if they are, and its provenance."""

    backbone: VisionTransformer
    published: str | None
    provenance: Provenance


def train(
    recipe: AdapterRecipe,
    recipe_folder: Path,
    data: Path,
    out: Path,
    device: torch.device,
    resume: bool = False,
    skip_bad: bool = False,
    tensorboard: Path | None = None,
) -> None:
    """Runs a recipe to its end: trains, saves, calibrates, evaluates, writes report and model card.

    The checkpoint appears in `out` whole once training is done. Until then the run's state is
    kept in the file that `state_file` names; with `resume` a run continues from it, and one that
    ended between saving and evaluating goes on there.
    recipe_folder: what a backbone file's path in the recipe is relative to. skip_bad: images that
    cannot be used are left out and listed, on stderr and in the provenance. tensorboard: a folder
    for the run's curves, if any; outside `out`, which must be free for the checkpoint.
    """
    if tensorboard is not None and tensorboard.resolve().is_relative_to(out.resolve()):
        raise SettingsError(f"the curves' folder {tensorboard} must lie outside {out}")
    finished = resume and (out / CONFIG).exists()
    if not finished:
        check_free(out)
    images = read_dataset(recipe.data, data, skip_bad)
    outside = [read_ood_set(each, data, skip_bad) for each in recipe.evaluation.ood]
    outliers = None
    if recipe.outliers is not None:
        outliers = read_outliers(recipe.outliers, data, skip_bad)
    accelerator = accelerator_on(device)
    if accelerator.is_main_process:
        announce(images, *outside, *([] if outliers is None else [outliers]))
    if not finished:
        settings = recipe.settings_alone
        run = Run(accelerator, recipe.seed, settings, state_file(out), resume, tensorboard)
        network, config = _train(recipe, recipe_folder, images, outliers, run)
        if accelerator.is_main_process:
            save_checkpoint(out, network, config, model_card(config, None), _dtype(recipe))
            run.state.unlink(missing_ok=True)
    if accelerator.is_main_process:
        asked = recipe.evaluation
        calibrate(out, images, device, asked.calibrated, asked.sampler)
        checkpoint = load_checkpoint(out)
        options = [SamplingOptions("det"), SamplingOptions("stoch", asked.samples)]
        ood = {each.name: each.images for each in outside}
        evaluation = evaluate(EulerLoRA(checkpoint, device), images, ood, options, asked.ood_images)
        write_report(out / REPORT, evaluation)
        write_model_card(out, out / REPORT)
    accelerator.wait_for_everyone()


def state_file(out: Path) -> Path:
    """Where the state of an unfinished run into `out` is kept: beside it."""
    return out.with_name(f"{out.name}.state.safetensors")


def _train(
    recipe: AdapterRecipe,
    recipe_folder: Path,
    images: ImageParts,
    outliers: OodSet | None,
    run: Run,
) -> tuple[AdaptedVisionTransformer, CheckpointConfig]:
    frozen = read_backbone(recipe.backbone, recipe_folder, _dtype(recipe))
    network = AdaptedVisionTransformer(frozen.backbone, recipe.adapters, len(images.classes))
    network.initialise(Generator().manual_seed(recipe.seed))
    if recipe.training.head == "linear-probe":
        fit_heads(network, images, run.accelerator.device)
    resumed = run.resume and run.state.exists()
    with energy_used() as energy:
        facts = train_adapters(network, recipe, images, outliers, run)
    if not resumed and energy:  # of an earlier session nobody knows
        facts["energy_joules"] = dict(energy)
    round_adapters(network.cpu(), _dtype(recipe))
    provenance = provenance_of(recipe, run.accelerator.device) | data_facts(images, outliers)
    return network, _config(recipe, network, frozen, images, provenance | {"training": facts})


def train_adapters(
    network: AdaptedVisionTransformer,
    recipe: AdapterRecipe,
    images: ImageParts,
    outliers: OodSet | None,
    run: Run,
) -> Provenance:
    """Fits adapters and heads in place; returns what the run was."""
    size = network.backbone.image_size
    weights = class_weights(recipe.training, images)
    outside = 1.0 if recipe.outliers is None else recipe.outliers.weight
    objective = AdapterObjective(network, recipe.training, weights, recipe.seed, outside)
    shown = [*images.parts["train"], *([] if outliers is None else outliers.images)]

    def view(epoch: int) -> Transform:
        return training_view(size, recipe.seed, epoch, recipe.training.augmentation)

    device = run.accelerator.device
    return asdict(fit(objective.to(device), shown, view, recipe.training, run))


def read_backbone(source: BackboneSource, recipe_folder: Path, dtype: torch.dtype) -> Frozen:
    """The backbone that a recipe names: a file, relative to the recipe, or published weights.

    A file's weights are rounded to `dtype`, as which the checkpoint will store them. Raises
    SettingsError for published weights at another image size than theirs, or that cannot be had.
    """
    if source.weights.endswith(".safetensors"):
        if source.file is not None:
            raise SettingsError("backbone.file is for published weights, not for a backbone file")
        file = load_backbone(recipe_folder / source.weights)
        backbone = at_image_size(file.backbone, source.image_size or file.backbone.image_size)
        _round(backbone.named_parameters(), dtype)
        return Frozen(backbone, None, file.provenance)
    if source.image_size is not None:
        raise SettingsError(
            f"backbone.image_size={source.image_size} wants a backbone file; "
            f"{source.weights} keeps the size it was published for"
        )
    given = None if source.file is None else recipe_folder / source.file
    return Frozen(published_backbone(source.weights, given), source.weights, {})


def round_adapters(network: AdaptedVisionTransformer, dtype: torch.dtype) -> None:
    """Rounds adapters and heads to what `dtype` can store, so that all that follows is measured
    on the weights as they will be loaded. Raises NonFiniteError for a value out of range.
    """
    _round(network.adapter_parameters(), dtype)


@torch.no_grad()
def _round(parameters: Iterable[tuple[str, nn.Parameter]], dtype: torch.dtype) -> None:
    for name, parameter in parameters:
        parameter.copy_(parameter.to(dtype).float())
        if not parameter.isfinite().all():
            raise NonFiniteError(f"{name} has values that {dtype} cannot hold")


def class_weights(settings: AdapterTraining, images: ImageParts) -> Tensor:
    """(classes,) float32, the weight of each class's loss; all ones without weighting."""
    if settings.class_weights == "none":
        return torch.ones(len(images.classes))
    counts = class_counts(images.parts["train"], len(images.classes))
    return effective_number_weights(counts, settings.beta).float()


def _dtype(recipe: AdapterRecipe) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, recipe.stored)
    return dtype


def _config(
    recipe: AdapterRecipe,
    network: AdaptedVisionTransformer,
    frozen: Frozen,
    images: ImageParts,
    provenance: Provenance,
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
        provenance=provenance,
    )
