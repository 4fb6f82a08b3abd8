"""Costs of a method: trained parameters, rows of an answer, operations and time of training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import MethodSettings
from eulerlora.settings import AdapterSettings, BackboneSettings
from training.adaptation.network import count_trained, train_all_weights
from training.adaptation.objective import AdapterObjective, trajectory_losses
from training.fit.optimisation import attention_kernels
from training.recipe.schema import AdapterRecipe


@dataclass(frozen=True)
class Cost:
    """The cost of a run, of all members of an ensemble together.

    parameters: trained, with the heads. rows_per_answer: passes of a row (an image in one
    trajectory) for the answer to one image. answer_flops: floating-point operations of their matrix
    products; a product and its addition are two. steps: of the optimiser, without a posterior's
    fit, as all that follows. rows, flops: of the training, forward and backward. seconds: as
    measured, on the run's hardware.
    """

    parameters: int
    rows_per_answer: int
    answer_flops: float
    steps: int
    rows: int
    flops: float
    seconds: float


@dataclass(frozen=True)
class RowOperations:
    """Operations for one image with all its rows: of a training step, and of a prediction."""

    training: float
    prediction: float


def trained_parameters(configs: Sequence[CheckpointConfig], recipe: AdapterRecipe) -> int:
    """Returns the number of trained parameters of a run's checkpoints, their heads included."""
    config = configs[0]
    with torch.device("meta"):
        backbone = VisionTransformer(config.backbone.settings)
        network = build_network(
            backbone, config.adapters.settings, len(config.classes), method=recipe.method
        )
    whole = recipe.whole_network is not None
    return len(configs) * count_trained(train_all_weights(network) if whole else network)


def cost_of(configs: Sequence[CheckpointConfig], recipe: AdapterRecipe, samples: int) -> Cost:
    """Returns the cost of a run from the configs of its checkpoints.

    samples: of an answer, per adapter; 1 in `det`.
    """
    config, results = configs[0], [config.provenance["training"] for config in configs]
    adapters, whole = config.adapters.settings, recipe.whole_network is not None
    shape = config.backbone.settings, adapters, len(config.classes)
    # without a posterior, which is fitted after the training
    step = operations(*shape, recipe.method, whole, recipe.training.samples)
    answer = operations(*shape, config.method, whole, samples)
    # A run without steps has no speed.
    images = sum(round(r.get("images_per_second", 0.0) * r["seconds"]) for r in results)
    return Cost(
        parameters=trained_parameters(configs, recipe),
        rows_per_answer=len(configs) * adapters.adapters * samples,
        answer_flops=len(configs) * answer.prediction,
        steps=sum(result["steps"] for result in results),
        rows=images * recipe.adapters.adapters * recipe.training.samples,
        flops=images * step.training,
        seconds=sum(result["seconds"] for result in results),
    )


@cache
def operations(
    shape: BackboneSettings,
    adapters: AdapterSettings,
    classes: int,
    method: MethodSettings,
    whole: bool,
    samples: int,
) -> RowOperations:
    """Counts the operations of a step and a prediction of a network with new weights.

    whole: True if all weights are trained. samples: per adapter.
    """
    network = build_network(VisionTransformer(shape), adapters, classes, method=method)
    network = train_all_weights(network) if whole else network
    objective = AdapterObjective(network, samples, trajectory_losses, torch.ones(classes))
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
