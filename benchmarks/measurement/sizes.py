"""Sizes of a benchmark run: networks, trajectories and repeats."""

from typing import Annotated

from pydantic import Field

from eulerlora.settings import AdapterSettings, BackboneSettings
from eulerlora_client.settings import PositiveInt, Settings


class NetworkSizes(Settings):
    """A network and its trajectories. samples: per adapter in mode `stoch`."""

    backbone: BackboneSettings = BackboneSettings()
    adapters: AdapterSettings = AdapterSettings()
    samples: PositiveInt = 4
    classes: PositiveInt = 7

    @property
    def trajectories(self) -> int:
        """Trajectories of an image in mode `stoch`: adapters * samples."""
        return self.adapters.adapters * self.samples


class Sizes(Settings):
    """Sizes of a run.

    large: the published backbone. compact: a backbone for CPUs. images: batch size. requests: of
    each mode in the mixed batch. throughput_images: batch size that fills a GPU. squares: sizes
    of the square products among the ceiling's candidates. repeats: alternating measurements after
    `warmups`; `step_repeats` for training steps, `request_repeats` for requests. processes:
    number of processes for each memory measurement.
    """

    large: NetworkSizes = NetworkSizes()
    compact: NetworkSizes = NetworkSizes(
        backbone=BackboneSettings(
            image_size=128, patch_size=16, layers=12, heads=3, width=192, mlp_width=640
        )
    )
    images: PositiveInt = 8
    requests: PositiveInt = 8
    throughput_images: PositiveInt = 64
    squares: tuple[PositiveInt, ...] = (1024, 2048, 4096)
    warmups: Annotated[int, Field(ge=0)] = 2
    repeats: PositiveInt = 15
    step_repeats: PositiveInt = 5
    request_repeats: PositiveInt = 45
    processes: PositiveInt = 3


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
    images=2,
    requests=2,
    throughput_images=3,
    squares=(16, 32),
    warmups=1,
    repeats=3,
    step_repeats=2,
    request_repeats=3,
    processes=1,
)
