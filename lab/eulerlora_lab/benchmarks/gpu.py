"""Inference, training step and service on a GPU: `python -m eulerlora_lab.benchmarks.gpu`.

It takes under 8 minutes. All implementations are checked first; nothing is timed if a check fails.
Then it measures graph capture, rows per second by row count, their share of the device's own matrix
product, memory, the latency of one and of all trajectories, the service with decoding, and the
comparisons of `benchmarks.cpu`, which train too. `--device cpu --small` runs the same code in a
minute without a GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import torch
from torch import Tensor

from eulerlora.model import choose_device
from eulerlora_contract.errors import SettingsError
from eulerlora_lab.benchmarks.baselines.naive import naive_logits, ordinary_members
from eulerlora_lab.benchmarks.compiled_engine import (
    engine_of,
    graph_compilation,
    latency,
    matrix_product_share,
    pass_memory,
    row_rates,
)
from eulerlora_lab.benchmarks.cpu import COMPARISONS
from eulerlora_lab.benchmarks.results import Result, report
from eulerlora_lab.benchmarks.service.plan import FULL_SERVICE, SMALL_SERVICE
from eulerlora_lab.benchmarks.service.throughput import device_rate
from eulerlora_lab.benchmarks.workload import FULL, SMALL, Plan, Workload, build_engine

_TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}
"""Of probabilities, by the first word of a check."""


def _differences(plan: Plan) -> dict[str, float]:
    """The largest difference of a probability from the network's plain float32 pass, by name."""
    load = Workload.random(plan.sizes.large, min(2, plan.sizes.images), plan.device)
    engines = {
        "float32": build_engine(load.network, "float32"),
        "bfloat16": build_engine(load.network, "bfloat16"),
    }
    if plan.compiler is not None:
        engines["bfloat16, compiled"] = engine_of(plan).run
    logits = {name: engine(load.images, load.rows, load.draws) for name, engine in engines.items()}
    naive = naive_logits(ordinary_members(load.network), load.images, load.unstacked)
    with torch.inference_mode():
        plain: Tensor = load.network(load.images, load.rows, load.draws)
        on_the_cpu = load.network.cpu()(
            load.images.cpu(), load.rows.to(torch.device("cpu")), load.draws.to(load.images.cpu())
        )
    logits |= {"float32, naive loop": naive.flatten(0, 1), "float32, plain on the CPU": on_the_cpu}
    return {name: _difference(actual, plain) for name, actual in logits.items()}


def _difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference of a probability; NaN counts as 1."""
    first, second = (each.detach().cpu().double().softmax(dim=-1) for each in (actual, expected))
    return (first - second).abs().nan_to_num(nan=1.0).max().item()


def check(plan: Plan) -> None:
    """Prints the differences.

    Raises:
        ClickException: For those above their tolerance.
    """
    wrong = []
    for name, difference in _differences(plan).items():
        allowed = _TOLERANCE[name.split(",", maxsplit=1)[0]]
        click.echo(f"{name}: difference {difference:.2g} of {allowed:g}")
        if difference > allowed:
            wrong.append(name)
    if wrong:
        raise click.ClickException(f"wrong probabilities: {'; '.join(wrong)}")


def _single(compare: Callable[[Plan], Result]) -> Callable[[Plan], Iterable[Result]]:
    return lambda plan: [compare(plan)]


_MEASUREMENTS: Mapping[str, Callable[[Plan], Iterable[Result]]] = {
    "graphs": graph_compilation,
    "row-rates": row_rates,
    "matrix-product-share": matrix_product_share,
    "pass-memory": pass_memory,
    "latency": latency,
    "service": lambda plan: device_rate(
        SMALL_SERVICE if plan.sizes == SMALL else FULL_SERVICE, plan.device
    ),
    **{name: _single(compare) for name, compare in COMPARISONS.items()},
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
    """Check, then measure on a CUDA device and print a table."""
    try:
        torch_device = choose_device(device)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    compiler = "inductor" if torch_device.type == "cuda" else "eager"
    plan = Plan(SMALL if small else FULL, torch_device, compiler)
    check(plan)
    report(_results(only or tuple(_MEASUREMENTS), plan), out)


def _results(names: Sequence[str], plan: Plan) -> Iterator[Result]:
    for name in names:
        yield from _MEASUREMENTS[name](plan)
        if plan.device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
