"""Supervised pretraining of a backbone from scratch, stage by stage, on several data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from eulerlora.backbone import save_backbone
from eulerlora.config import Provenance
from eulerlora.errors import NonFiniteError
from eulerlora.safetensor_files import tensors_sha256
from training.data.bad_images import announce
from training.data.datasets import ImageParts, read_dataset
from training.energy import energy_used
from training.fit.loop import fit_batches
from training.fit.provenance import data_facts, provenance_of
from training.fit.run import Run, accelerator_on
from training.pretraining.classifier import Classifier, ClassifierObjective
from training.pretraining.image_tensor import ImageTensor, image_tensor, where_there_is_room
from training.pretraining.mixed_batches import MixedBatches
from training.pretraining.top_one import top_one
from training.recipe.pretraining import PretrainingRecipe


def pretrain(
    recipe: PretrainingRecipe,
    data: Path,
    out: Path,
    device: torch.device,
    resume: bool = False,
    skip_bad: bool = False,
    tensorboard: Path | None = None,
) -> None:
    """Trains the recipe's backbone and writes `out/backbone.safetensors`, its averaged weights.

    The file's metadata holds the recipe, the data sets, top-1 accuracy on each one's test part,
    how many images were seen, the time, and the energy where it is known. Each stage keeps its
    state in `out` until the backbone is written; with `resume` a run continues from those.
    skip_bad: images that cannot be used are left out and listed, on stderr and in the file's
    metadata. tensorboard: a folder for the stages' curves, if any.
    """
    images = [read_dataset(each, data, skip_bad) for each in recipe.data]
    accelerator = accelerator_on(device)
    if accelerator.is_main_process:
        announce(*images)
    runs = [
        Run(
            accelerator,
            seed=recipe.seed + index,
            recipe=recipe.settings_alone,
            state=state_file(out, index),
            resume=resume,
            tensorboard=None if tensorboard is None else tensorboard / f"stage-{index + 1}",
            name=f"stage {index + 1}/{len(recipe.stages)}",
        )
        for index in range(len(recipe.stages))
    ]
    resumed = any(run.resume and run.state.exists() for run in runs)
    with energy_used() as energy:
        model, facts = _train(recipe, images, runs)
    if not resumed and energy:  # of an earlier session nobody knows
        facts["energy_joules"] = dict(energy)
    if accelerator.is_main_process:
        _save(model, recipe, images, facts, out)
        for run in runs:
            run.state.unlink(missing_ok=True)
    accelerator.wait_for_everyone()


def state_file(out: Path, stage: int) -> Path:
    """Where the state of a stage, counted from 0, is kept until the backbone is written."""
    return out / f"stage-{stage + 1}.state.safetensors"


def _train(
    recipe: PretrainingRecipe, images: Sequence[ImageParts], runs: Sequence[Run]
) -> tuple[Classifier, dict[str, Any]]:
    """The last stage's averaged classifier, and what the stages were."""
    device = runs[0].accelerator.device
    sets = where_there_is_room([_training_tensor(recipe, each) for each in images], device)
    classes = [len(each.classes) for each in images]
    torch.manual_seed(recipe.seed)  # torchvision's own initialisation takes no generator
    previous: Classifier | None = None
    stages = []
    for run, stage in zip(runs, recipe.stages, strict=True):
        model = Classifier(recipe.backbone, stage, classes)
        if previous is not None:
            model.take_weights(previous)
        objective = ClassifierObjective(model, stage, run).to(device)
        batches = MixedBatches(sets, classes, stage, run)
        fitted = fit_batches(objective, batches, stage, run)
        stages.append(asdict(fitted) | {"images": stage.epochs * batches.images})
        previous = objective.averaged
    facts = {
        "stages": stages,
        "images_seen": sum(each["images"] for each in stages),
        "seconds": sum(each["seconds"] for each in stages),
    }
    return objective.averaged.eval(), facts


def _training_tensor(recipe: PretrainingRecipe, images: ImageParts) -> ImageTensor:
    kept = [*images.parts["train"], *images.parts.get("calibration", ())]
    return image_tensor(kept, recipe.backbone.image_size)


def _save(
    model: Classifier,
    recipe: PretrainingRecipe,
    images: Sequence[ImageParts],
    facts: Mapping[str, Any],
    out: Path,
) -> None:
    """Writes the backbone, rounded to what is stored and measured so."""
    dtype: torch.dtype = getattr(torch, recipe.stored)
    _round(model, dtype)
    accuracy = top_one(model, images)
    for name, share in accuracy.items():
        print(f"top-1 on the test part of {name}: {share:.4f}", flush=True)
    digest = tensors_sha256(model.backbone.state_dict())
    print(f"SHA-256 of the weights: {digest}", flush=True)
    found = {"top_one": accuracy, "sha256": digest, **facts}
    out.mkdir(parents=True, exist_ok=True)
    device = next(model.parameters()).device
    provenance = provenance_of(recipe, device) | _data_facts(images) | found
    save_backbone(out / "backbone.safetensors", model.backbone, provenance, dtype)


@torch.no_grad()
def _round(model: Classifier, dtype: torch.dtype) -> None:
    for name, parameter in model.backbone.named_parameters():
        parameter.copy_(parameter.to(dtype).float())
        if not parameter.isfinite().all():
            raise NonFiniteError(f"{name} has values that {dtype} cannot hold")


def _data_facts(images: Sequence[ImageParts]) -> Provenance:
    """What `data_facts` tells of each set, in the same form."""
    each = [data_facts(one) for one in images]
    names = sorted(name for one in each for name in one["skipped"]["names"])
    return {
        "data": " and ".join(one["data"] for one in each),
        "skipped": {"count": len(names), "names": names},
    }
