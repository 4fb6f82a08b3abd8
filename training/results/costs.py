"""What a method costs: trained parameters, rows of an answer, and operations of its training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.methods.registry import build_network
from eulerlora.methods.settings import BatchEnsembleSettings, MethodSettings
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import AdapterSettings, BackboneSettings, Mode
from training.adaptation.network import count_trained, train_all_weights
from training.adaptation.objective import AdapterObjective, trajectory_loss
from training.fit.optimisation import attention_kernels
from training.recipe.schema import AdapterRecipe

COUNTED_BLOCKS = (3, 4)
"""Blocks of the networks that are counted: the first and the last block differ from the others."""


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
    """Extrapolates the operations of short networks, which are linear in the number of blocks
    unless only some of them have factors.
    """
    if shape.layers <= max(COUNTED_BLOCKS) or isinstance(method, BatchEnsembleSettings):
        return _counted(shape, adapters, classes, method, whole, samples)
    first, second = (
        _counted(shape.model_copy(update={"layers": n}), adapters, classes, method, whole, samples)
        for n in COUNTED_BLOCKS
    )
    more = (shape.layers - COUNTED_BLOCKS[0]) / (COUNTED_BLOCKS[1] - COUNTED_BLOCKS[0])
    return RowOperations(
        first.training + more * (second.training - first.training),
        first.prediction + more * (second.prediction - first.prediction),
    )


def _counted(
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
