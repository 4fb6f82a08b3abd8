"""The command `eulerlora reproduce`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.errors import DataError, SettingsError
from eulerlora.nn.openmp import set_openmp_wait_policy
from training.commands.options import PATH

if TYPE_CHECKING:
    from training.recipe.schema import AdapterTraining, PosteriorFit, WholeNetworkSettings
    from training.reproduction.estimate import RunEstimate
    from training.reproduction.runs import TableRun
    from training.reproduction.table import Table


@click.command("reproduce")
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
    help="List the runs with their hours, memory and disk space here, and missing inputs.",
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
    set_openmp_wait_policy()
    # These import torch.
    from training.reproduction.prerequisites import read_inputs  # noqa: PLC0415
    from training.reproduction.runs import runs_of  # noqa: PLC0415
    from training.reproduction.table import read_table, table_names  # noqa: PLC0415
    from training.results.further_tables import further_tables  # noqa: PLC0415
    from training.results.metrics_table import markdown_table  # noqa: PLC0415
    from training.scheduling.local import all_devices  # noqa: PLC0415

    if table not in table_names():
        raise click.UsageError(f"expected one of {', '.join(table_names())}, got {table!r}")
    train = _scheduler(engine, devices, cpus)
    selected = read_table(table)
    runs = runs_of(selected, _seeds(selected, seeds), overrides, out, variants)
    for run in runs:
        run.check()
    unfinished = [run for run in runs if run.status != "finished"]
    if dry_run:
        used = devices or all_devices()
        _list(runs, _estimates(unfinished, data, used[0]), _missing(unfinished, data), used)
        return
    read_inputs([(run.recipe, run.file.parent) for run in unfinished], data)
    failures = train(runs, data)
    click.echo(markdown_table(selected, runs))
    click.echo(further_tables(selected, runs))
    compared = selected.of_variants(variants) if variants else selected
    if compared.endpoints is not None:
        _compare(compared, runs, out / f"{'+'.join([table, *variants])}.json")
    if failures:
        raise DataError(f"{len(failures)} of {len(runs)} runs failed: {failures[0]}")


def _scheduler(
    engine: str, devices: tuple[str, ...], cpus: int | None
) -> Callable[[Sequence[TableRun], Path], list[str]]:
    """Returns the function that trains runs on a data directory and returns their failures."""
    # These import torch.
    from training.scheduling.local import all_devices, train_all  # noqa: PLC0415
    from training.scheduling.ray_cluster import (  # noqa: PLC0415
        RunResources,
        check_ray,
        train_on_cluster,
    )

    if engine == "local":
        if cpus is not None:
            raise click.UsageError("--cpus needs --engine ray")
        return partial(train_all, devices=devices or all_devices())
    if devices not in ((), ("cpu",), ("cuda",)):
        raise click.UsageError(
            f"expected --device cpu or cuda with --engine ray, got {', '.join(devices)}"
        )
    check_ray()
    resources = RunResources(device=devices[0] if devices else None, cpus=cpus or 1)
    return partial(train_on_cluster, resources=resources)


def _seeds(table: Table, text: str) -> Sequence[int]:
    """Returns the seeds of `--seeds`; the table's first if empty."""
    if text == "all":
        return table.seeds
    try:
        seeds = dict.fromkeys(int(seed) for seed in text.split(",")) if text else {}
    except ValueError as error:
        raise SettingsError(f"expected --seeds all or such as 0,42, got {text!r}") from error
    return tuple(seeds) or table.seeds[:1]


def _compare(table: Table, runs: Sequence[TableRun], path: Path) -> None:
    """Prints the endpoints of a table and writes them to a JSON file, if two seeds are finished."""
    # These import torch.
    from training.results.comparison import FEWEST_SEEDS, compare  # noqa: PLC0415
    from training.results.comparison_report import (  # noqa: PLC0415
        comparison_json,
        comparison_markdown,
        write_comparison,
    )

    comparison = compare(table, runs)
    if comparison is None:
        click.echo(f"no endpoints: expected at least {FEWEST_SEEDS} seeds with all runs finished")
        return
    click.echo(comparison_markdown(comparison))
    write_comparison(path, comparison_json(table, runs, comparison))
    click.echo(f"results by seed and epoch in {path}")


def _missing(runs: Sequence[TableRun], data: Path) -> list[str]:
    """Returns the missing inputs of the runs, without repetitions."""
    from training.reproduction.prerequisites import missing_inputs  # noqa: PLC0415 - imports torch

    inputs = [missing_inputs(run.recipe, run.file.parent, data) for run in runs]
    return list(dict.fromkeys(name for names in inputs for name in names))


def _estimates(runs: Sequence[TableRun], data: Path, device: str) -> dict[Path, RunEstimate | None]:
    """Returns what each run costs on a device of this machine, by its folder."""
    # These import torch.
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.reproduction.estimate import estimate  # noqa: PLC0415
    from training.reproduction.prerequisites import image_counts  # noqa: PLC0415

    chosen = choose_device(device)
    return {
        run.out: estimate(run.recipe, run.file.parent, image_counts(run.recipe.data, data), chosen)
        for run in runs
    }


def _list(
    runs: Sequence[TableRun],
    estimates: Mapping[Path, RunEstimate | None],
    missing: Sequence[str],
    devices: Sequence[str],
) -> None:
    for run in runs:
        cost = _cost(estimates[run.out]) if run.out in estimates else "done"
        click.echo(f"{run.status:9}{run.name}: {cost}; {_settings(run)}")
    known = [cost for cost in estimates.values() if cost is not None and cost.hours is not None]
    if known:
        hours = sum(cost.hours or 0 for cost in known) / len(devices)
        disk = sum(cost.disk_bytes for cost in known)
        click.echo(
            f"in total: about {_hours(hours)} on {', '.join(devices)} at the speed measured just "
            f"now, and {_gigabytes(disk)} of disk space"
        )
    for name in missing:
        click.echo(f"missing: {name}")
    if not missing:
        click.echo("nothing is missing")


def _cost(cost: RunEstimate | None) -> str:
    """Returns the hours, memory and disk space of a run; "cost unknown" without its backbone."""
    if cost is None:
        return "cost unknown"
    hours = "unknown hours" if cost.hours is None else f"about {_hours(cost.hours)}"
    return f"{hours}, {_gigabytes(cost.memory_bytes)} memory, {_gigabytes(cost.disk_bytes)} disk"


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours < 1 else f"{hours:,.1f} h"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


def _settings(run: TableRun) -> str:
    """Returns the settings in which runs differ, in one line."""
    from eulerlora.methods.settings import is_sampled, law_text, members_text  # noqa: PLC0415 - pydantic

    recipe = run.recipe
    adapters, training, whole = recipe.adapters, recipe.training, recipe.whole_network
    size, law = recipe.backbone.image_size, law_text(recipe.method, adapters)
    parts = [
        f"{recipe.data.kind}, {recipe.data.split} split",
        recipe.backbone.weights + (f" at {size} pixels" if size else ""),
        members_text(recipe.method, adapters) if whole is None else _whole(whole),
        f"{law}, {training.samples} samples{'' if training.sampling else ' not drawn in training'}"
        if is_sampled(recipe.method, adapters)
        else law,
        f"{training.epochs} epochs of batches of {training.batch_size}, "
        f"rate {training.learning_rate:g}, {_decay(training)}, "
        f"warm-up {training.warmup_steps}",
        f"{training.augmentation} views, {training.head} head, "
        f"class weights {training.class_weights}",
        f"{training.precision}, seed {recipe.seed}",
    ]
    if recipe.posterior is not None:
        parts.append(_posterior(recipe.posterior))
    return "; ".join(parts)


def _posterior(posterior: PosteriorFit) -> str:
    """Returns the distribution that is fitted, with its settings."""
    settings = posterior.model_dump(exclude={"name"}, exclude_none=True)
    values = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"then {posterior.name} ({values})"


def _decay(training: AdapterTraining) -> str:
    added = " added to the gradient" if training.optimiser == "adam-l2" else ""
    return f"decay {training.weight_decay:g}{added}"


def _whole(whole: WholeNetworkSettings) -> str:
    """Returns the settings of whole networks."""
    several = f"{whole.members} members, {whole.ensemble}" if whole.members > 1 else "1 member"
    return f"all weights, {several}" + (", L2 attention" if whole.attention == "l2" else "")
