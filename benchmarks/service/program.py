"""All measurements of the service, one after another, on an otherwise idle machine."""

from collections.abc import Callable, Iterator, Mapping

import click

from benchmarks.results import Result, report
from benchmarks.service.fairness import attackers
from benchmarks.service.overload import overload
from benchmarks.service.plan import FULL_SERVICE, SMALL_SERVICE, ServicePlan
from benchmarks.service.throughput import single_request, throughput

MEASUREMENTS: Mapping[str, Callable[[ServicePlan], Iterator[Result]]] = {
    "throughput": throughput,
    "lone-request": single_request,
    "overload": overload,
    "attackers": attackers,
}


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="Run only these."
)
@click.argument("options", nargs=-1, metavar="[-- OPTIONS OF eulerlora serve]")
def main(small: bool, only: tuple[str, ...], options: tuple[str, ...]) -> None:
    """Measure the service on this machine and print a table."""
    plan = (SMALL_SERVICE if small else FULL_SERVICE).model_copy(update={"options": options})
    report(result for name in only or MEASUREMENTS for result in MEASUREMENTS[name](plan))
