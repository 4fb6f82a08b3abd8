"""The compiled engine of a GPU: its graphs, its rows per second and its memory."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import psutil
import torch
from torch._dynamo.utils import counters

from benchmarks.arithmetic import minimum_flops
from benchmarks.results import Measurement, Result, Spread, at_least, at_most
from benchmarks.timing import Work, alternating_seconds, synchronise
from benchmarks.workload import Engine, NetworkSizes, Plan, Workload, described, random_network
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import Runtime, row_counts
from eulerlora.settings import RuntimeSettings

BYTES_PER_WEIGHT = 2  # bfloat16


@dataclass(frozen=True)
class CompiledEngine:
    """An engine in bfloat16 that is ready for every row count.

    row_counts: to which passes are padded. graphs: that torch compiled. seconds: that it took.
    """

    run: Engine
    row_counts: Sequence[int]
    graphs: int
    seconds: float


@dataclass(frozen=True)
class Card:
    """What a GPU can do at most. bandwidth: bytes/s of its memory. flops: of dense bfloat16."""

    bandwidth: float
    flops: float

    def seconds(self, sizes: NetworkSizes, images: int, rows: int) -> float:
        """Returns the least time of a pass: that of its arithmetic, or of reading the weights."""
        least = minimum_flops(sizes.backbone, images, rows, sizes.adapters.rank, sizes.classes)
        return max(least / self.flops, weight_bytes(sizes) / self.bandwidth)


CARDS = {
    "H200": Card(4.8e12, 989e12),
    "H100": Card(3.35e12, 989e12),
    "A100": Card(2.04e12, 312e12),
    "L40S": Card(864e9, 362e12),
    "L4": Card(300e9, 121e12),
}
"""A word of the name of a GPU -> NVIDIA's data sheet of its SXM form, or of its only one."""


def card_of(device: torch.device) -> Card | None:
    """Returns the data of a CUDA device; None for an unknown one and for the CPU."""
    words = re.split(r"\W+", torch.cuda.get_device_name(device)) if device.type == "cuda" else []
    return next((CARDS[word] for word in words if word in CARDS), None)


def weight_bytes(sizes: NetworkSizes) -> int:
    """Returns the bytes of the weights of all blocks."""
    shape = sizes.backbone
    block = 4 * shape.width**2 + 2 * shape.width * shape.mlp_width
    return BYTES_PER_WEIGHT * shape.layers * block


@cache
def compiled_engine(
    sizes: NetworkSizes, device: torch.device, compiler: str | None
) -> CompiledEngine:
    """Returns the engine of `random_network(sizes)`, whose first pass has compiled all graphs."""
    network = random_network(sizes).requires_grad_(False).to(device)
    runtime = Runtime(network, device, RuntimeSettings(precision="bfloat16", compiler=compiler))
    run: Engine = torch.inference_mode()(runtime.__call__)
    load = Workload.random(sizes, 1, device)
    torch._dynamo.reset()  # a network of the same shape would share its graphs
    before, started = counters["stats"]["unique_graphs"], time.perf_counter()
    run(load.images, load.rows, load.draws)
    synchronise(device)
    return CompiledEngine(
        run=run,
        row_counts=row_counts(runtime.max_rows_per_pass, device),
        graphs=counters["stats"]["unique_graphs"] - before,
        seconds=time.perf_counter() - started,
    )


def engine_of(plan: Plan) -> CompiledEngine:
    """Returns the engine that all measurements of a plan share."""
    return compiled_engine(plan.sizes.large, plan.device, plan.compiler)


def graph_compilation(plan: Plan) -> Iterator[Result]:
    """Measures the number of graphs and the time until all are compiled and captured."""
    engine = engine_of(plan)
    counts = list(engine.row_counts)
    details = described(plan.sizes.large, row_counts=counts, compiler=plan.compiler)
    graphs = Measurement(
        name="graphs, bfloat16, compiled",
        ours="one for each row count; fewer means that torch runs the rest uncompiled",
        unit="count",
        target=at_least(len(counts)),
    )
    yield graphs.reading(engine.graphs, [engine.graphs], plan.device, details)
    seconds = Measurement(
        name="time until all graphs are compiled and captured", ours="the first pass"
    )
    yield seconds.reading(engine.seconds, [engine.seconds], plan.device, details)


def row_rates(plan: Plan) -> Iterator[Result]:
    """Measures rows per second of every row count, and the shares of the card's ceiling."""
    sizes, card = plan.sizes.large, card_of(plan.device)
    counts = engine_of(plan).row_counts
    passes = [pass_of(plan, count) for count in counts]
    times = alternating_seconds(passes, plan.sizes.repeats, plan.sizes.warmups, plan.device)
    for count, seconds in zip(counts, times, strict=True):
        images = -(-count // sizes.trajectories)
        details = described(sizes, rows=count, images=images, compiler=plan.compiler)
        name = f"passes of {count} rows, bfloat16, compiled"
        median_s = Spread.of(seconds).median
        rate = Measurement(name=name, ours=f"{1e6 * median_s:.0f} us a pass", unit="rows/s")
        rates = [count / value for value in seconds]
        yield rate.reading(Spread.of(rates).median, rates, plan.device, details)
        if card is not None:
            least_s = card.seconds(sizes, images, count)
            share = Measurement(
                name=f"{name}: share of the computed ceiling",
                ours=f"at least {1e6 * least_s:.0f} us by arithmetic and memory bandwidth",
                unit="share",
            )
            shares = [least_s / value for value in seconds]
            yield share.reading(Spread.of(shares).median, shares, plan.device, details)


def pass_memory(plan: Plan) -> Iterator[Result]:
    """Measures the memory of weights, graphs and the largest pass; on a CPU, of the process."""
    largest_pass = pass_of(plan, engine_of(plan).row_counts[-1])
    if plan.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(plan.device)
        largest_pass()
        size = torch.cuda.max_memory_reserved(plan.device)
    else:
        largest_pass()
        size = psutil.Process().memory_info().rss
    memory = Measurement(
        name="memory of the engine in its largest pass, bfloat16, compiled",
        ours="reserved by torch on the device, or RSS of the process on a CPU",
        unit="bytes",
    )
    yield memory.reading(size, [size], plan.device, described(plan.sizes.large))


def latency(plan: Plan) -> Iterator[Result]:
    """Compares all trajectories of an image with a single one."""
    sizes, run = plan.sizes.large, engine_of(plan).run
    load = Workload.random(sizes, 1, plan.device)
    single = Rows(load.rows.image[:1], load.rows.adapter[:1], (1,))
    measurement = Measurement(
        name=f"{sizes.trajectories} trajectories / 1 trajectory, 1 image, bfloat16, compiled",
        ours=f"{sizes.trajectories} rows",
        reference="1 row",
        target=at_most(1.5),
    )
    yield plan.comparison(
        measurement,
        lambda: run(load.images, load.rows, load.draws),
        lambda: run(load.images, single, load.draws.rows(slice(1))),
        described(sizes, images=1, compiler=plan.compiler),
    )


def pass_of(plan: Plan, count: int) -> Work:
    """Returns a pass of the compiled engine with `count` rows of as few images as possible."""
    sizes, run = plan.sizes.large, engine_of(plan).run
    load = Workload.random(sizes, -(-count // sizes.trajectories), plan.device)
    by_image = [sizes.trajectories] * (count // sizes.trajectories)
    rest = count % sizes.trajectories
    counts = (*by_image, rest) if rest else tuple(by_image)
    rows = Rows(load.rows.image[:count], load.rows.adapter[:count], counts)
    draws = load.draws.rows(slice(count))
    return lambda: run(load.images, rows, draws)
