"""Inference and training step on a CPU: `python -m benchmarks.cpu`, on an idle machine."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click
import torch

from benchmarks.inference import (
    ceiling_comparison,
    mixed_batch_comparison,
    naive_comparison,
    peft_comparison,
    vmap_comparison,
)
from benchmarks.results import Result, report
from benchmarks.training_step import step_memory, step_time
from benchmarks.workload import FULL, SMALL, Plan

COMPARISONS: Mapping[str, Callable[[Plan], Result]] = {
    "naive-auto": partial(naive_comparison, choice="auto"),
    "naive-float32": partial(naive_comparison, choice="float32"),
    "naive-bfloat16": partial(naive_comparison, choice="bfloat16"),
    "vmap": vmap_comparison,
    "peft-set-adapter": partial(peft_comparison, mixed_batch=False),
    "peft-mixed-batch": partial(peft_comparison, mixed_batch=True),
    "ceiling": ceiling_comparison,
    "mixed-modes": mixed_batch_comparison,
    "step-time": partial(step_time, method="one-batch"),
    "step-time-cut": partial(step_time, method="micro-batches"),
    "step-memory": partial(step_memory, method="one-batch"),
    "step-memory-cut": partial(step_memory, method="micro-batches"),
}
"""Comparisons of all devices; `benchmarks.gpu` runs them too."""


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option("--only", multiple=True, type=click.Choice(list(COMPARISONS)), help="Run only these.")
@click.option("--threads", type=click.IntRange(min=1), help="Number of torch threads.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON Lines file for the results.")
def main(small: bool, only: tuple[str, ...], threads: int | None, out: Path | None) -> None:
    """Measure on the CPU and print a table."""
    if threads is not None:
        torch.set_num_threads(threads)
    plan = Plan(SMALL if small else FULL, torch.device("cpu"))
    report((COMPARISONS[name](plan) for name in only or COMPARISONS), out)


if __name__ == "__main__":
    main()
