"""The command `eulerlora reproduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import click

from eulerlora.commands import configure_openmp
from eulerlora_contract.errors import DataError, SettingsError
from eulerlora_contract.program import PATH

if TYPE_CHECKING:
    from eulerlora_lab.tables.table import ResultTable, TableRun


@click.command(
    "reproduce",
    epilog="\b\nExample:\n  eulerlora reproduce ham10000-compact --data data --dry-run",
)
@click.argument("table", metavar="TABLE")
@click.option("--data", type=PATH, default=Path("data"), show_default=True, help="Data directory.")
@click.option(
    "--out", type=PATH, default=Path("runs"), show_default=True, help="Folder of the runs."
)
@click.option(
    "--seeds",
    default="",
    help="all, or a list such as 0,42; the table's first seed by default.",
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    help="Only this variant of the table's recipe; repeat it for more. Default: all.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace a key in every run."
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    help="Device that runs one training at a time; repeat it for more. Default: all GPUs, or cpu.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Run on this machine, or on all machines of a Ray cluster.",
)
@click.option(
    "--cpus",
    type=click.IntRange(min=1),
    help="With --engine ray: CPUs that a run reserves; 1 by default.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="List the runs with their settings.",
)
def reproduce_command(
    table: str,
    data: Path,
    out: Path,
    seeds: str,
    variants: tuple[str, ...],
    overrides: tuple[str, ...],
    devices: tuple[str, ...],
    engine: str,
    cpus: int | None,
    dry_run: bool,
) -> None:
    """Train and evaluate all runs of a table; print it beside the published results.

    Prints the cost of every method too, and metrics of the mean logits beside those of the mean
    probability. Skips the finished runs in --out and continues the interrupted ones. A table with
    endpoints also prints their tests and writes TABLE.json to --out; with --variant, those between
    the variants, to TABLE+VARIANT+VARIANT.json. An unknown TABLE lists the names.
    """
    configure_openmp()
    # These import torch.
    from eulerlora_lab.tables.results import further_tables, results_markdown  # noqa: PLC0415
    from eulerlora_lab.tables.table import read_inputs, read_table, runs_of, table_names  # noqa: PLC0415

    if table not in table_names():
        raise click.UsageError(f"expected one of {', '.join(table_names())}, got {table!r}")
    train = _scheduler(engine, devices, cpus)
    selected = read_table(table)
    runs = runs_of(selected, _seeds(selected, seeds), overrides, out, variants)
    for run in runs:
        run.check()
    if dry_run:
        _list(runs)
        return
    read_inputs([run for run in runs if run.status != "finished"], data)
    failures = train(runs, data)
    click.echo(results_markdown(selected, runs))
    click.echo(further_tables(selected, runs))
    if selected.differences(variants or None):
        _compare(selected, runs, out / f"{'+'.join([table, *variants])}.json")
    if failures:
        raise DataError(f"{len(failures)} of {len(runs)} runs failed: {failures[0]}")


def _scheduler(
    engine: str, devices: tuple[str, ...], cpus: int | None
) -> Callable[[Sequence[TableRun], Path], list[str]]:
    import torch  # noqa: PLC0415

    from eulerlora_lab.tables.local import train_all  # noqa: PLC0415
    from eulerlora_lab.tables.ray_cluster import RunResources, check_ray, train_on_cluster  # noqa: PLC0415

    if engine == "local":
        if cpus is not None:
            raise click.UsageError("--cpus needs --engine ray")
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        return partial(train_all, devices=devices or gpus or ["cpu"])
    if devices not in ((), ("cpu",), ("cuda",)):
        raise click.UsageError(
            f"expected --device cpu or cuda with --engine ray, got {', '.join(devices)}"
        )
    check_ray()
    resources = RunResources(device=devices[0] if devices else None, cpus=cpus or 1)
    return partial(train_on_cluster, resources=resources)


def _seeds(table: ResultTable, text: str) -> Sequence[int]:
    if text == "all":
        return table.seeds
    try:
        seeds = dict.fromkeys(int(seed) for seed in text.split(",")) if text else {}
    except ValueError as error:
        raise SettingsError(f"expected --seeds all or such as 0,42, got {text!r}") from error
    return tuple(seeds) or table.seeds[:1]


def _compare(table: ResultTable, runs: Sequence[TableRun], path: Path) -> None:
    # These import torch.
    from eulerlora_lab.tables.comparison import (  # noqa: PLC0415
        FEWEST_SEEDS,
        compare,
        comparison_markdown,
        write_comparison,
    )

    comparison = compare(table, runs)
    if comparison is None:
        click.echo(f"no endpoints: expected at least {FEWEST_SEEDS} seeds with all runs finished")
        return
    click.echo(comparison_markdown(comparison))
    write_comparison(path, table, runs, comparison)
    click.echo(f"results by seed and epoch in {path}")


def _list(runs: Sequence[TableRun]) -> None:
    from training.recipe.file import leaves  # noqa: PLC0415 - imports torch

    hours: dict[str | None, list[float]] = {}
    for run in runs:
        if run.status == "finished":
            hours.setdefault(run.recipe.variant, []).append(run.hours)
    settings = [
        {".".join(key): value for key, value in leaves(dump)}
        for dump in (run.recipe.without_source.model_dump(mode="json") for run in runs)
    ]
    for run, values in zip(runs, settings, strict=True):
        facts = []
        if run.status != "finished" and run.recipe.variant in hours:
            facts.append(f"about {mean(hours[run.recipe.variant]):.2f} h")
        facts += [
            f"{key} = {value}"
            for key, value in values.items()
            if any(others.get(key) != value for others in settings)
        ]
        click.echo(f"{run.status:9}{run.name}: {'; '.join(facts)}")
