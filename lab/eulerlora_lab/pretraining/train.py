"""Pretraining of a backbone, stage by stage, on several data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from eulerlora.checkpoint.weights import (
    BACKBONE_FILE,
    BackboneFile,
    load_backbone,
    save_backbone,
    tensors_sha256,
)
from eulerlora.settings import Preprocessing, Provenance
from eulerlora_contract.errors import SettingsError
from eulerlora_lab.pretraining.classifier import Classifier, ClassifierObjective
from eulerlora_lab.pretraining.recipe import PretrainingRecipe, PretrainingStage, PretrainingView
from training.data.augmentation import (
    CPU,
    Transform,
    View,
    camera_view,
    dermoscopy_or_camera_view,
    seeded,
)
from training.data.copies import data_digest, image_digests
from training.data.datasets import read_dataset, read_unlabelled
from training.data.images import (
    ImageParts,
    LabelledImage,
    OodSet,
    pixel_batches,
    report_skipped,
)
from training.optimisation.batches import LoadedBatches
from training.optimisation.loop import optimise
from training.optimisation.run import (
    Run,
    Tracking,
    accelerator_on,
    check_stored_state,
    data_provenance,
    round_parameters,
    run_provenance,
)
from training.recipe.schema import SOURCE


def pretrain(
    recipe: PretrainingRecipe,
    data: Path,
    out: Path,
    device: torch.device,
    resume: bool = False,
    skip_bad: bool = False,
    tracking: Tracking | None = None,
    restart: bool = False,
) -> None:
    """Trains the recipe's backbone and writes its averaged weights to `out/backbone.safetensors`.

    The file's metadata holds the recipe, the data sets, top-1 accuracy on their test parts, the
    number of images processed, and the time. Each stage stores its state in `out` until the
    backbone is written; `resume` continues from these states and leaves a finished backbone as it
    is, `restart` replaces both.

    `skip_bad`: skip unusable images and list them on stderr and in the metadata. `tracking`: of the
    stages' curves.

    Raises:
        SettingsError: For states or a backbone of another recipe, seed or images with `resume`, and
            for any without both options.
    """
    states = [stage_state_file(out, index) for index in range(len(recipe.stages))]
    path = out / BACKBONE_FILE
    if path.exists() and not restart:
        if not resume:
            raise SettingsError(f"{path} exists; --restart replaces it")
        trained = load_backbone(path).provenance.get("recipe", {})
        expected = recipe.model_dump(mode="json", exclude=SOURCE)
        if {key: trained.get(key) for key in expected} != expected:
            raise SettingsError(
                f"{path}: expected the backbone of this recipe and seed, got another one; "
                "--restart replaces it"
            )
        print(f"{path} is finished", flush=True)
        return
    for state in states:
        check_stored_state(state, resume, restart)
    images = _PretrainingImages(
        [read_dataset(settings, data, skip_bad) for settings in recipe.data],
        [read_unlabelled(settings, data, skip_bad) for settings in recipe.unlabelled],
    )
    start = load_backbone(data / recipe.start) if recipe.start else None
    accelerator = accelerator_on(device)
    if accelerator.is_main_process:
        report_skipped(*images.labelled, *images.unlabelled)
        for state in () if resume else states:
            state.unlink(missing_ok=True)
    runs = [
        Run(
            accelerator,
            seed=recipe.seed + index,
            recipe=recipe.without_source,
            state=state,
            data_digest=images.digest,
            resume=resume,
            tracking=None
            if tracking is None
            else replace(tracking, run=f"{tracking.run}-stage-{index + 1}"),
            name=f"stage {index + 1}/{len(recipe.stages)}",
        )
        for index, state in enumerate(states)
    ]
    model, facts = _train_stages(recipe, images, start, runs)
    if accelerator.is_main_process:
        _save(model, recipe, images, facts, out)
        for run in runs:
            run.state.unlink(missing_ok=True)
    accelerator.wait_for_everyone()


def stage_state_file(out: Path, stage: int) -> Path:
    """Where a stage's state is stored until the backbone is written; stages count from 0."""
    return out / f"stage-{stage + 1}.state.safetensors"


@dataclass(frozen=True)
class _PretrainingSet:
    """The images of a set and how a run shows them.

    Attributes:
        images: With labels as in `_mixed_batches`.
        views: As in `PretrainingData`.
        shown: Views of an image in a batch.
    """

    images: Sequence[LabelledImage]
    views: PretrainingView
    shown: int = 1


@dataclass(frozen=True)
class _PretrainingImages:
    """All images of a recipe, in the order of its sets."""

    labelled: Sequence[ImageParts]
    unlabelled: Sequence[OodSet]

    @cached_property
    def digest(self) -> str:
        """`data_digest` of the images that are trained on."""
        parts = {f"labelled {i}": one.parts["train"] for i, one in enumerate(self.labelled)}
        parts |= {f"unlabelled {i}": one.images for i, one in enumerate(self.unlabelled)}
        classes = [name for images in self.labelled for name in images.class_names]
        return data_digest(parts, classes, {part: image_digests(parts[part]) for part in parts})

    @property
    def classes(self) -> list[int]:
        return [len(images.classes) for images in self.labelled]

    def training_sets(self, recipe: PretrainingRecipe) -> list[_PretrainingSet]:
        """The images to train on; the calibration part is unused."""
        first_class = [0, *accumulate(self.classes)]
        sets = [
            _PretrainingSet(
                [replace(i, label=first + i.label) for i in images.parts["train"]], data.views
            )
            for images, data, first in zip(self.labelled, recipe.data, first_class, strict=False)
        ]
        number = count(first_class[-1])
        return sets + [
            _PretrainingSet([replace(i, label=next(number)) for i in images.images], "cameras", 2)
            for images in self.unlabelled
        ]


def _everyday_view(size: int) -> v2.Compose:
    """A random view as `camera_view`, for everyday pictures: a crop, a horizontal flip."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(0.35, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


def _mixed_batches(
    sets: Sequence[_PretrainingSet], stage: PretrainingStage, run: Run
) -> LoadedBatches:
    """Batches of the images of several sets, in random order.

    The label of a labelled image is its class, counted over all sets. Every unlabelled image has a
    label of its own, above those of the classes, and two views in a batch. A view depends on seed,
    epoch and image only.
    """
    kinds: dict[PretrainingView, View] = {
        "natural": _everyday_view(stage.image_size),
        "cameras": camera_view(stage.image_size),
        "half-cameras": dermoscopy_or_camera_view(Preprocessing(size=stage.image_size)),
    }
    views: list[LabelledImage] = []
    transforms: list[View] = []  # of each view
    shown: list[range] = []
    for part, repeats in zip(sets, stage.repeats or (1,) * len(sets), strict=True):
        for image in (image for _ in range(repeats) for image in part.images):
            shown.append(range(len(views), len(views) + part.shown))
            views += [image] * part.shown
            transforms += [kinds[part.views]] * part.shown

    def view(epoch: int) -> Transform:
        def transform(index: int, pixels: Tensor) -> Tensor:
            with seeded(CPU, run.seed, epoch, index):
                return transforms[index](pixels)

        return transform

    return LoadedBatches(views, view, stage, run.seed, run.shard, shown=shown)


def _train_stages(
    recipe: PretrainingRecipe,
    images: _PretrainingImages,
    start: BackboneFile | None,
    runs: Sequence[Run],
) -> tuple[Classifier, Provenance]:
    shape = start.backbone.settings if start else recipe.backbone
    assert shape is not None  # the recipe has one of both
    device = runs[0].accelerator.device
    sets = images.training_sets(recipe)
    torch.manual_seed(recipe.seed)  # torchvision's initialisation takes no generator
    previous: Classifier | None = None
    stages = []
    for run, stage in zip(runs, recipe.stages, strict=True):
        model = Classifier(shape, stage, images.classes, start)
        if previous is not None:
            model.load_smaller(previous)
        objective = ClassifierObjective(model.to(device), stage)
        batches = _mixed_batches(sets, stage, run)
        result = optimise(objective, batches, run)
        stages.append(asdict(result) | {"images": batches.length.images_after(result.steps)})
        previous = objective.averaged
    facts: Provenance = {
        "start": start.provenance if start else None,
        "stages": stages,
        "images_seen": sum(stage["images"] for stage in stages),
        "seconds": sum(stage["seconds"] for stage in stages),
    }
    return objective.averaged.fold_stem(), facts


def _save(
    model: Classifier,
    recipe: PretrainingRecipe,
    images: _PretrainingImages,
    facts: Mapping[str, Any],
    out: Path,
) -> None:
    """Writes the backbone, rounded to the stored type before its accuracy is measured."""
    dtype: torch.dtype = getattr(torch, recipe.stored)
    round_parameters(model.backbone.named_parameters(), dtype)
    accuracy = _top_one(model, images.labelled)
    for name, value in accuracy.items():
        print(f"top-1 accuracy on the test part of {name}: {value:.4f}", flush=True)
    digest = tensors_sha256(model.backbone.state_dict())
    print(f"SHA-256 of the weights: {digest}", flush=True)
    measured = {"top_one": accuracy, "sha256": digest, **facts}
    out.mkdir(parents=True, exist_ok=True)
    device = next(model.parameters()).device
    data = data_provenance(*images.labelled, *images.unlabelled)
    provenance = run_provenance(recipe, device) | data | measured
    save_backbone(out / BACKBONE_FILE, model.backbone, provenance, dtype, model.preprocessing)


BATCH = 256


@torch.inference_mode()
def _top_one(model: Classifier, sets: Sequence[ImageParts]) -> dict[str, float]:
    """The accuracy of each set's head on its test part, by data set name."""
    device = next(model.parameters()).device
    accuracy = {}
    for head, images in enumerate(sets):
        test = images.parts["test"]
        predicted = [
            model(pixels.to(device)).logits.split(model.classes, dim=-1)[head].argmax(dim=-1).cpu()
            for pixels in pixel_batches(test, model.preprocessing, BATCH)
        ]
        labels = torch.tensor([image.label for image in test])
        accuracy[images.name] = float((torch.cat(predicted) == labels).double().mean())
    return accuracy
