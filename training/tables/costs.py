"""Costs of a method: trained parameters, rows of an answer, operations and hours of training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

import torch
from torch.utils.flop_counter import FlopCounterMode

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import BACKBONE_FILE, DEFAULT_CHECKPOINT
from eulerlora.checkpoint.published_weights import PUBLISHED, absent_weights, from_torchvision
from eulerlora.checkpoint.weights import read_metadata
from eulerlora.images.files import image_files
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import MethodSettings
from eulerlora.settings import AdapterSettings, BackboneSettings
from eulerlora_client.contract.sampling import AUTO, Mode
from training.adaptation.network import DOWNLOADED, EMBEDDED, count_trained, train_all_weights
from training.adaptation.objective import AdapterObjective, trajectory_loss
from training.data.labels import LABELS, folder_labels
from training.data.splits import CALIBRATION_SHARE, TEST_SHARE, VALIDATION_SHARE
from training.fit.batches import RunLength
from training.fit.optimisation import attention_kernels
from training.recipe.schema import AdapterRecipe, BackboneSource, DataSettings
from training.tables.runs import TableRun

PUBLISHED_TRAINING_IMAGES = {
    "ham10000": 8_012,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "svhn": 73_257,
    "tiny-imagenet": 100_000,
}
"""Training images of the data sets as published."""
OPERATIONS_PER_S = {"cpu": 3e10, "cuda": 5e13}
"""Stated speed of a training, of one CPU thread and of a GPU."""


@dataclass(frozen=True)
class TrainingCost:
    """The cost of a training, of all members of an ensemble together, without a posterior's fit.

    parameters: trained. steps: of the optimiser. rows: passes of a row (an image in one trajectory)
    forward and backward. flops: floating-point operations of the matrix products of these passes; a
    product and its addition are two. seconds: as measured, on the run's hardware.
    """

    parameters: int
    steps: int
    rows: int
    flops: float
    seconds: float


@dataclass(frozen=True)
class RowOperations:
    """Operations for one image with all its rows: of a training step, and of a prediction."""

    training: float
    prediction: float


def trained_parameters(config: CheckpointConfig, recipe: AdapterRecipe) -> int:
    """Returns the number of trained parameters of a checkpoint, its heads included."""
    with torch.device("meta"):
        network = build_network(
            VisionTransformer(config.backbone.settings),
            config.adapters.settings,
            len(config.classes),
            method=recipe.method,
        )
    return count_trained(network if recipe.whole_network is None else train_all_weights(network))


def training_cost(configs: Sequence[CheckpointConfig], recipe: AdapterRecipe) -> TrainingCost:
    """Returns the cost of a run from the configs of its checkpoints."""
    results = [config.provenance["training"] for config in configs]
    # A run without steps has no speed.
    images = [round(r.get("images_per_second", 0.0) * r["seconds"]) for r in results]
    per_image = recipe.adapters.adapters * recipe.training.samples
    trained = configs[0].model_copy(update={"method": recipe.method})  # without a posterior
    return TrainingCost(
        parameters=sum(trained_parameters(config, recipe) for config in configs),
        steps=sum(result["steps"] for result in results),
        rows=sum(images) * per_image,
        flops=sum(images) * operations_of(trained, recipe, recipe.training.samples).training,
        seconds=sum(result["seconds"] for result in results),
    )


def rows_of_answer(configs: Sequence[CheckpointConfig], mode: Mode, samples: int) -> int:
    """Returns the rows that answer for one image. samples: per adapter, 1 in `det`."""
    return sum(c.adapters.settings.adapters for c in configs) * (samples if mode == "stoch" else 1)


def answer_flops(
    configs: Sequence[CheckpointConfig], recipe: AdapterRecipe, mode: Mode, samples: int
) -> float:
    """Returns the operations of an answer; arguments as in `rows_of_answer`."""
    count = samples if mode == "stoch" else 1
    return len(configs) * operations_of(configs[0], recipe, count).prediction


def operations_of(config: CheckpointConfig, recipe: AdapterRecipe, samples: int) -> RowOperations:
    """Returns the operations for one image with `samples` samples per adapter."""
    return _operations(
        config.backbone.settings,
        config.adapters.settings,
        len(config.classes),
        config.method,
        recipe.whole_network is not None,
        samples,
    )


@cache
def _operations(
    shape: BackboneSettings,
    adapters: AdapterSettings,
    classes: int,
    method: MethodSettings,
    whole: bool,
    samples: int,
) -> RowOperations:
    """Counts the operations of a step and a prediction of a network with new weights."""
    network = build_network(VisionTransformer(shape), adapters, classes, method=method)
    network = train_all_weights(network) if whole else network
    objective = AdapterObjective(network, samples, trajectory_loss, torch.ones(classes))
    images = torch.zeros(1, 3, shape.image_size, shape.image_size)
    labels = torch.zeros(1, dtype=torch.long)
    draw = objective.draw(0, 0, 0)
    with attention_kernels(torch.device("cpu")):  # the counter knows no fused CPU kernel
        with _counter() as training:
            objective.loss(network, images, labels, draw).backward()
        with torch.no_grad(), _counter() as prediction:
            objective.loss(network, images, labels, draw)
    return RowOperations(training.get_total_flops(), prediction.get_total_flops())


def _counter() -> FlopCounterMode:
    """Returns torch's counter, which leaves out products that are added in place."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _product_flops})


def _product_flops(
    _: Sequence[int], left: Sequence[int], right: Sequence[int], **__: object
) -> int:
    """Returns the operations of a matrix product. left, right: shapes."""
    return 2 * left[0] * left[1] * right[1]


def estimated_hours(
    run: TableRun, finished: Sequence[TableRun], data: Path, device: torch.device
) -> float | None:
    """Returns the hours of a run's training, without its evaluation.

    They are those of finished runs of the same variant, if there are any, or follow from steps,
    rows and a stated speed of the device: 2 operations per weight and token in the forward pass,
    twice as many for gradients of activations and weights (Kaplan et al., arXiv 2001.08361), half
    of them with a frozen backbone. None for a data set or backbone that is missing.
    """
    same = [other for other in finished if other.recipe.variant == run.recipe.variant]
    if same:
        seconds: list[float] = [
            sum(config.provenance["training"]["seconds"] for config in other.configs())
            for other in same
        ]
        return mean(seconds) / 3600
    recipe = run.recipe
    shape = backbone_shape(recipe.backbone, run.file.parent)
    images = training_images(recipe.data, data)
    if shape is None or images is None:
        return None
    training, whole = recipe.training, recipe.whole_network
    length = RunLength.of(training, images)
    rows = length.steps * length.batch_size * recipe.adapters.adapters * training.samples
    weights = shape.layers * shape.width * (4 * shape.width + 2 * shape.mlp_width)
    forward = 2 * weights * shape.tokens
    operations = rows * forward * (2 if whole is None else 3)
    if whole is not None and whole.ensemble != "snapshot":
        operations *= whole.members
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    return operations / (OPERATIONS_PER_S[device.type] * threads) / 3600


def backbone_shape(source: BackboneSource, folder: Path) -> BackboneSettings | None:
    """Returns the shape of a recipe's backbone without its weights; None for a missing file."""
    name = source.weights
    if name == AUTO:
        name = EMBEDDED if absent_weights(DOWNLOADED) else DOWNLOADED
    if name in PUBLISHED:
        builder, weights = PUBLISHED[name]
        with torch.device("meta"):
            return from_torchvision(builder(image_size=weights.meta["min_size"][0])).settings
    path = DEFAULT_CHECKPOINT / BACKBONE_FILE if name == EMBEDDED else folder / name
    if not path.exists():
        return None
    shape = BackboneSettings.model_validate_json(read_metadata(path)["settings"])
    return shape.model_copy(update={"image_size": source.image_size or shape.image_size})


def training_images(settings: DataSettings, data: Path) -> int | None:
    """Returns the number of training images, up to rounding, without opening an image.

    None for a user's archive, or a folder that is missing or has the labels of a table.
    """
    folder = data / settings.path
    if settings.kind in PUBLISHED_TRAINING_IMAGES:
        images = PUBLISHED_TRAINING_IMAGES[settings.kind]
    elif folder.is_dir() and not (folder / LABELS).exists():
        names = [path.relative_to(folder).as_posix() for path in image_files(folder)]
        labels = folder_labels(names)
        tested = sum(row.part == "test" for row in labels)
        images = len(labels) - (tested or round(len(labels) * TEST_SHARE))
    else:
        return settings.at_most.get("train")
    if settings.split != "paper":
        images -= round(images * CALIBRATION_SHARE)
    if settings.split in ("lesion-validation", "lesion-best-epoch"):
        images -= round(images * VALIDATION_SHARE)
    return min(images, settings.at_most.get("train", images))
