"""The figures of this machine's CPU: `python -m benchmarks.cpu`, on an otherwise idle machine.

Prints each result as a line of JSON and appends it to `benchmarks/results/MACHINE.jsonl`.
"""

from pathlib import Path

import click
import torch

from benchmarks.comparisons import ANYWHERE
from benchmarks.measurement.machine import this_machine
from benchmarks.measurement.results_file import FOLDER, append
from benchmarks.measurement.sizes import FULL, SMALL
from benchmarks.measurement.workload import Plan

CPU = torch.device("cpu")


@click.command()
@click.option("--small", is_flag=True, help="Tiny sizes, to see that all runs; not recorded.")
@click.option("--only", multiple=True, type=click.Choice(list(ANYWHERE)), help="Not all of them.")
@click.option("--threads", type=click.IntRange(min=1), help="Instead of torch's own choice.")
@click.option("--out", type=click.Path(path_type=Path), help="Another file of lines.")
def main(small: bool, only: tuple[str, ...], threads: int | None, out: Path | None) -> None:
    """Measure on the CPU."""
    if threads is not None:
        torch.set_num_threads(threads)
    plan = Plan(SMALL if small else FULL, CPU)
    path = out or (None if small else FOLDER / f"{this_machine(CPU).slug}.jsonl")
    for name in only or ANYWHERE:
        result = ANYWHERE[name](plan)
        click.echo(result.model_dump_json())
        if path is not None:
            append(path, result)


if __name__ == "__main__":
    main()
