"""What a run prints: its data and their check, its length, and its result."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import torch
from tabulate import tabulate
from torch import Tensor

from eulerlora.methods.registry import method_type
from eulerlora.precision import faster_precision, missing_bfloat16
from eulerlora.sampling.adaptive import MIN_IMAGES
from eulerlora.scores.prediction_sets import min_units
from eulerlora.settings import BackboneSettings, Provenance
from eulerlora_contract.printable import printable
from eulerlora_contract.sampling import AUTO, PrecisionChoice
from training.adaptation.network import FrozenBackbone
from training.calibration.thresholds import KEPT_SHARE
from training.data.copies import DataCheck, PlacedImage
from training.data.images import ImageParts, class_counts
from training.data.splits import Part
from training.data.units import Units
from training.evaluation.intervals import tolerance_sample_size
from training.evaluation.report_schema import Report
from training.optimisation.batches import RunLength
from training.optimisation.step import warmup_steps
from training.recipe.schema import AdapterRecipe
from training.reporting.report import basis_notes, probe_note

_COVERAGE = 0.9
"""The usual coverage of prediction sets."""
_FEW = 100
"""Images below which a share of the test part has an interval of 10 points or more to each side."""


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines that may contain names of files."""
    for line in lines:
        print(printable(line), flush=True)


def data_lines(images: ImageParts) -> list[str]:
    """A table of images and groups by class and part."""
    parts = [part for part in get_args(Part) if part in images.parts]
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
    return [title, *_columns(rows)]


def check_lines(check: DataCheck, images: ImageParts, input_side: int) -> list[str]:
    """A table of what a check has found; only rows with images, unless there are none."""
    found: dict[str, list[str]] = {
        "unreadable": list(images.skipped),
        **{what: [_pair_text(*pair) for pair in pairs] for what, pairs in check.pairs.items()},
        f"smaller than the input of {input_side} pixels": [one.text for one in check.small],
    }
    shown = [(what, f"{len(texts):,}", texts[0]) for what, texts in found.items() if texts]
    if not shown:
        return ["check: no copies, no unreadable images, none smaller than the input"]
    return ["check:", *_columns([("found", "images", "such as"), *shown])]


def copies_lines(check: DataCheck, refused: bool = False) -> list[str]:
    """A line for each pair of copies; with `refused`, of those in two classes or parts."""
    kinds = [check.in_classes, check.in_parts] if refused else [*check.pairs.values()]
    pairs = dict.fromkeys(pair for pairs in kinds for pair in pairs)
    return ["copies:", *(f"  {_pair_text(*pair)}" for pair in pairs)] if pairs else []


def _pair_text(first: PlacedImage, other: PlacedImage) -> str:
    return f"{first.text} and {other.text}"


def basis_lines(images: ImageParts) -> list[str]:
    """A table of the images that later figures rest on, and what is too few for them."""
    test, held_out = images.parts["test"], images.parts[images.held_out]
    of_test, of_held_out = Units.of(test), Units.of(held_out)
    test_unit, unit = f"test {of_test.unit}s", f"{images.held_out} {of_held_out.unit}s"
    total = len(of_held_out)
    tested = min(of_test.counts(len(images.classes)))
    by_class = of_held_out.counts(len(images.classes))
    fewest, rarest = min(by_class), images.class_names[by_class.index(min(by_class))]
    few = {
        "accuracy and ECE": (f"{len(test):,} test images", len(test), _FEW),
        "results by class": (f"{tested:,} {test_unit} of the rarest class", tested, _FEW // 10),
        "OOD thresholds": (f"{total:,} {unit}", total, tolerance_sample_size(KEPT_SHARE)),
        f"prediction sets of {_COVERAGE}": (f"{fewest:,} {unit} of {rarest}", fewest,
                                           min_units(_COVERAGE)),
        "samples=auto": (f"{len(held_out):,} {images.held_out} images", len(held_out), MIN_IMAGES),
    }  # fmt: skip
    rows = [("figure", "rests on", "")]
    for figure, (basis, count, needed) in few.items():
        rows.append((figure, basis, "" if count >= needed else f"too few: {needed} are needed"))
    return _columns(rows)


def pretraining_notes(digests: Mapping[str, Tensor], pretrained: Tensor) -> Iterator[str]:
    """Yields a note for each held-out part with images with which the backbone was pretrained.

    Args:
        digests: Of the images (`image_digests`), by part.
        pretrained: Digests of those of the pretraining.
    """
    for part in ("validation", "calibration", "test"):
        held_out = digests.get(part, pretrained.new_empty(0))
        if seen := int(torch.isin(held_out, pretrained).sum()):
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
    adapters, training = recipe.adapters, recipe.training
    method = method_type(recipe.method)
    size = frozen.preprocessing.size
    weights = sum(parameter.numel() for parameter in frozen.backbone.parameters())
    sampled = training.sampling and method.is_sampled(adapters)
    threads = torch.get_num_threads()
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else (
        f"CPU, {threads} thread{'s' * (threads > 1)}"
    )  # fmt: skip
    drawn = f"{training.samples} sample{'s' * (training.samples > 1)}"
    sampling = f"{method.law_text(recipe.method, adapters)}, {drawn} a step"
    if training.views > 1:
        sampling += f" of {training.views} views"
    parts = (
        f"{method.members_text(adapters)} with a head each; {trainable:,} parameters; "
        f"{sampling if sampled else 'not sampled'}"
    )
    if recipe.whole_network is not None:
        parts = f"all weights and a head; {trainable:,} parameters"
    kept = "frozen" if recipe.whole_network is None else "trained"
    lines = [
        f"backbone: {recipe.backbone.weights}, {kept}; {weights:,} weights, {size} x {size} pixels",
        f"trained: {parts}",
        f"device: {where}, {_precision(training.precision, frozen.backbone.settings, device)}",
    ]
    if not length.epochs:
        return [*lines, f"run: no steps; the {training.head} head is the result"]
    epochs = f"{length.epochs} epoch{'s' * (length.epochs > 1)}"
    return [
        *lines,
        f"run: {length.steps:,} steps = {epochs} of {length.images:,} images in "
        f"batches of {length.batch_size}; {warmup_steps(length.steps, training.warmup_steps)} "
        f"steps of warm-up; learning rate {training.learning_rate:g}; {training.head} head",
    ]


def _precision(choice: PrecisionChoice, settings: BackboneSettings, device: torch.device) -> str:
    if choice == AUTO:
        decision = faster_precision(settings, device, of_training=True)
        return f"{decision.precision}: {decision.reason}"
    missing = missing_bfloat16(device) if choice == "bfloat16" else None
    return choice if missing is None else f"{choice}, which is slow: {missing}"


def loss_lines(recipe: AdapterRecipe, training: Provenance) -> list[str]:
    """A note if the mean loss of the last epoch is not below that of the first."""
    losses = training.get("loss_by_epoch", [])
    if len(losses) < 2 or losses[-1] < losses[0]:
        return []
    gain = f", or adapters.init_gain, now {recipe.adapters.init_gain:g}"
    return [
        f"note: the loss did not fall: {losses[0]:.3f} in the first epoch and "
        f"{losses[-1]:.3f} in the last; lower training.learning_rate, now "
        f"{recipe.training.learning_rate:g}{'' if recipe.whole_network else gain}"
    ]


def result_lines(
    report: Report, part: Part, training: Provenance, out: Path, report_folder: Path
) -> list[str]:
    """The results on a part of the published split (`Split`), and where they are."""
    lines = []
    for mode in report.modes:
        accuracy = mode.metrics["accuracy"]
        assert accuracy is not None
        lines.append(
            f"{part} accuracy, {mode.title}: {accuracy.text()} (95% interval, "
            f"{report.images:,} images)"
        )
    if report.probe is not None:
        lines.append(f"verdict: {probe_note(report.probe)}")
    if "best_epoch" in training:
        lines.append(f"kept: the adapters of epoch {training['best_epoch']}")
    triage = ""
    if report.target:  # which a policy requires
        triage = f"; for /triage with thresholds of its own: eulerlora policy fit {out} --data DIR"
    options = " --mode stoch" if report.method.sampled else ""
    return [
        *lines,
        *(f"note: {note}" for note in basis_notes(report)),
        f"report: {report_folder / 'report.md'}; model card: {out / 'README.md'}",
        f"next: eulerlora serve {out}, or eulerlora predict {out} IMAGE{options}{triage}",
    ]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines with aligned columns; numbers to the right."""
    inner = len(rows[0]) - 2
    numbers = all(
        cell.replace(",", "").isdigit() or not cell for row in rows[1:] for cell in row[1:-1]
    )
    align = ("left", *["right" if numbers else "left"] * inner, "left")
    table = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=align)
    return [line.rstrip() for line in table.splitlines()]
