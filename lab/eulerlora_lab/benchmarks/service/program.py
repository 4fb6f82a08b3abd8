"""All measurements of the service, one after another, on an otherwise idle machine."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from eulerlora_lab.benchmarks.results import Result, report
from eulerlora_lab.benchmarks.service.fairness import attackers, busy_connections
from eulerlora_lab.benchmarks.service.front import front
from eulerlora_lab.benchmarks.service.overload import overload
from eulerlora_lab.benchmarks.service.plan import FULL_SERVICE, SMALL_SERVICE, ServicePlan
from eulerlora_lab.benchmarks.service.throughput import (
    as_started,
    lone_request,
    throughput,
    triage_throughput,
)

_MEASUREMENTS: Mapping[str, Callable[[ServicePlan], Iterator[Result]]] = {
    "throughput": throughput,
    "as-started": as_started,
    "triage": triage_throughput,
    "lone-request": lone_request,
    "front": front,
    "overload": overload,
    "attackers": attackers,
    "busy-connections": busy_connections,
}


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(_MEASUREMENTS)), help="Run only these."
)
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Send the first files of this folder instead of synthetic images.",
)
@click.argument("options", nargs=-1, metavar="[-- OPTIONS OF eulerlora serve]")
def main(small: bool, only: tuple[str, ...], images: Path | None, options: tuple[str, ...]) -> None:
    """Measure the service on this machine and print a table."""
    sizes = SMALL_SERVICE if small else FULL_SERVICE
    plan = sizes.model_copy(update={"options": options, "image_folder": images})
    report(result for name in only or _MEASUREMENTS for result in _MEASUREMENTS[name](plan))
