"""What is measured: the shape of the network, the trajectories, and how often."""

from typing import Annotated

from pydantic import Field

from eulerlora.settings import AdapterSettings, BackboneSettings, PositiveInt, Settings


class NetworkSizes(Settings):
    """One network and its trajectories. samples: S of each adapter in mode `stoch`."""

    backbone: BackboneSettings = BackboneSettings()
    adapters: AdapterSettings = AdapterSettings()
    samples: PositiveInt = 4
    classes: PositiveInt = 7

    @property
    def trajectories(self) -> int:
        """A * S, of one image in mode `stoch`."""
        return self.adapters.adapters * self.samples


class Sizes(Settings):
    """What a whole run measures.

    large: the published backbone. compact: the first embedded model's. images: of a batch.
    requests: of each mode, in the batch that mixes both. throughput_images: of the batch that is
    to fill a GPU. squares: sides of the square products among which the ceiling is sought.
    repeats: alternating measurements after `warmups` unmeasured ones; steps count for more, so
    they are taken `step_repeats` times, and requests for less: `request_repeats` times.
    processes: fresh ones for each memory figure.
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
