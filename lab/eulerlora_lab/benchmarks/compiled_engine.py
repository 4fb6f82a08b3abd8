"""The compiled engine of a GPU: its graphs, its rows per second and its memory."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import psutil
import torch
from torch._dynamo.utils import counters  # noqa: PLC2701 - torch has no public one
from torch.utils.flop_counter import FlopCounterMode

from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import TorchRuntime, row_counts
from eulerlora.settings import RuntimeSettings
from eulerlora_lab.benchmarks.results import Result, at_least, at_most
from eulerlora_lab.benchmarks.timing import Work, alternating_seconds, synchronise
from eulerlora_lab.benchmarks.workload import Engine, Plan, Workload, random_network


@dataclass(frozen=True)
class CompiledEngine:
    """An engine in bfloat16 that is ready for every row count.

    Attributes:
        row_counts: To which passes are padded.
        graphs: Number of graphs that torch compiled.
        seconds: That this took.
    """

    run: Engine
    row_counts: Sequence[int]
    graphs: int
    seconds: float


@cache
def engine_of(plan: Plan) -> CompiledEngine:
    """The first pass of the engine has compiled all graphs."""
    sizes, device = plan.sizes.large, plan.device
    network = random_network(sizes).requires_grad_(False).to(device)
    settings = RuntimeSettings(precision="bfloat16", compiler=plan.compiler)
    runtime = TorchRuntime(network, device, settings)
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


def graph_compilation(plan: Plan) -> Iterator[Result]:
    engine = engine_of(plan)
    yield Result(
        name="graphs, bfloat16, compiled",
        ours="one for each row count; fewer means that torch runs the rest uncompiled",
        value=engine.graphs,
        measured=[engine.graphs],
        unit="count",
        target=at_least(len(engine.row_counts)),
    )
    name = "time until all graphs are compiled and captured"
    yield Result(name, "the first pass", engine.seconds, [engine.seconds])


def row_rates(plan: Plan) -> Iterator[Result]:
    sizes = plan.sizes.large
    counts = engine_of(plan).row_counts
    passes = [_pass_of(plan, count) for count in counts]
    times = alternating_seconds(passes, plan.sizes.repeats, plan.sizes.warmups, plan.device)
    for count, seconds in zip(counts, times, strict=True):
        images = -(-count // sizes.trajectories)
        name = f"passes of {count} rows of {images} images, bfloat16, compiled"
        rates = [count / value for value in seconds]
        pass_us = f"{1e6 * median(seconds):.0f} us a pass"
        yield Result(name, pass_us, median(rates), rates, "rows/s")


def matrix_product_share(plan: Plan) -> Iterator[Result]:
    """Floating-point operations per second of the largest pass, as a part of those of a product of
    square bfloat16 matrices on the same device."""
    sizes, count = plan.sizes.large, engine_of(plan).row_counts[-1]
    load = Workload.random(sizes, -(-count // sizes.trajectories), plan.device)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        load.network(load.images, load.rows, load.draws)
    pass_flop = counter.get_total_flops() * count / len(load.rows)
    side = 8192 if plan.device.type == "cuda" else 512
    square = torch.rand(side, side, device=plan.device).bfloat16()
    works = [_pass_of(plan, count), lambda: square @ square]
    ours, product = alternating_seconds(works, plan.sizes.repeats, plan.sizes.warmups, plan.device)
    rates = [pass_flop / seconds for seconds in ours]
    product_rates = [2 * side**3 / seconds for seconds in product]
    yield Result(
        name=f"arithmetic of passes of {count} rows / of a product of {side} x {side} matrices",
        ours=f"{median(rates) / 1e12:.4g} TFLOP/s",
        value=median(rates) / median(product_rates),
        measured=[a / b for a, b in zip(rates, product_rates, strict=True)],
        unit="ratio",
        reference=f"{median(product_rates) / 1e12:.4g} TFLOP/s, bfloat16",
    )


def pass_memory(plan: Plan) -> Iterator[Result]:
    """Measures the memory of weights, graphs and the largest pass; on a CPU, of the process."""
    largest_pass = _pass_of(plan, engine_of(plan).row_counts[-1])
    if plan.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(plan.device)
        largest_pass()
        size = torch.cuda.max_memory_reserved(plan.device)
    else:
        largest_pass()
        size = psutil.Process().memory_info().rss
    yield Result(
        "memory of the engine in its largest pass, bfloat16, compiled",
        "reserved by torch on the device, or RSS of the process on a CPU",
        size,
        [size],
        "bytes",
    )


def latency(plan: Plan) -> Iterator[Result]:
    sizes, run = plan.sizes.large, engine_of(plan).run
    load = Workload.random(sizes, 1, plan.device)
    single = Rows(load.rows.image[:1], load.rows.adapter[:1], (1,))
    yield plan.comparison(
        f"{sizes.trajectories} trajectories / 1 trajectory, 1 image, bfloat16, compiled",
        (f"{sizes.trajectories} rows", lambda: run(load.images, load.rows, load.draws)),
        ("1 row", lambda: run(load.images, single, load.draws.rows(slice(1)))),
        at_most(1.5),
    )


def _pass_of(plan: Plan, count: int) -> Work:
    """A pass of the compiled engine with `count` rows of as few images as possible."""
    sizes, run = plan.sizes.large, engine_of(plan).run
    load = Workload.random(sizes, -(-count // sizes.trajectories), plan.device)
    by_image = [sizes.trajectories] * (count // sizes.trajectories)
    rest = count % sizes.trajectories
    counts = (*by_image, rest) if rest else tuple(by_image)
    rows = Rows(load.rows.image[:count], load.rows.adapter[:count], counts)
    draws = load.draws.rows(slice(count))
    return lambda: run(load.images, rows, draws)
