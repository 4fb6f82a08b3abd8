"""CPU benchmarks: `python -m benchmarks.cpu`, on an otherwise idle machine.

Prints each result as a line of JSON and appends it to `benchmarks/results/MACHINE.jsonl`.
"""

from pathlib import Path

import click
import torch

from benchmarks.comparisons import ALL_DEVICES
from benchmarks.measurement.machine import this_machine
from benchmarks.measurement.results_file import FOLDER, append
from benchmarks.measurement.sizes import FULL, SMALL
from benchmarks.measurement.workload import Plan

CPU = torch.device("cpu")


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test; do not record.")
@click.option("--only", multiple=True, type=click.Choice(list(ALL_DEVICES)), help="Run only these.")
@click.option("--threads", type=click.IntRange(min=1), help="Number of torch threads.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON Lines file for the results.")
def main(small: bool, only: tuple[str, ...], threads: int | None, out: Path | None) -> None:
    """Measure on the CPU."""
    if threads is not None:
        torch.set_num_threads(threads)
    plan = Plan(SMALL if small else FULL, CPU)
    path = out or (None if small else FOLDER / f"{this_machine(CPU).slug}.jsonl")
    for name in only or ALL_DEVICES:
        result = ALL_DEVICES[name](plan)
        click.echo(result.model_dump_json())
        if path is not None:
            append(path, result)


if __name__ == "__main__":
    main()
