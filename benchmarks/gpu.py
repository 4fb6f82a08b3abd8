"""Inference, training step and service on a GPU: `python -m benchmarks.gpu`; under 8 minutes.

All implementations are checked first; nothing is timed if a check fails. Then it measures graph
capture, rows per second by row count with the share of the card's computed ceiling, memory, the
latency of one and of all trajectories, the service with decoding, and the comparisons of
`benchmarks.cpu`. `--device cpu --small` runs the same code in a minute without a GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import torch

from benchmarks.compiled_engine import graph_compilation, latency, pass_memory, row_rates
from benchmarks.correctness import WrongLogitsError, checks, require
from benchmarks.cpu import COMPARISONS
from benchmarks.results import Result, report
from benchmarks.service.plan import FULL as FULL_SERVICE
from benchmarks.service.plan import SMALL as SMALL_SERVICE
from benchmarks.service.throughput import device_rate
from benchmarks.workload import FULL, SMALL, Plan
from eulerlora.model import choose_device
from eulerlora_client.errors import SettingsError


def _service(plan: Plan) -> Iterator[Result]:
    return device_rate(SMALL_SERVICE if plan.sizes == SMALL else FULL_SERVICE, plan.device)


def _single(compare: Callable[[Plan], Result]) -> Callable[[Plan], Iterable[Result]]:
    return lambda plan: [compare(plan)]


MEASUREMENTS: Mapping[str, Callable[[Plan], Iterable[Result]]] = {
    "graphs": graph_compilation,
    "row-rates": row_rates,
    "pass-memory": pass_memory,
    "latency": latency,
    "ceiling": _single(COMPARISONS["ceiling"]),
    "service": _service,
    **{name: _single(compare) for name, compare in COMPARISONS.items() if name != "ceiling"},
}
"""The most important first, in case the time ends."""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="JSON Lines file for the results.")
@click.option("--device", default="cuda", help="cuda, cuda:N or cpu.")
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="Run only these."
)
def main(out: Path | None, device: str, small: bool, only: tuple[str, ...]) -> None:
    """Check, then measure on a CUDA device and print a table."""
    try:
        torch_device = choose_device(device)
        compiler = "inductor" if torch_device.type == "cuda" else "eager"
        plan = Plan(SMALL if small else FULL, torch_device, compiler)
        checked = checks(plan)
        for check in checked:
            click.echo(f"{check.name}: difference {check.difference:.2g} of {check.allowed:g}")
        require(checked)
    except (SettingsError, WrongLogitsError) as error:
        raise click.ClickException(str(error)) from error
    report(_results(only or tuple(MEASUREMENTS), plan), out)


def _results(names: Sequence[str], plan: Plan) -> Iterator[Result]:
    for name in names:
        yield from MEASUREMENTS[name](plan)
        if plan.device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
