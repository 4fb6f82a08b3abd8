"""Comparisons of time and peak memory of a training step with the naive loop."""

from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.measurement.timing import paired_seconds
from benchmarks.measurement.workload import Plan, Workload, described
from benchmarks.training.peak_memory import peak_bytes
from benchmarks.training.step import STEPS, Side

DESCRIPTIONS: dict[Side, str] = {
    "one-batch": "all rows in one batch, float32",
    "micro-batches": "micro-batches of two images' rows, float32",
}
SUFFIXES: dict[Side, str] = {"one-batch": "", "micro-batches": " in micro-batches"}
TIME_LIMIT = 0.90
"""Ratio of the arithmetic: 1,026 GFLOP a step through the frozen weights, and 1,140 in the loop."""

MEMORY_TARGETS: dict[Side, Target | None] = {
    "one-batch": None,  # a row saves the same activations on both sides
    "micro-batches": Target(bound="at most", value=0.40),  # a quarter of the rows at a time
}
NAIVE = "ordinary LoRA modules, one forward pass a trajectory, summed losses, float32"


def step_time_comparison(plan: Plan, side: Side) -> Result:
    """Compares the time of forward, backward and AdamW. side: one of our two steps."""
    sizes, images = plan.sizes.large, plan.sizes.images
    ours, naive = (
        STEPS[name](Workload.random(sizes, images, plan.device)) for name in (side, "naive")
    )
    comparison = Comparison(
        name=f"training step{SUFFIXES[side]}, {images} images x {sizes.trajectories} trajectories "
        "/ naive loop",
        ours=DESCRIPTIONS[side],
        reference=NAIVE,
        target=Target(bound="at most", value=TIME_LIMIT),
    )
    seconds = paired_seconds(ours, naive, plan.sizes.step_repeats, 1, plan.device)
    return comparison.result(*seconds, plan.device, described(sizes, images=images))


def step_memory_comparison(plan: Plan, side: Side) -> Result:
    """Compares the peak memory of a step, in addition to model and images."""
    sizes, images = plan.sizes.large, plan.sizes.images
    comparison = Comparison(
        name=f"training step{SUFFIXES[side]}, {images} images x {sizes.trajectories} trajectories, "
        "peak memory / naive loop",
        ours=DESCRIPTIONS[side],
        reference=NAIVE,
        target=MEMORY_TARGETS[side],
        unit="bytes",
    )
    pairs = [
        (
            float(peak_bytes(side, sizes, images, plan.device)),
            float(peak_bytes("naive", sizes, images, plan.device)),
        )
        for _ in range(plan.sizes.processes)
    ]
    ours, naive = ([pair[index] for pair in pairs] for index in (0, 1))
    return comparison.result(ours, naive, plan.device, described(sizes, images=images))
