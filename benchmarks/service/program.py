"""All measurements of the service, one after another, on an otherwise idle machine.

Prints each result as a line of JSON and appends it to `benchmarks/results/service-MACHINE.jsonl`.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import torch

from benchmarks.measurement.machine import this_machine
from benchmarks.measurement.results_file import FOLDER, Record, append
from benchmarks.service.measurements.attackers import attackers
from benchmarks.service.measurements.backbone_pass import backbone_pass
from benchmarks.service.measurements.half_open import half_open
from benchmarks.service.measurements.litserve import litserve_comparison
from benchmarks.service.measurements.mixed_input import mixed_input
from benchmarks.service.measurements.overload import overload
from benchmarks.service.measurements.sigterm import sigterm
from benchmarks.service.measurements.single_request import photograph, single_request
from benchmarks.service.measurements.start import start
from benchmarks.service.measurements.throughput import throughput
from benchmarks.service.measurements.waiting import waiting
from benchmarks.service.plan import FULL, SMALL

MEASUREMENTS: Mapping[str, Callable[..., Iterator[Record]]] = {
    "throughput": throughput,
    "lone-request": single_request,
    "photograph": photograph,
    "plain-pass": backbone_pass,
    "litserve": litserve_comparison,
    "overload": overload,
    "half-open": half_open,
    "mixed-input": mixed_input,
    "sigterm": sigterm,
    "attackers": attackers,
    "waiting": waiting,
    "start": start,
}


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test; do not record.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="Run only these."
)
@click.option(
    "--data",
    envvar="EULERLORA_DATA",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with HAM10000, for throughput on its images too.",
)
@click.option(
    "--mixed-seconds", type=click.FloatRange(1), help="Duration of the mixed input; default 600."
)
@click.option("--out", type=click.Path(path_type=Path), help="JSON Lines file for the results.")
@click.argument("options", nargs=-1, metavar="[-- OPTIONS OF eulerlora serve]")
def main(
    small: bool,
    only: tuple[str, ...],
    data: Path | None,
    mixed_seconds: float | None,
    out: Path | None,
    options: tuple[str, ...],
) -> None:
    """Measure the service on this machine."""
    plan = (SMALL if small else FULL).model_copy(update={"options": options, "real_images": data})
    if mixed_seconds is not None:
        warmup_s = min(plan.warmup_s, mixed_seconds / 3)
        plan = plan.model_copy(update={"mixed_s": mixed_seconds, "warmup_s": warmup_s})
    slug = this_machine(torch.device("cpu")).slug
    path = out or (None if small else FOLDER / f"service-{slug}.jsonl")
    for name in only or MEASUREMENTS:
        for record in MEASUREMENTS[name](plan):
            click.echo(record.model_dump_json())
            if path is not None:
                append(path, record)
