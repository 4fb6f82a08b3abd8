"""Training of adapters or whole networks, to a calibrated checkpoint with report and model card."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from eulerlora.checkpoint.config import AdapterConfig, BackboneConfig, CheckpointConfig, Provenance
from eulerlora.checkpoint.files import CONFIG, check_free, load_checkpoint, save_checkpoint
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.errors import SettingsError
from eulerlora.methods.registry import method_type
from eulerlora.model import EulerLoRA
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.prediction.precision import fastest_precision, missing_bfloat16
from eulerlora.settings import PrecisionChoice
from eulerlora_client.printable import printable
from training.adaptation.network import (
    FrozenBackbone,
    available_source,
    fine_tuned,
    initial_network,
    member_folders,
    member_recipe,
    read_backbone,
    starts_from_previous,
)
from training.adaptation.objective import objective_and_batches, trained_images
from training.adaptation.posterior import fit_posterior
from training.adaptation.probe import fit_heads, head_accuracy
from training.adaptation.validation import EpochValidation
from training.calibration.calibrate import calibrate
from training.data.datasets import (
    pretraining_images,
    read_dataset,
    read_ood_set,
    read_outliers,
)
from training.data.digests import image_digests
from training.data.images import (
    ImageParts,
    LabelledImage,
    OodSet,
    class_counts,
    report_skipped,
)
from training.evaluation.evaluate import evaluate
from training.evaluation.inference import SamplingOptions
from training.evaluation.report_schema import Report
from training.fit.batches import RunLength
from training.fit.loop import fit
from training.fit.optimisation import warmup_steps
from training.fit.run import (
    Run,
    Tracking,
    accelerator_on,
    data_provenance,
    round_parameters,
    run_provenance,
)
from training.recipe.schema import AdapterRecipe
from training.reporting.model_card import model_card, write_model_card
from training.reporting.report import seen_note, write_report

REPORT = "report"


@dataclass(frozen=True)
class TrainingImages:
    """All images of a recipe: its data set, the out-of-distribution sets, and the outliers."""

    images: ImageParts
    ood: list[OodSet]
    outliers: OodSet | None


@dataclass(frozen=True)
class _Training:
    """A run and what its members share.

    source: the backbone before the training. pretrained: images of the data set with which it was
    pretrained. folders: of the members' checkpoints.
    """

    recipe: AdapterRecipe
    source: FrozenBackbone
    sets: TrainingImages
    pretrained: Sequence[LabelledImage]
    folders: Sequence[Path]
    accelerator: Accelerator
    resume: bool
    tracking: Tracking | None

    @cached_property
    def digests(self) -> Mapping[str, Tensor]:
        """Digests of the images that the weights depend on, those of validation included."""
        trained = trained_images(self.sets.images, self.sets.outliers)
        used = [*trained, *self.sets.images.parts.get("validation", ())]
        return {
            "adapters": image_digests(used).unique(),
            "backbone": image_digests(self.pretrained).unique(),
        }


def train(
    recipe: AdapterRecipe,
    recipe_folder: Path,
    data: Path,
    out: Path,
    device: torch.device,
    resume: bool = False,
    skip_bad: bool = False,
    tracking: Tracking | None = None,
) -> None:
    """Runs a recipe: trains, saves, calibrates, evaluates, and writes report and model card.

    A checkpoint appears in `out` atomically after training, those of an ensemble of whole networks
    in `member_folders`. Until then, the state of a training is in `state_file` of its folder;
    `resume` continues from it, or with the next member or the evaluation if the checkpoint exists.
    The report in `out` is that of all members together. recipe_folder: base of relative paths in
    the recipe. skip_bad: skip unusable images and list them on stderr and in the provenance.
    tracking: of the training curves, with a folder outside of `out`. Prints the data and the run
    before the first step, and the test accuracy at the end. Raises SettingsError, DataError,
    NonFiniteError or StorageError.
    """
    if tracking is not None and tracking.folder.resolve().is_relative_to(out.resolve()):
        raise SettingsError(f"expected a --track-dir outside of {out}, got {tracking.folder}")
    folders = member_folders(recipe, out)
    finished = [resume and (folder / CONFIG).exists() for folder in folders]
    for folder, done in zip(folders, finished, strict=True):
        if not done:
            check_free(folder)
    sets = _read_images(recipe, data, skip_bad)
    accelerator = accelerator_on(device)
    if accelerator.is_main_process:
        report_skipped(sets.images, *sets.ood, *([sets.outliers] if sets.outliers else []))
        _print(data_lines(sets.images))
    if not all(finished):
        recipe = recipe.model_copy(update={"backbone": available_source(recipe.backbone)})
        source = read_backbone(recipe.backbone, recipe_folder, getattr(torch, recipe.stored))
        pretrained = pretraining_images(source.provenance, recipe.data, data)
        if accelerator.is_main_process:
            _print(pretraining_notes(sets.images, pretrained))
        training = _Training(
            recipe, source, sets, pretrained, folders, accelerator, resume, tracking
        )
        for index, done in enumerate(finished):
            if not done:
                _train_member(training, index)
            accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        _evaluate_checkpoints(recipe, sets, folders, out, device)
    accelerator.wait_for_everyone()


def _train_member(training: _Training, index: int) -> None:
    """Trains a member, counted from 0, and writes its checkpoint."""
    sets, accelerator, folders = training.sets, training.accelerator, training.folders
    folder, images, device = folders[index], sets.images, accelerator.device
    recipe = member_recipe(training.recipe, index)
    dtype: torch.dtype = getattr(torch, recipe.stored)
    source = training.source
    previous = folders[index - 1] if starts_from_previous(recipe, index) else None
    network = initial_network(recipe, source, len(images.classes), previous)
    initial: Provenance = {}
    if previous is None and recipe.training.head != "random":
        seed = recipe.seed if recipe.training.head == "bootstrap-probes" else None
        fit_heads(network, images, device, seed)
        initial["initial_accuracy"] = head_accuracy(network, images.parts["test"])
    length = _length(recipe, sets)
    if accelerator.is_main_process:
        _print([f"member {index + 1} of {len(folders)}"] if len(folders) > 1 else [])
        trainable = sum(p.numel() for p in network.parameters() if p.requires_grad)
        _print(run_lines(recipe, source, trainable, length, device))
    tracking = training.tracking
    if tracking is not None and len(folders) > 1:
        name = f"{tracking.run}-{folder.name}"
        tracking = replace(tracking, run=name, folder=tracking.folder / folder.name)
    settings = _without_auto(recipe, length).without_source
    run = Run(accelerator, recipe.seed, settings, state_file(folder), training.resume, tracking)
    result = initial | train_adapters(network, recipe, images, sets.outliers, run)
    network.cpu()
    whole = recipe.whole_network is not None
    round_parameters(network.named_parameters() if whole else network.adapter_parameters(), dtype)
    if not accelerator.is_main_process:
        return
    provenance = run_provenance(training.recipe, device) | data_provenance(images, sets.outliers)
    provenance |= {"training": result}
    if whole:
        source = fine_tuned(source)
        provenance |= {"member": {"index": index, "seed": recipe.seed}}
    config = _checkpoint_config(recipe, network, source, images, provenance)
    if recipe.posterior is not None:
        network, config = fit_posterior(
            recipe.posterior, network, config, images, device, lambda: sets.outliers
        )
    save_checkpoint(
        folder,
        network,
        config,
        model_card(config, None),
        dtype,
        training.digests,
    )
    run.state.unlink(missing_ok=True)


def state_file(out: Path) -> Path:
    """Returns the file, beside `out`, that stores the state of an unfinished run."""
    return out.with_name(f"{out.name}.state.safetensors")


def train_adapters(
    network: AdaptedVisionTransformer,
    recipe: AdapterRecipe,
    images: ImageParts,
    outliers: OodSet | None,
    run: Run,
) -> Provenance:
    """Fits the network's adapters and heads in place and returns the result of the run."""
    settings, device = recipe.training, run.accelerator.device
    network.to(device)
    if settings.epochs == 0:
        return {"steps": 0, "seconds": 0.0}
    length = RunLength.of(settings, len(trained_images(images, outliers)))
    validation = _validation(network, recipe, images, length.epochs)
    objective, batches = objective_and_batches(
        network, recipe, images, outliers, run.shard, validation
    )
    result = {"epochs": length.epochs, "batch_size": length.batch_size}
    result |= asdict(fit(objective, batches, settings, run))
    if validation is not None:
        result |= validation.result()
    last = batches.epoch(length.epochs - 1, skip=0)
    network.method.after_training(network, last, run.accelerator.reduce)
    return result


def _validation(
    network: AdaptedVisionTransformer, recipe: AdapterRecipe, images: ImageParts, epochs: int
) -> EpochValidation | None:
    """Returns what measures each epoch, or None if the recipe asks for nothing of it."""
    settings = recipe.training
    if not (settings.best_epoch or settings.metrics_by_epoch):
        return None
    drawn = method_type(recipe.method).is_sampled(recipe.adapters)
    sampled = settings.metrics_by_epoch and drawn
    return EpochValidation(
        network,
        images.parts["validation"],
        epochs,
        samples=recipe.evaluation.samples if sampled else 0,
        keep_best=settings.best_epoch,
    )


def _read_images(recipe: AdapterRecipe, data: Path, skip_bad: bool) -> TrainingImages:
    images = read_dataset(recipe.data, data, skip_bad)
    ood = [read_ood_set(settings, data, skip_bad) for settings in recipe.evaluation.ood]
    outliers = None
    if recipe.outliers is not None:
        outliers = read_outliers(recipe.outliers, data, skip_bad)
    return TrainingImages(images, ood, outliers)


def _evaluate_checkpoints(
    recipe: AdapterRecipe,
    sets: TrainingImages,
    folders: Sequence[Path],
    out: Path,
    device: torch.device,
) -> None:
    """Calibrates the checkpoints of a run, and evaluates them as one model.

    folders: `out`, or those of an ensemble's members. Writes the report to `out`, and the model
    card of a single checkpoint.
    """
    settings = recipe.evaluation
    for folder in folders:
        calibrate(folder, sets.images, device, settings.calibrated, settings.sampler)
    model, *others = [EulerLoRA(load_checkpoint(folder), device) for folder in folders]
    options = [SamplingOptions("det"), SamplingOptions("stoch", settings.samples)]
    evaluation = evaluate(
        model, sets.images, sets.ood, options, settings.ood_images, others=others, folder=folders[0]
    )
    write_report(out / REPORT, evaluation)
    if not others:
        write_model_card(out, out / REPORT)
    training = model.config.provenance["training"]
    _print(result_lines(evaluation.report, training, folders[0], out / REPORT))


def _length(recipe: AdapterRecipe, sets: TrainingImages) -> RunLength:
    return RunLength.of(recipe.training, len(trained_images(sets.images, sets.outliers)))


def _without_auto(recipe: AdapterRecipe, length: RunLength) -> AdapterRecipe:
    """Returns the recipe with the length of its run: the state of a run continues no other."""
    numbers = {"epochs": length.epochs, "batch_size": length.batch_size}
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=numbers)})


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(printable(line), flush=True)


def _checkpoint_config(
    recipe: AdapterRecipe,
    network: AdaptedVisionTransformer,
    frozen: FrozenBackbone,
    images: ImageParts,
    provenance: Provenance,
) -> CheckpointConfig:
    return CheckpointConfig(
        name=recipe.name,
        backbone=BackboneConfig(
            settings=network.backbone.settings,
            published=frozen.published,
            sha256=tensors_sha256(network.backbone.state_dict()),
            provenance=frozen.provenance,
        ),
        adapters=AdapterConfig(
            settings=recipe.adapters, sha256=tensors_sha256(dict(network.adapter_parameters()))
        ),
        method=recipe.method,
        classes=images.classes,
        preprocessing=network.preprocessing,
        provenance=provenance,
    )


PARTS = ("train", "validation", "calibration", "test")


def data_lines(images: ImageParts) -> list[str]:
    """Returns a table of images and groups by class and part, and the notes of the data set."""
    parts = [part for part in PARTS if part in images.parts]
    counts = {part: class_counts(images.parts[part], len(images.classes)) for part in parts}
    rows = [("class", *parts, "")]
    for index, name in enumerate(images.classes):
        described = "" if name.description == name.name else name.description
        rows.append((name.name, *(f"{counts[part][index]:,}" for part in parts), described))
    rows.append(("images", *(f"{len(images.parts[part]):,}" for part in parts), ""))
    groups = {part: {image.cluster for image in images.parts[part]} - {None} for part in parts}
    if any(groups.values()):
        note = "no group is in two parts"
        if sum(map(len, groups.values())) > len(set().union(*groups.values())):
            note = "some groups are in two parts"
        rows.append(("groups", *(f"{len(groups[part]):,}" for part in parts), note))
    title = f"data: {images.name}; {len(images.classes)} classes"
    return [title, *_columns(rows), *(f"note: {note}" for note in images.notes)]


def pretraining_notes(images: ImageParts, pretrained: Sequence[LabelledImage]) -> Iterator[str]:
    """Yields a note for each held-out part with images with which the backbone was pretrained."""
    names = {image.name for image in pretrained}
    for part in (name for name in images.parts if name != "train"):
        held_out = images.parts[part]
        if seen := sum(image.name in names for image in held_out):
            yield (
                f"note: the backbone was pretrained with {seen:,} of the {len(held_out):,} {part} "
                "images; figures that rest on them are too good"
            )


def run_lines(
    recipe: AdapterRecipe,
    frozen: FrozenBackbone,
    trainable: int,
    length: RunLength,
    device: torch.device,
) -> list[str]:
    """Returns what a run trains, for how long and on which device. trainable: parameters."""
    adapters, training = recipe.adapters, recipe.training
    method = method_type(recipe.method)
    size = frozen.preprocessing.size
    weights = sum(parameter.numel() for parameter in frozen.backbone.parameters())
    sampled = training.sampling and method.is_sampled(adapters)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else (
        f"CPU, {torch.get_num_threads()} thread(s)"
    )  # fmt: skip
    sampling = f"{method.law_text(recipe.method, adapters)}, {training.samples} sample(s) a step"
    parts = (
        f"{method.members_text(adapters)} with a head each; {trainable:,} parameters; "
        f"{sampling if sampled else 'not sampled'}"
    )
    if recipe.whole_network is not None:
        parts = f"all weights and a head; {trainable:,} parameters"
    if recipe.posterior is not None:
        parts += f"; then {recipe.posterior.name} is fitted to them"
    kept = "frozen" if recipe.whole_network is None else "trained"
    lines = [
        f"backbone: {recipe.backbone.weights}, {kept}; {weights:,} weights, {size} x {size} pixels",
        f"trained: {parts}",
        f"device: {where}, {_precision(training.precision, device)}",
    ]
    if not length.epochs:
        return [*lines, f"run: no steps; the {training.head} head is the result"]
    return [
        *lines,
        f"run: {length.steps:,} steps = {length.epochs} epochs of {length.images:,} images in "
        f"batches of {length.batch_size}; {warmup_steps(length.steps, training.warmup_steps)} "
        f"steps of warm-up; learning rate {training.learning_rate:g}; {training.head} head",
    ]


def _precision(choice: PrecisionChoice, device: torch.device) -> str:
    """Returns the precision of a run, and why it is slow where the device does not have it."""
    precision = fastest_precision(choice, device)
    missing = missing_bfloat16(device) if precision == "bfloat16" else None
    return precision if missing is None else f"{precision}, which is slow: {missing}"


def result_lines(report: Report, training: Provenance, out: Path, report_folder: Path) -> list[str]:
    """Returns the accuracy on the test part by mode, where the results are, and what to do next."""
    lines = []
    for mode in report.modes:
        samples = "" if mode.mode == "det" else f", {mode.samples} samples per adapter"
        accuracy = mode.metrics["accuracy"]
        assert accuracy is not None
        lines.append(
            f"test accuracy, {mode.mode}{samples}: {accuracy.value:.3f} "
            f"[{accuracy.low:.3f}, {accuracy.high:.3f}] (95% interval, {report.images:,} images)"
        )
    if "initial_accuracy" in training:
        lines.append(
            f"the linear probe that the run started from: {training['initial_accuracy']:.3f}"
        )
    if "best_epoch" in training:
        lines.append(f"kept: the adapters of epoch {training['best_epoch']}")
    return [
        *lines,
        *([f"note: {seen_note(report)}"] if report.seen else []),
        f"report: {report_folder / 'report.md'}; model card: {out / 'README.md'}",
        f"next: eulerlora serve {out}, or eulerlora predict {out} IMAGE --mode stoch",
    ]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows as lines with aligned columns; all but the first and last to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if index in (0, last) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
