"""Supervised pretraining of a backbone from scratch, stage by stage."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from eulerlora.backbone import at_image_size, build_backbone, save_backbone
from training.augment import Transform, crop_and_flip, evaluation_view, training_view
from training.bad_images import announce
from training.batches import IGNORED
from training.datasets import ImageParts, LabelledImage, Pictures, read_dataset
from training.loop import fit
from training.objective import Objective
from training.progress import progress
from training.provenance import data_facts, provenance_of
from training.recipe import PretrainingRecipe, PretrainingStage
from training.recomputation import RecomputedBlocks
from training.run import Run, accelerator_on


class Classifier(nn.Module):
    """A backbone with one linear head on its class token's features."""

    def __init__(self, recipe: PretrainingRecipe, image_size: int, classes: int) -> None:
        super().__init__()
        self.backbone = build_backbone(
            recipe.backbone.model_copy(update={"image_size": image_size})
        )
        self.head = nn.Linear(recipe.backbone.width, classes)

    def recompute_activations(self) -> None:
        """Lets every block's activations be computed again in the backward pass."""
        encoder = self.backbone.encoder
        encoder.layers = RecomputedBlocks(OrderedDict(encoder.layers.named_children()))

    def forward(self, images: Tensor) -> Tensor:
        """images: (n, 3, image_size, image_size). Returns logits (n, classes)."""
        logits: Tensor = self.head(self.backbone(images))
        return logits

    def take_weights(self, smaller: "Classifier") -> None:
        """Continues from a classifier of another image size, positions interpolated."""
        resized = at_image_size(smaller.backbone, self.backbone.image_size)
        self.backbone.load_state_dict(resized.state_dict())
        self.head.load_state_dict(smaller.head.state_dict())


class ClassifierObjective(Objective):
    """Cross-entropy of a classifier, with label smoothing."""

    def __init__(self, model: Classifier, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, images: Tensor, labels: Tensor, step: int) -> Tensor:
        return F.cross_entropy(
            self.model(images).float(),
            labels,
            ignore_index=IGNORED,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )

    def weight(self, labels: Tensor) -> Tensor:
        return (labels != IGNORED).sum()

    def rows_per_image(self) -> int:
        return 1


def pretrain(
    recipe: PretrainingRecipe,
    data: Path,
    out: Path,
    device: torch.device,
    resume: bool = False,
    skip_bad: bool = False,
    tensorboard: Path | None = None,
) -> None:
    """Trains the recipe's backbone and writes `out/backbone.safetensors`.

    The file's metadata holds the recipe, the data set, the accuracy on its test part and the
    time. Each stage keeps its state in `out` until it is done, then its weights; with `resume`
    a run continues from those. skip_bad: images that cannot be used are left out and listed, on
    stderr and in the file's metadata. tensorboard: a folder for the stages' curves, if any.
    """
    images = read_dataset(recipe.data, data, skip_bad)
    train = [*images.parts["train"], *images.parts.get("calibration", ())]
    torch.manual_seed(recipe.seed)  # torchvision's own initialisation takes no generator
    previous: Classifier | None = None
    accelerator = accelerator_on(device)
    if accelerator.is_main_process:
        announce(images)
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
    stages = []
    for run, stage in zip(runs, recipe.stages, strict=True):
        model = Classifier(recipe, stage.image_size, len(images.classes)).to(accelerator.device)
        if stage.activation_checkpointing:
            model.recompute_activations()
        if previous is not None:
            model.take_weights(previous)
        stages.append(_run_stage(model, stage, train, run))
        previous = model
    if accelerator.is_main_process:
        _save(model, recipe, images, stages, out)
        for run in runs:
            run.state.unlink(missing_ok=True)
    accelerator.wait_for_everyone()


def state_file(out: Path, stage: int) -> Path:
    """Where the state of a stage, counted from 0, is kept until the backbone is written."""
    return out / f"stage-{stage + 1}.state.safetensors"


def _save(
    model: Classifier,
    recipe: PretrainingRecipe,
    images: ImageParts,
    stages: Sequence[Mapping[str, float]],
    out: Path,
) -> None:
    device = next(model.parameters()).device
    accuracy = _accuracy(model, images.parts["test"], recipe.stages[-1], device)
    print(f"accuracy on the test part of {images.name}: {accuracy:.4f}", flush=True)
    facts = data_facts(images) | {"test_accuracy": accuracy, "stages": stages}
    out.mkdir(parents=True, exist_ok=True)
    path, dtype = out / "backbone.safetensors", getattr(torch, recipe.stored)
    save_backbone(path, model.backbone, provenance_of(recipe) | facts, dtype)


def _run_stage(
    model: Classifier, stage: PretrainingStage, images: Sequence[LabelledImage], run: Run
) -> dict[str, float]:
    def view(epoch: int) -> Transform:
        return training_view(stage.image_size, run.seed, epoch, crop_and_flip)

    objective = ClassifierObjective(model, stage.label_smoothing)
    return asdict(fit(objective, images, view, stage, run))


@torch.inference_mode()
def _accuracy(
    model: Classifier,
    images: Sequence[LabelledImage],
    stage: PretrainingStage,
    device: torch.device,
) -> float:
    model.eval()
    transform = evaluation_view(stage.image_size)
    batches = DataLoader(Pictures(images, transform), stage.batch_size, num_workers=stage.workers)
    right = sum(
        int((model(pixels.to(device)).argmax(dim=-1).cpu() == labels).sum())
        for pixels, labels in progress(batches, "test")
    )
    return right / len(images)
