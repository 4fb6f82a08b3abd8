"""Estimated hours, memory and disk space of training runs, from a measurement on this machine.

A shortened network of the run's shape, with random weights, is timed. The cost of a run is
extrapolated in the number of blocks, rows and steps; decoding and reports are left out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.checkpoint.files import BACKBONE, DEFAULT_CHECKPOINT
from eulerlora.checkpoint.published_weights import PUBLISHED, absent_weights, from_torchvision
from eulerlora.checkpoint.safetensor_files import read_metadata
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.prediction.precision import fastest_precision
from eulerlora.sampling.adaptive import MAX_SAMPLES
from eulerlora.settings import AUTO, AdapterSettings, BackboneSettings, Precision
from training.adaptation.network import DOWNLOADED, EMBEDDED, train_all_weights
from training.adaptation.objective import AdapterObjective, trajectory_loss
from training.fit.batches import RunLength
from training.recipe.schema import NO_ADAPTERS, AdapterRecipe, BackboneSource
from training.reproduction.prerequisites import ImageCounts

MEASURED_BLOCKS = (2, 4)
SAMPLES, CLASSES, REPEATS = 4, 10, 2
MEASURED_ROWS = 16
"""Rows of a timed pass. With one row most of the time of a whole network's step is that of its
gradients' memory, which a step of a batch needs only once.
"""
PROCESS_BYTES = 0.9e9
"""Memory of the program and its libraries."""
MOMENTS = 3  # the gradient and the two moments of AdamW
FEATURES = 3  # parts of the features of the distance, each as wide as the backbone
REPORT_BYTES = 3e6


@dataclass(frozen=True)
class RowCost:
    """The cost of one row of a network.

    training_s, prediction_s: seconds of a step and of a prediction. saved_bytes: memory that a
    step keeps for the backward pass.
    """

    training_s: float
    prediction_s: float
    saved_bytes: float


@dataclass(frozen=True)
class RunEstimate:
    """hours: None if the number of images is unknown. memory_bytes: greatest; on a GPU, the GPU's.
    disk_bytes: of the checkpoint, its report and the state of the unfinished run.
    """

    hours: float | None
    memory_bytes: float
    disk_bytes: float


def estimate(
    recipe: AdapterRecipe, folder: Path, counts: ImageCounts | None, device: torch.device
) -> RunEstimate | None:
    """Returns the estimate of a run; None if the file of its backbone is missing.

    folder: of the recipe. counts: images of its data set; None if unknown.
    """
    shape = backbone_shape(recipe.backbone, folder)
    if shape is None:
        return None
    training, adapters = recipe.training, recipe.adapters
    whole = recipe.whole_network
    precision = fastest_precision(training.precision, device)
    cost = measured_cost(
        shape, precision, training.activation_checkpointing, device, whole is not None
    )
    with torch.device("meta"):
        network = build_network(VisionTransformer(shape), adapters, CLASSES, method=recipe.method)
    if whole is not None:
        network = train_all_weights(network)
    frozen = sum(weight.numel() for weight in network.parameters() if not weight.requires_grad)
    trained = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
    length = RunLength.of(training, 1 if counts is None else counts.train)
    rows = length.batch_size * adapters.adapters * training.samples
    kept = min(rows, training.micro_batch_rows or rows)
    process = 0.0 if device.type == "cuda" else PROCESS_BYTES
    memory: float = process + 4 * frozen + 4 * (1 + MOMENTS) * trained + kept * cost.saved_bytes
    stored = torch.finfo(getattr(torch, recipe.stored)).bits // 8
    own_backbone = 0 if recipe.backbone.weights in PUBLISHED else frozen
    disk: float = stored * (trained + own_backbone) + 4 * MOMENTS * trained
    disk += 4 * (FEATURES * shape.width) ** 2 + REPORT_BYTES
    members = 1 if whole is None else whole.members
    disk *= members
    if counts is None:
        return RunEstimate(None, memory, disk)
    trainings = 1 if whole is None or whole.ensemble == "snapshot" else members
    seconds = trainings * length.steps * rows * cost.training_s
    seconds += members * _evaluated_rows(recipe, counts) * cost.prediction_s
    return RunEstimate(seconds / 3600, memory, disk)


def backbone_shape(source: BackboneSource, folder: Path) -> BackboneSettings | None:
    """Returns the shape of a recipe's backbone without its weights; None for a missing file."""
    name = source.weights
    if name == AUTO:
        name = EMBEDDED if absent_weights(DOWNLOADED) else DOWNLOADED
    if name in PUBLISHED:
        builder, weights = PUBLISHED[name]
        with torch.device("meta"):
            return from_torchvision(builder(image_size=weights.meta["min_size"][0])).settings
    path = DEFAULT_CHECKPOINT / BACKBONE if name == EMBEDDED else folder / name
    if not path.exists():
        return None
    shape = BackboneSettings.model_validate_json(read_metadata(path)["settings"])
    return shape.model_copy(update={"image_size": source.image_size or shape.image_size})


@cache
def measured_cost(
    shape: BackboneSettings,
    precision: Precision,
    recompute: bool,
    device: torch.device,
    whole: bool = False,
) -> RowCost:
    """Returns the cost of a row, extrapolated from networks of MEASURED_BLOCKS blocks.

    whole: True if all weights are trained.
    """
    few, many = MEASURED_BLOCKS
    first, second = (
        _cost_of(shape.model_copy(update={"layers": layers}), precision, recompute, device, whole)
        for layers in MEASURED_BLOCKS
    )

    def extrapolated(low: float, high: float) -> float:
        return low + max(0.0, high - low) / (many - few) * (shape.layers - few)

    return RowCost(
        extrapolated(first.training_s, second.training_s),
        extrapolated(first.prediction_s, second.prediction_s),
        extrapolated(first.saved_bytes, second.saved_bytes),
    )


def _cost_of(
    shape: BackboneSettings,
    precision: Precision,
    recompute: bool,
    device: torch.device,
    whole: bool,
) -> RowCost:
    """Returns the cost of a row of a network with this number of blocks."""
    generator = torch.Generator().manual_seed(0)
    adapters, samples = (NO_ADAPTERS, 1) if whole else (AdapterSettings(), SAMPLES)
    network = build_network(VisionTransformer(shape), adapters, CLASSES)
    network.initialise(generator)
    network = train_all_weights(network) if whole else network
    network.to(device)
    count = MEASURED_ROWS // (network.settings.adapters * samples)
    objective = AdapterObjective(
        network, samples, trajectory_loss, torch.ones(CLASSES).to(device), recompute=recompute
    )
    size = shape.image_size
    images = torch.rand(count, 3, size, size, generator=generator).to(device)
    labels = torch.zeros(count, dtype=torch.long, device=device)
    saved: dict[int, int] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}

    def remember(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return objective.loss(network, images, labels, objective.draw(0, 0, 0))

    def predict() -> None:
        with torch.no_grad():
            loss()

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        kept = loss()  # warms up, and holds all saved tensors
    total = sum(saved.values())
    del kept
    return RowCost(
        _seconds(lambda: loss().backward(), device) / MEASURED_ROWS,
        _seconds(predict, device) / MEASURED_ROWS,
        total / MEASURED_ROWS,
    )


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Returns the shortest duration of several repeats."""
    durations = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        durations.append(time.perf_counter() - start_s)
    return min(durations)


def _evaluated_rows(recipe: AdapterRecipe, counts: ImageCounts) -> int:
    """Returns the rows of predictions after training: calibration, test and other images."""
    evaluation, adapters = recipe.evaluation, recipe.adapters.adapters
    calibrated = max(MAX_SAMPLES if n == AUTO else n for n in evaluation.calibrated)
    calibration = (counts.calibration or counts.test) * (1 + calibrated)
    other = len(evaluation.ood) * (evaluation.ood_images or counts.test)
    return adapters * (
        counts.train + calibration + (counts.test + other) * (1 + evaluation.samples)
    )
