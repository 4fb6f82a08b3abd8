"""Comparisons of training: time and peak memory of a step over the naive loop's."""

from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.measurement.timing import paired_seconds
from benchmarks.measurement.workload import Plan, Workload, described
from benchmarks.training.peak_memory import peak_bytes
from benchmarks.training.step import STEPS, Side

OURS: dict[Side, str] = {
    "ours": "all rows in one batch, float32",
    "cut": "micro-batches of two images' rows, float32",
}
CUT: dict[Side, str] = {"ours": "", "cut": " in micro-batches"}
NAIVE = "ordinary LoRA modules, one forward pass a trajectory, summed losses, float32"


def step_time_comparison(plan: Plan, side: Side) -> Result:
    """Forward, backward and AdamW on adapters and heads. side: which of our two steps."""
    sizes, images = plan.sizes.large, plan.sizes.images
    ours, naive = (
        STEPS[each](Workload.random(sizes, images, plan.device)) for each in (side, "naive")
    )
    comparison = Comparison(
        name=f"training step{CUT[side]}, {images} images x {sizes.trajectories} trajectories "
        "/ naive loop",
        ours=OURS[side],
        reference=NAIVE,
        target=Target(bound="at most", value=0.70),
    )
    seconds = paired_seconds(ours, naive, plan.sizes.step_repeats, 1, plan.device)
    return comparison.result(*seconds, plan.device, described(sizes, images=images))


def step_memory_comparison(plan: Plan, side: Side) -> Result:
    """Peak memory of a step beyond the model and its images."""
    sizes, images = plan.sizes.large, plan.sizes.images
    comparison = Comparison(
        name=f"training step{CUT[side]}, {images} images x {sizes.trajectories} trajectories, "
        "peak memory / naive loop",
        ours=OURS[side],
        reference=NAIVE,
        target=Target(bound="at most", value=0.80),
        unit="bytes",
    )
    pairs = [
        (
            float(peak_bytes(side, sizes, images, plan.device)),
            float(peak_bytes("naive", sizes, images, plan.device)),
        )
        for _ in range(plan.sizes.processes)
    ]
    ours, naive = ([pair[side] for pair in pairs] for side in (0, 1))
    return comparison.result(ours, naive, plan.device, described(sizes, images=images))
