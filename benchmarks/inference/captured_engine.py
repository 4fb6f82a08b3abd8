"""The compiled engine that all measurements of a GPU share, with a graph for each row count."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch._dynamo.utils import counters

from benchmarks.baselines.engine import Engine
from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Target
from benchmarks.measurement.sizes import NetworkSizes
from benchmarks.measurement.timing import synchronise
from benchmarks.measurement.workload import Plan, Workload, described, random_network
from eulerlora.nn.runtime import Runtime, row_counts
from eulerlora.settings import RuntimeSettings


@dataclass(frozen=True)
class CapturedEngine:
    """An engine in bfloat16 that is ready for every row count.

    row_counts: to which passes are padded. graphs: that torch compiled. seconds: that it took.
    """

    run: Engine
    row_counts: Sequence[int]
    graphs: int
    seconds: float


@cache
def captured_engine(
    sizes: NetworkSizes, device: torch.device, compiler: str | None
) -> CapturedEngine:
    """Returns the engine of `random_network(sizes)`, whose first pass has compiled all graphs."""
    network = random_network(sizes).requires_grad_(False).to(device)
    runtime = Runtime(network, device, RuntimeSettings(precision="bfloat16", compiler=compiler))
    run: Engine = torch.inference_mode()(runtime.__call__)
    load = Workload.random(sizes, 1, device)
    torch._dynamo.reset()  # a network of the same shape would share its graphs
    before, started = counters["stats"]["unique_graphs"], time.perf_counter()
    run(load.images, load.rows, load.draws)
    synchronise(device)
    return CapturedEngine(
        run=run,
        row_counts=row_counts(runtime.max_rows_per_pass, device),
        graphs=counters["stats"]["unique_graphs"] - before,
        seconds=time.perf_counter() - started,
    )


def captures(plan: Plan) -> list[Reading]:
    """Returns the number of graphs and the time until all are compiled and captured."""
    sizes = plan.sizes.large
    engine = captured_engine(sizes, plan.device, plan.compiler)
    counts = list(engine.row_counts)
    details = described(sizes, row_counts=counts, compiler=plan.compiler)
    graphs = Measurement(
        name="graphs, bfloat16, compiled",
        what="one for each row count; fewer means that torch runs the rest uncompiled",
        unit="count",
        target=Target(bound="at least", value=len(counts)),
        libraries=(),
    )
    seconds = Measurement(
        name="time until all graphs are compiled and captured",
        what="the first pass",
        unit="seconds",
        libraries=(),
    )
    return [
        graphs.reading(engine.graphs, [engine.graphs], plan.device, details),
        seconds.reading(engine.seconds, [engine.seconds], plan.device, details),
    ]
