"""GPU benchmarks: `python -m benchmarks.gpu --out FILE`; less than 8 minutes.

All implementations are checked first; nothing is timed if a check fails. Then it measures graph
capture, rows per second by row count with the share of the card's computed ceiling, memory, the
latency of one and of all trajectories, the service with decoding, and the comparisons of
`benchmarks.cpu`, training step included. `--device cpu --small` runs the same code in a minute
without a GPU.
"""

import time
from pathlib import Path

import click
import torch

from benchmarks.comparisons import GPU
from benchmarks.inference.correctness import WrongLogitsError, checks, require
from benchmarks.measurement.results_file import GpuRun, Record
from benchmarks.measurement.sizes import FULL, SMALL
from benchmarks.measurement.workload import Plan
from eulerlora.errors import SettingsError
from eulerlora.model import choose_device


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A JSON file.")
@click.option("--device", default="cuda", help="cuda, cuda:N or cpu.")
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option("--only", multiple=True, type=click.Choice(list(GPU)), help="Run only these.")
def main(out: Path, device: str, small: bool, only: tuple[str, ...]) -> None:
    """Check, then measure on a CUDA device."""
    started = time.monotonic()
    try:
        torch_device = choose_device(device)
        compiler = "inductor" if torch_device.type == "cuda" else "eager"
        plan = Plan(SMALL if small else FULL, torch_device, compiler)
        checked = checks(plan)
        for check in checked:
            click.echo(check.model_dump_json())
        require(checked)
    except (SettingsError, WrongLogitsError) as error:
        raise click.ClickException(str(error)) from error
    results: list[Record] = []
    for name in only or GPU:
        for result in GPU[name](plan):
            results.append(result)
            click.echo(result.model_dump_json())
            seconds = time.monotonic() - started
            run = GpuRun(seconds=seconds, checks=checked, results=results)
            # after every result, in case the run is stopped
            out.write_text(run.model_dump_json(indent=1) + "\n")
        if torch_device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
