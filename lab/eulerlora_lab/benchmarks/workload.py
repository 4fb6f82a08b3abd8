"""The workload of a comparison: a network, images and the coefficients of their trajectories.

`build_engine` runs it as the service does: our side of every comparison.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Generator, Tensor

from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import Runtime
from eulerlora.precision import decide_runtime
from eulerlora.sampling.masks import AdapterSettings, draw_trajectories
from eulerlora.settings import BackboneSettings, RuntimeSettings
from eulerlora_contract.sampling import Precision, RuntimeChoice
from eulerlora_contract.settings import Positive, PositiveInt, Settings
from eulerlora_lab.benchmarks.results import Result, Side, Target, comparison
from eulerlora_lab.benchmarks.timing import Work, alternating_seconds


class NetworkSizes(Settings):
    """A network and its trajectories.

    Attributes:
        samples: Per adapter in mode `stoch`.
    """

    backbone: BackboneSettings = BackboneSettings()
    adapters: AdapterSettings = AdapterSettings()
    samples: PositiveInt = 4
    classes: PositiveInt = 7

    @property
    def trajectories(self) -> int:
        return self.adapters.adapters * self.samples


class Sizes(Settings):
    """Sizes of a run.

    Attributes:
        large: The published backbone.
        compact: A backbone for CPUs.
        embedded: The shape of the embedded checkpoint.
        images: Batch size.
        requests: Of each mode in the mixed batch.
        repeats: Alternating measurements after `warmups`.
        step_repeats: Those of training steps.
        request_repeats: Those of requests.
        processes: Number of processes for each memory measurement.
        utilisation_s: Seconds for which a pass is repeated to see how busy the device is.
    """

    large: NetworkSizes = NetworkSizes()
    compact: NetworkSizes = NetworkSizes(
        backbone=BackboneSettings(
            image_size=128, patch_size=16, layers=12, heads=3, width=192, mlp_width=640
        )
    )
    embedded: NetworkSizes = NetworkSizes(
        backbone=BackboneSettings(
            image_size=112, patch_size=14, layers=12, heads=6, width=384, mlp_width=1536,
            layer_scale=True, positions="cells",
        )
    )  # fmt: skip
    images: PositiveInt = 8
    requests: PositiveInt = 8
    warmups: Annotated[int, Field(ge=0)] = 2
    repeats: PositiveInt = 15
    step_repeats: PositiveInt = 5
    request_repeats: PositiveInt = 45
    processes: PositiveInt = 3
    utilisation_s: Positive = 5.0


SMALL_NETWORK = NetworkSizes(
    backbone=BackboneSettings(
        image_size=32, patch_size=8, layers=2, heads=2, width=16, mlp_width=24
    ),
    adapters=AdapterSettings(adapters=2, rank=4, min_rank=2),
    samples=2,
    classes=3,
)

FULL = Sizes()
SMALL = Sizes(
    large=SMALL_NETWORK,
    compact=SMALL_NETWORK,
    embedded=SMALL_NETWORK,
    images=2,
    requests=2,
    warmups=1,
    repeats=3,
    step_repeats=2,
    request_repeats=3,
    processes=1,
    utilisation_s=0.1,
)


_UP_STD = 0.005  # adapters and image then change a logit by similar amounts


@dataclass(frozen=True)
class Plan:
    """A run of the benchmarks.

    Attributes:
        compiler: A backend of `torch.compile` for GPU comparisons.
    """

    sizes: Sizes
    device: torch.device
    compiler: str | None = None

    def comparison(
        self,
        name: str,
        ours: tuple[str, Work],
        reference: tuple[str, Work],
        target: Target | None = None,
        repeats: int | None = None,
    ) -> Result:
        """The ratio of the times of ours and of the reference, from alternating runs.

        ours, reference: what runs, and a run. repeats: by default those of the sizes.
        """
        (what, work), (other, other_work) = ours, reference
        times, other_times = alternating_seconds(
            [work, other_work], repeats or self.sizes.repeats, self.sizes.warmups, self.device
        )
        return comparison(name, Side(what, times), Side(other, other_times), target)


@dataclass(frozen=True)
class Workload:
    """Stochastic trajectories of images, in the layouts of both sides of a comparison.

    Attributes:
        images: (n, 3, image_size, image_size).
        coefficients: (trajectories, n, blocks, 4, rank).
        draws: The same of every row.
    """

    network: AdaptedVisionTransformer
    images: Tensor
    rows: Rows
    coefficients: Tensor
    draws: RowDraws

    @classmethod
    def of(cls, network: AdaptedVisionTransformer, samples: int, images: int) -> "Workload":
        """Random images with one draw for each, on the network's device."""
        device, settings = network.heads.weight.device, network.settings
        generator = Generator().manual_seed(images)
        size, trajectories = network.backbone.settings.image_size, settings.adapters * samples
        pixels = torch.rand(images, 3, size, size, generator=generator)
        drawn = [
            draw_trajectories(trajectories, len(network.blocks), settings, generator)
            for _ in range(images)
        ]
        return cls(
            network=network,
            images=pixels.to(device),
            rows=Rows.of([samples] * images, settings.adapters).to(device),
            coefficients=torch.stack(drawn, dim=1).to(device),
            draws=RowDraws.of_coefficients(torch.cat(drawn).to(device)),
        )

    @classmethod
    def random(cls, sizes: NetworkSizes, images: int, device: torch.device) -> "Workload":
        return cls.of(random_network(sizes).to(device), sizes.samples, images)


def random_network(sizes: NetworkSizes, seed: int = 0) -> AdaptedVisionTransformer:
    """Adapters are random too; on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = VisionTransformer(sizes.backbone)
    network = build_network(backbone, sizes.adapters, sizes.classes)
    generator = Generator().manual_seed(seed)
    network.initialise(generator)
    with torch.no_grad():
        for name, parameter in network.adapter_parameters():
            if name.endswith(".up"):
                parameter.normal_(std=_UP_STD, generator=generator)
    return network.eval()


Engine = Callable[[Tensor, Rows, RowDraws], Tensor]


def build_runtime(
    network: AdaptedVisionTransformer, precision: Precision, runtime: RuntimeChoice = "torch"
) -> Runtime:
    """The runtime of a copy of a network, as the service makes it."""
    network_copy = copy.deepcopy(network).requires_grad_(False)
    settings = RuntimeSettings(precision=precision, runtime=runtime)
    device = network.heads.weight.device
    digest = f"random {network.backbone.settings}"
    return decide_runtime(network_copy, device, settings, digest).runtime


def build_engine(network: AdaptedVisionTransformer, precision: Precision) -> Engine:
    """A function (images, rows, draws) -> float32 logits, as the service runs it.

    images: (n, 3, image_size, image_size) float32, on the device of rows and draws. The network is
    copied.
    """
    return torch.inference_mode()(build_runtime(network, precision).__call__)
