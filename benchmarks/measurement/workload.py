"""Workload of a comparison: a network, images and the coefficients of their trajectories."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.measurement.sizes import NetworkSizes, Sizes
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import RowDraws, Rows
from eulerlora.sampling.masks import draw_trajectories, on_stacked_ranks

UP_STD = 0.005  # adapters and image then change a logit by similar amounts


@dataclass(frozen=True)
class Plan:
    """A run of the benchmarks. compiler: a backend of `torch.compile` for GPU comparisons."""

    sizes: Sizes
    device: torch.device
    compiler: str | None = None


@dataclass(frozen=True)
class Workload:
    """Stochastic trajectories of images, in the layouts of both sides of a comparison.

    images: (n, 3, image_size, image_size). unstacked: (trajectories, n, blocks, 4, rank),
    coefficients on the directions of each trajectory's adapter. draws: the same on the stacked
    directions of all adapters, of every row.
    """

    network: AdaptedVisionTransformer
    images: Tensor
    rows: Rows
    unstacked: Tensor
    draws: RowDraws

    @classmethod
    def of(cls, network: AdaptedVisionTransformer, samples: int, images: int) -> "Workload":
        """Returns random images with one draw for each, on the network's device."""
        device, settings = network.heads.weight.device, network.settings
        generator = Generator().manual_seed(images)
        size, trajectories = network.backbone.settings.image_size, settings.adapters * samples
        pixels = torch.rand(images, 3, size, size, generator=generator)
        drawn = [
            draw_trajectories(trajectories, len(network.blocks), settings, generator)
            for _ in range(images)
        ]
        coefficients = torch.cat([on_stacked_ranks(draw, settings.adapters) for draw in drawn])
        return cls(
            network=network,
            images=pixels.to(device),
            rows=Rows.of([samples] * images, settings.adapters).to(device),
            unstacked=torch.stack(drawn, dim=1).to(device),
            draws=RowDraws.of_coefficients(coefficients.to(device)),
        )

    @classmethod
    def random(cls, sizes: NetworkSizes, images: int, device: torch.device) -> "Workload":
        """Returns a workload on a network with random weights."""
        return cls.of(random_network(sizes).to(device), sizes.samples, images)


def random_network(sizes: NetworkSizes, seed: int = 0) -> AdaptedVisionTransformer:
    """Returns a network with random weights, adapters included, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = VisionTransformer(sizes.backbone)
    network = build_network(backbone, sizes.adapters, sizes.classes)
    generator = Generator().manual_seed(seed)
    network.initialise(generator)
    with torch.no_grad():
        for name, parameter in network.adapter_parameters():
            if name.endswith(".up"):
                parameter.normal_(std=UP_STD, generator=generator)
    return network.eval()


def described(sizes: NetworkSizes, **details: Any) -> dict[str, Any]:
    """Returns the sizes and details of a measurement as JSON values."""
    return sizes.model_dump(mode="json") | {"trajectories": sizes.trajectories} | details
