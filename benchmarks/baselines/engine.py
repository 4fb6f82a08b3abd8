"""EulerLoRA as the service runs it: our side of every comparison."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import RowDraws, Rows
from eulerlora.nn.runtime import Runtime
from eulerlora.settings import Draw, Precision, RuntimeSettings

Engine = Callable[[Tensor, Rows, RowDraws], Tensor]


def build_engine(
    network: AdaptedVisionTransformer, precision: Precision, compiler: str | None = None
) -> Engine:
    """Returns a function (images, rows, draws) -> float32 logits, as the service runs it.

    images: (n, 3, image_size, image_size) float32, on the device of rows and draws.
    compiler: a backend of `torch.compile`. The network is copied.
    """
    network_copy = copy.deepcopy(network).requires_grad_(False)
    settings = RuntimeSettings(precision=precision, compiler=compiler)
    return torch.inference_mode()(
        Runtime(network_copy, network.heads.weight.device, settings).__call__
    )


def predict(
    engine: Engine, images: Tensor, draws: Sequence[Draw], network: AdaptedVisionTransformer
) -> tuple[Tensor, ...]:
    """Returns logits (trajectories, classes) of every image for its draw, in one batch.

    network: the one that the engine runs; it draws the rows.
    """
    rows = Rows.of([draw.samples for draw in draws], network.settings.adapters).to(images.device)
    return rows.by_image(engine(images, rows, network.draw_rows(draws).to(images)))


def training_logits(
    network: AdaptedVisionTransformer, images: Tensor, rows: Rows, draws: RowDraws
) -> Tensor:
    """Returns logits with gradients to adapters and heads; shapes as in the network."""
    logits: Tensor = network(images, rows, draws)
    return logits
