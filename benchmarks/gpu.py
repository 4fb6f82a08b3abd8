"""The figures of a CUDA device: `python -m benchmarks.gpu --out FILE`, in less than 8 minutes.

Every way to the logits is checked first, and nothing is timed if one of them is wrong.
`--device cpu --small` runs the same in seconds where there is no GPU.
"""

import time
from pathlib import Path

import click
import torch

from benchmarks.comparisons import GPU
from benchmarks.inference.correctness import WrongLogitsError, checks, require
from benchmarks.measurement.result import Result
from benchmarks.measurement.results_file import GpuRun
from benchmarks.measurement.sizes import FULL, SMALL
from benchmarks.measurement.workload import Plan
from eulerlora.errors import SettingsError
from eulerlora.model import choose_device


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A JSON file.")
@click.option("--device", default="cuda", help="cuda, cuda:N or cpu.")
@click.option("--small", is_flag=True, help="Tiny sizes, to see that all runs.")
@click.option("--only", multiple=True, type=click.Choice(list(GPU)), help="Not all of them.")
def main(out: Path, device: str, small: bool, only: tuple[str, ...]) -> None:
    """Check, then measure on a CUDA device."""
    started = time.monotonic()
    try:
        chosen = choose_device(device)
        compiler = "inductor" if chosen.type == "cuda" else "eager"
        plan = Plan(SMALL if small else FULL, chosen, compiler)
        found = checks(plan)
        for check in found:
            click.echo(check.model_dump_json())
        require(found)
    except (SettingsError, WrongLogitsError) as error:
        raise click.ClickException(str(error)) from error
    results: list[Result] = []
    for name in only or GPU:
        results.append(GPU[name](plan))
        click.echo(results[-1].model_dump_json())
        seconds = time.monotonic() - started
        run = GpuRun(seconds=seconds, checks=found, results=results)
        out.write_text(run.model_dump_json(indent=1) + "\n")  # what there is, should it be cut off
        if chosen.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
