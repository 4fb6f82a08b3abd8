"""What a training run prints before its first step and after its last one."""

from collections.abc import Sequence
from pathlib import Path

import torch

from eulerlora.checkpoint.config import Provenance
from eulerlora.methods.settings import is_sampled, law_text, members_text
from eulerlora.prediction.precision import fastest_precision, missing_bfloat16
from eulerlora.settings import PrecisionChoice
from training.adaptation.backbone import FrozenBackbone
from training.data.labelled_images import ImageParts, class_counts
from training.evaluation.report_schema import Report
from training.fit.batches import RunLength
from training.fit.optimisation import warmup_steps
from training.recipe.schema import AdapterRecipe

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


def run_lines(
    recipe: AdapterRecipe,
    frozen: FrozenBackbone,
    trainable: int,
    length: RunLength,
    device: torch.device,
) -> list[str]:
    """Returns what a run trains, for how long and on which device. trainable: parameters."""
    adapters, training = recipe.adapters, recipe.training
    size = frozen.preprocessing.size
    weights = sum(parameter.numel() for parameter in frozen.backbone.parameters())
    sampled = training.sampling and is_sampled(recipe.method, adapters)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else (
        f"CPU, {torch.get_num_threads()} thread(s)"
    )  # fmt: skip
    sampling = f"{law_text(recipe.method, adapters)}, {training.samples} sample(s) a step"
    parts = (
        f"{members_text(recipe.method, adapters)} with a head each; {trainable:,} parameters; "
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
