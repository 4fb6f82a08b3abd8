"""Rows per second by row count, the share of the computed ceiling, and the memory of a pass."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil
import torch

from benchmarks.inference.arithmetic import minimum as minimum_arithmetic
from benchmarks.inference.captured_engine import captured_engine
from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Spread
from benchmarks.measurement.sizes import NetworkSizes
from benchmarks.measurement.timing import Work, alternating_seconds
from benchmarks.measurement.workload import Plan, Workload, described
from eulerlora.nn.rows import Rows

BYTES_PER_WEIGHT = 2  # bfloat16


@dataclass(frozen=True)
class Card:
    """What a GPU can do at most. bandwidth: bytes/s of its memory. flops: of dense bfloat16."""

    bandwidth: float
    flops: float

    def seconds(self, sizes: NetworkSizes, images: int, rows: int) -> float:
        """Returns the least time of a pass: that of its arithmetic, or of reading the weights."""
        arithmetic = minimum_arithmetic(
            sizes.backbone, images, rows, sizes.adapters.rank, sizes.classes
        )
        return max(arithmetic.total / self.flops, weight_bytes(sizes) / self.bandwidth)


CARDS = {
    "H200": Card(4.8e12, 989e12),
    "H100": Card(3.35e12, 989e12),
    "A100": Card(2.04e12, 312e12),
    "L40S": Card(864e9, 362e12),
    "L4": Card(300e9, 121e12),
}
"""A word of the name of a GPU -> NVIDIA's data sheet of its SXM form, or of its only one."""


def card_of(device: torch.device) -> Card | None:
    """Returns the figures of a CUDA device; None for an unknown one and for the CPU."""
    words = re.split(r"\W+", torch.cuda.get_device_name(device)) if device.type == "cuda" else []
    return next((CARDS[word] for word in words if word in CARDS), None)


def weight_bytes(sizes: NetworkSizes) -> int:
    """Returns the bytes of the weights of all blocks."""
    shape = sizes.backbone
    block = 4 * shape.width**2 + 2 * shape.width * shape.mlp_width
    return BYTES_PER_WEIGHT * shape.layers * block


def row_rates(plan: Plan) -> Iterator[Reading]:
    """Returns rows per second of every row count, and the shares of the card's ceiling."""
    sizes, card = plan.sizes.large, card_of(plan.device)
    engine = captured_engine(sizes, plan.device, plan.compiler)
    counts = engine.row_counts
    images = [-(-count // sizes.trajectories) for count in counts]
    passes = [pass_of(plan, count) for count in counts]
    times = alternating_seconds(passes, plan.sizes.repeats, plan.sizes.warmups, plan.device)
    for count, image_count, seconds in zip(counts, images, times, strict=True):
        details = described(sizes, rows=count, images=image_count, compiler=plan.compiler)
        rate = Measurement(
            name=f"passes of {count} rows, bfloat16, compiled",
            what=f"{1e6 * Spread.of(seconds).median:.0f} us a pass",
            unit="rows/s",
            libraries=(),
        )
        yield _median(rate, [count / value for value in seconds], plan, details)
        if card is not None:
            least = card.seconds(sizes, image_count, count)
            share = Measurement(
                name=f"passes of {count} rows, bfloat16, compiled: share of the computed ceiling",
                what=f"at least {1e6 * least:.0f} us by arithmetic and memory bandwidth",
                unit="share",
                libraries=(),
            )
            yield _median(share, [least / value for value in seconds], plan, details)


def pass_memory(plan: Plan) -> list[Reading]:
    """Returns the memory of weights, graphs and the largest pass; on a CPU, of the process."""
    work = pass_of(
        plan, captured_engine(plan.sizes.large, plan.device, plan.compiler).row_counts[-1]
    )
    if plan.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(plan.device)
        work()
        size = torch.cuda.max_memory_reserved(plan.device)
    else:
        work()
        size = psutil.Process().memory_info().rss
    memory = Measurement(
        name="memory of the engine in its largest pass, bfloat16, compiled",
        what="reserved by torch on the device, or RSS of the process on a CPU",
        unit="bytes",
        libraries=(),
    )
    return [memory.reading(size, [size], plan.device, described(plan.sizes.large))]


def pass_of(plan: Plan, count: int) -> Work:
    """Returns a pass of the compiled engine with `count` rows of as few images as possible."""
    sizes = plan.sizes.large
    engine = captured_engine(sizes, plan.device, plan.compiler)
    load = Workload.random(sizes, -(-count // sizes.trajectories), plan.device)
    by_image = [sizes.trajectories] * (count // sizes.trajectories)
    rest = count % sizes.trajectories
    counts = (*by_image, rest) if rest else tuple(by_image)
    rows = Rows(load.rows.image[:count], load.rows.adapter[:count], counts)
    draws = load.draws.rows(slice(count))
    return lambda: engine.run(load.images, rows, draws)


def _median(
    measurement: Measurement, values: Sequence[float], plan: Plan, sizes: dict[str, object]
) -> Reading:
    return measurement.reading(Spread.of(values).median, values, plan.device, sizes)
