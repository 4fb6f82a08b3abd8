"""Inference, training step and service on a GPU: `python -m eulerlora_lab.benchmarks.gpu`.

Each measurement ends with its rows or with a row that has its error, and the next one runs in
either case; the first one, plain passes, needs neither a compiler nor graphs. `plain`, `recorded`
and `compiled` are our engine; `backbone` and `timm` are plain Vision Transformers of the same
shape. Then come memory, latency, the service with decoding and the comparisons of `benchmarks.cpu`,
which train too, and last what Inductor compiles. Utilisation needs the package nvidia-ml-py.
`--device cpu --small` runs the same code in a minute without a GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
import torch

from eulerlora.model import choose_device
from eulerlora_contract.errors import SettingsError
from eulerlora_lab.benchmarks.baselines.naive import naive_logits, ordinary_members
from eulerlora_lab.benchmarks.cpu import COMPARISONS
from eulerlora_lab.benchmarks.device_engine import (
    check,
    latency,
    matrix_product_share,
    pass_memory,
    plain_networks,
    row_rates,
)
from eulerlora_lab.benchmarks.results import Failure, Result, report
from eulerlora_lab.benchmarks.service.plan import FULL_SERVICE, SMALL_SERVICE
from eulerlora_lab.benchmarks.service.throughput import device_rate
from eulerlora_lab.benchmarks.workload import FULL, SMALL, Plan, Workload, build_engine

_TOLERANCE = 1e-3
"""Of probabilities in float32."""
_ERROR_CHARACTERS = 200


def _comparison(compare: Callable[[Plan], Result], plan: Plan) -> Iterator[Result]:
    """A comparison with the naive loop, in float32 checked first."""
    load = Workload.random(plan.sizes.large, min(2, plan.sizes.images), plan.device)
    with torch.inference_mode():
        expected = load.network(load.images, load.rows, load.draws)
    ours = build_engine(load.network, "float32")(load.images, load.rows, load.draws)
    naive = naive_logits(ordinary_members(load.network), load.images, load.coefficients)
    for logits in (ours, naive.flatten(0, 1)):
        check(logits, expected, _TOLERANCE)
    yield compare(plan)


_MEASUREMENTS: Mapping[str, Callable[[Plan], Iterable[Result]]] = {
    "plain": partial(row_rates, kind="plain"),
    "recorded": partial(row_rates, kind="recorded"),
    "timm": partial(plain_networks, library="timm"),
    "service": lambda plan: device_rate(
        SMALL_SERVICE if plan.sizes == SMALL else FULL_SERVICE, plan.device
    ),
    "matrix-product-share": matrix_product_share,
    "pass-memory": pass_memory,
    "latency": latency,
    **{name: partial(_comparison, compare) for name, compare in COMPARISONS.items()},
    "backbone": partial(plain_networks, library="ours"),
    "compiled": partial(row_rates, kind="compiled"),
}
"""The most important first, in case the time ends."""


@click.command()
@click.option("--device", default="cuda", help="cuda, cuda:N or cpu.")
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(_MEASUREMENTS)), help="Run only these."
)
@click.option("--out", type=click.Path(path_type=Path), help="Add the results to this JSONL file.")
def main(device: str, small: bool, only: tuple[str, ...], out: Path | None) -> None:
    """Measure on a CUDA device and print a table; the status is 1 if a measurement failed."""
    try:
        torch_device = choose_device(device)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    compiler = "inductor" if torch_device.type == "cuda" else "eager"
    plan = Plan(SMALL if small else FULL, torch_device, compiler)
    names = [name for name in _MEASUREMENTS if name != "timm" or find_spec("timm") is not None]
    failed: list[str] = []
    report(_results(only or names, plan, failed), out)
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


def _results(names: Sequence[str], plan: Plan, failed: list[str]) -> Iterator[Result | Failure]:
    """The rows of the named measurements; adds the names of those that fail."""
    for name in names:
        try:
            yield from _MEASUREMENTS[name](plan)
            if plan.device.type == "cuda":
                torch.cuda.empty_cache()
        except Exception as error:  # whatever it is, the others are measured
            failed.append(name)
            text = " ".join(str(error).split())
            yield Failure(name, f"{type(error).__name__}: {text[:_ERROR_CHARACTERS]}")


if __name__ == "__main__":
    main()
