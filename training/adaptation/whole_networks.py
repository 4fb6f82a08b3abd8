"""Training of whole networks, to checkpoints of their own and one report."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Generator

from eulerlora.checkpoint.config import Provenance
from eulerlora.checkpoint.files import CONFIG, check_free, load_checkpoint, save_checkpoint
from eulerlora.nn.network import AdaptedVisionTransformer
from training.adaptation.network import (
    FrozenBackbone,
    available_source,
    member_folders,
    member_recipe,
    read_backbone,
    starts_from_previous,
    whole_network,
)
from training.adaptation.probe import fit_heads, head_accuracy
from training.adaptation.train import (
    TrainingImages,
    checkpoint_config,
    data_lines,
    evaluate_checkpoints,
    print_lines,
    print_run,
    read_images,
    state_file,
    stored_dtype,
    train_adapters,
    without_auto,
)
from training.data.images import report_skipped
from training.fit.run import (
    Run,
    Tracking,
    accelerator_on,
    data_provenance,
    round_parameters,
    run_provenance,
)
from training.recipe.schema import AdapterRecipe
from training.reporting.model_card import model_card


@dataclass(frozen=True)
class Training:
    """A run of whole networks and what its members share. recipe: of all members together."""

    recipe: AdapterRecipe
    recipe_folder: Path
    sets: TrainingImages
    accelerator: Accelerator
    resume: bool
    tracking: Tracking | None


def train_whole_networks(
    recipe: AdapterRecipe,
    recipe_folder: Path,
    data: Path,
    out: Path,
    device: torch.device,
    resume: bool = False,
    skip_bad: bool = False,
    tracking: Tracking | None = None,
) -> None:
    """Runs a recipe with `whole_network`: trains its members, calibrates them, and evaluates them.

    A single network has its checkpoint in `out`, the members of an ensemble in `member_folders`;
    each is a checkpoint like those of adapters. The report in `out` is that of all members
    together. Arguments, errors and the state of an unfinished run as in `adaptation.train.train`.
    """
    folders = member_folders(recipe, out)
    trained = [resume and (folder / CONFIG).exists() for folder in folders]
    for folder, done in zip(folders, trained, strict=True):
        if not done:
            check_free(folder)
    sets = read_images(recipe, data, skip_bad)
    accelerator = accelerator_on(device)
    if accelerator.is_main_process:
        report_skipped(sets.images, *sets.ood, *([sets.outliers] if sets.outliers else []))
        print_lines(data_lines(sets.images))
    run = Training(recipe, recipe_folder, sets, accelerator, resume, tracking)
    for index, done in enumerate(trained):
        if not done:
            _train_member(run, folders, index)
        accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        evaluate_checkpoints(recipe, sets, folders, out, device)
    accelerator.wait_for_everyone()


def _train_member(training: Training, folders: list[Path], index: int) -> None:
    """Trains one member and writes its checkpoint. folders: of all members."""
    sets, accelerator, folder = training.sets, training.accelerator, folders[index]
    recipe = member_recipe(training.recipe, index)
    recipe = recipe.model_copy(update={"backbone": available_source(recipe.backbone)})
    source = read_backbone(recipe.backbone, training.recipe_folder, stored_dtype(recipe))
    previous = folders[index - 1] if starts_from_previous(recipe, index) else None
    network, initial = _start(recipe, source, previous, sets, accelerator.device)
    if accelerator.is_main_process:
        print_lines([f"member {index + 1} of {len(folders)}"] if len(folders) > 1 else [])
        print_run(recipe, source, network, sets, accelerator.device)
    settings = without_auto(recipe, sets).without_source
    tracking = training.tracking
    if tracking is not None and len(folders) > 1:
        name = f"{tracking.run}-{folder.name}"
        tracking = replace(tracking, run=name, folder=tracking.folder / folder.name)
    run = Run(accelerator, recipe.seed, settings, state_file(folder), training.resume, tracking)
    result = initial | train_adapters(network, recipe, sets.images, sets.outliers, run)
    network.cpu()
    round_parameters(network.named_parameters(), stored_dtype(recipe))
    provenance = run_provenance(training.recipe, accelerator.device) | data_provenance(
        sets.images, sets.outliers
    )
    provenance |= {"training": result, "member": {"index": index, "seed": recipe.seed}}
    if accelerator.is_main_process:
        config = checkpoint_config(recipe, network, _origin(source), sets.images, provenance)
        save_checkpoint(folder, network, config, model_card(config, None), stored_dtype(recipe))
        run.state.unlink(missing_ok=True)


def _start(
    recipe: AdapterRecipe,
    source: FrozenBackbone,
    previous: Path | None,
    sets: TrainingImages,
    device: torch.device,
) -> tuple[AdaptedVisionTransformer, Provenance]:
    """Returns the network before its first step, and the accuracy of its first head.

    previous: checkpoint of the network to continue; None for the pretrained backbone.
    """
    assert recipe.whole_network is not None
    preprocessing = source.preprocessing.model_copy(
        update={"colour_constancy": recipe.colour_constancy}
    )
    backbone, classes = source.backbone, len(sets.images.classes)
    start = None if previous is None else load_checkpoint(previous).network
    network = whole_network(
        backbone if start is None else start.backbone, recipe.whole_network, classes, preprocessing
    )
    if start is not None:
        network.heads.load_state_dict(start.heads.state_dict())
        return network, {}
    network.heads.initialise(Generator().manual_seed(recipe.seed))
    if recipe.training.head == "random":
        return network, {}
    seed = recipe.seed if recipe.training.head == "bootstrap-probes" else None
    fit_heads(network, sets.images, device, seed)
    return network, {"initial_accuracy": head_accuracy(network, sets.images.parts["test"])}


def _origin(source: FrozenBackbone) -> FrozenBackbone:
    """Returns the backbone as one that the checkpoint stores; published weights are named."""
    named = {} if source.published is None else {"fine_tuned_from": source.published}
    return replace(source, published=None, provenance=source.provenance | named)
