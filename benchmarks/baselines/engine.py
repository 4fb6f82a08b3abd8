"""EulerLoRA's side of every comparison: the only module here that knows how it is called best."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from benchmarks.measurement.sizes import NetworkSizes
from eulerlora.backbone import build_backbone
from eulerlora.coefficients import trajectory_coefficients
from eulerlora.rows import Rows
from eulerlora.runtime import Runtime
from eulerlora.settings import AdapterSettings, Draw, Precision, RuntimeSettings
from eulerlora.vision_transformer import AdaptedVisionTransformer

Engine = Callable[[Tensor, Rows, Tensor], Tensor]
UP_STD = 0.005  # the adapters then change a logit by about as much as the image does


def random_network(sizes: NetworkSizes, seed: int = 0) -> AdaptedVisionTransformer:
    """A network of these sizes with random weights, on the CPU, whose adapters do something."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = build_backbone(sizes.backbone)
    network = AdaptedVisionTransformer(backbone, sizes.adapters, sizes.classes)
    generator = Generator().manual_seed(seed)
    network.initialise(generator)
    with torch.no_grad():
        for name, parameter in network.adapter_parameters():
            if name.endswith(".up"):
                parameter.normal_(std=UP_STD, generator=generator)
    return network.eval()


def engine(
    network: AdaptedVisionTransformer, precision: Precision, compiler: str | None = None
) -> Engine:
    """A network as the service runs it: (images, rows, coefficients) -> logits, float32.

    images: (n, 3, image_size, image_size) float32. rows and coefficients: on the same device.
    compiler: a backend of `torch.compile`. The given network is not changed.
    """
    own = copy.deepcopy(network).requires_grad_(False)
    settings = RuntimeSettings(precision=precision, compiler=compiler)
    return torch.inference_mode()(Runtime(own, network.heads.weight.device, settings).__call__)


def answers(
    asked: Engine, images: Tensor, draws: Sequence[Draw], blocks: int, settings: AdapterSettings
) -> tuple[Tensor, ...]:
    """The logits (trajectories, classes) of every image for its own draw, in one batch."""
    rows = Rows.of([draw.samples for draw in draws], settings.adapters).to(images.device)
    drawn = torch.cat([trajectory_coefficients(draw, blocks, settings) for draw in draws])
    return rows.by_image(asked(images, rows, drawn.to(images.device)))


def training_logits(
    network: AdaptedVisionTransformer, images: Tensor, rows: Rows, coefficients: Tensor
) -> Tensor:
    """Logits with a graph to the adapters and heads; shapes as in the network's forward pass."""
    logits: Tensor = network(images, rows, coefficients)
    return logits
