"""All comparisons by name, in the order of the result table."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from benchmarks.inference.captured_engine import captures
from benchmarks.inference.comparisons import (
    ceiling_comparison,
    ensemble_comparison,
    latency_comparison,
    merged_comparison,
    naive_comparison,
    peft_comparison,
)
from benchmarks.inference.mixed_batch import mixed_batch_comparison
from benchmarks.inference.row_rates import pass_memory, row_rates
from benchmarks.measurement.reading import Reading
from benchmarks.measurement.result import Result
from benchmarks.measurement.results_file import Record
from benchmarks.measurement.sizes import SMALL
from benchmarks.measurement.workload import Plan
from benchmarks.service.measurements.device_rate import device_rate
from benchmarks.service.plan import FULL as FULL_SERVICE
from benchmarks.service.plan import SMALL as SMALL_SERVICE
from benchmarks.training.comparisons import step_memory_comparison, step_time_comparison

Measure = Callable[[Plan], Result]


def _ceiling(plan: Plan) -> Result:
    return ceiling_comparison(plan, "float32", plan.sizes.images, minimum=0.85)


def _gpu_ceiling(plan: Plan) -> Result:
    images = plan.sizes.throughput_images
    return ceiling_comparison(plan, "bfloat16", images, minimum=0.50, compiler=plan.compiler)


ALL_DEVICES: Mapping[str, Measure] = {
    "naive-auto": partial(naive_comparison, choice="auto"),
    "naive-float32": partial(naive_comparison, choice="float32"),
    "naive-bfloat16": partial(naive_comparison, choice="bfloat16"),
    "vmap": ensemble_comparison,
    "peft-set-adapter": partial(peft_comparison, mixed_batch=False),
    "peft-mixed-batch": partial(peft_comparison, mixed_batch=True),
    "merged-1": partial(merged_comparison, images=1),
    "merged-8": partial(merged_comparison, images=8),
    "ceiling": _ceiling,
    "mixed-modes": mixed_batch_comparison,
    "step-time": partial(step_time_comparison, side="one-batch"),
    "step-time-cut": partial(step_time_comparison, side="micro-batches"),
    "step-memory": partial(step_memory_comparison, side="one-batch"),
    "step-memory-cut": partial(step_memory_comparison, side="micro-batches"),
}


def _service(plan: Plan) -> Iterable[Reading]:
    return device_rate(SMALL_SERVICE if plan.sizes == SMALL else FULL_SERVICE, plan.device)


def _single(measure: Measure) -> Callable[[Plan], Iterable[Record]]:
    return lambda plan: [measure(plan)]


GPU: Mapping[str, Callable[[Plan], Iterable[Record]]] = {
    "graphs": captures,
    "row-rates": row_rates,
    "pass-memory": pass_memory,
    "latency": _single(latency_comparison),
    "gpu-ceiling": _single(_gpu_ceiling),
    "service": _service,
    **{name: _single(measure) for name, measure in ALL_DEVICES.items()},
}
"""The most important first, in case the time ends."""
