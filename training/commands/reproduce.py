"""`eulerlora reproduce`: a table of the paper from one command."""

from collections.abc import Sequence
from pathlib import Path

import click

from eulerlora.errors import DataError, SettingsError
from training.reproduction.prerequisites import missing, prepare
from training.reproduction.reproduce import all_devices, train_all
from training.reproduction.results import markdown_table
from training.reproduction.runs import TableRun, runs_of
from training.reproduction.table import Table, read_table, table_names

PATH = click.Path(path_type=Path)


@click.command("reproduce")
@click.argument("table", type=click.Choice(table_names()))
@click.option("--data", type=PATH, default=Path("data"), help="The data directory.")
@click.option("--out", type=PATH, default=Path("runs"), help="Where runs are kept.")
@click.option("--seeds", default="", help="all, or such as 0,42; otherwise the table's first.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="For every run.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    help="One run at a time on each; name one twice for two. Otherwise all GPUs, or the CPU.",
)
@click.option("--dry-run", is_flag=True, help="List the runs and what is missing for them.")
def reproduce_command(
    table: str,
    data: Path,
    out: Path,
    seeds: str,
    overrides: tuple[str, ...],
    devices: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Train and measure all runs of a table; prints it beside the paper's figures.

    Finished runs in --out are kept, broken ones continue.
    """
    wanted = read_table(table)
    runs = runs_of(wanted, _seeds(wanted, seeds), overrides, out)
    for run in runs:
        run.check()
    unfinished = [run for run in runs if run.status != "finished"]
    if dry_run:
        _list(runs, _missing(unfinished, data))
        return
    prepare([(run.recipe, run.file.parent) for run in unfinished], data)
    failures = train_all(runs, data, devices or all_devices())
    click.echo(markdown_table(wanted, runs))
    if failures:
        raise DataError(f"{len(failures)} of {len(runs)} runs failed: {failures[0]}")


def _seeds(table: Table, asked: str) -> Sequence[int]:
    if asked == "all":
        return table.seeds
    try:
        named = dict.fromkeys(int(each) for each in asked.split(",")) if asked else {}
    except ValueError as error:
        raise SettingsError(f"--seeds wants all or such as 0,42, not {asked!r}") from error
    return tuple(named) or table.seeds[:1]


def _missing(runs: Sequence[TableRun], data: Path) -> list[str]:
    """What the runs need and is not there, each once."""
    folders = [(run.recipe, run.file.parent) for run in runs]
    return list(dict.fromkeys(each for one in folders for each in missing(*one, data)))


def _list(runs: Sequence[TableRun], absent: Sequence[str]) -> None:
    for run in runs:
        click.echo(f"{run.status:9}{run.name}: {_settings(run)}")
    for each in absent:
        click.echo(f"missing: {each}")
    if not absent:
        click.echo("nothing is missing")


def _settings(run: TableRun) -> str:
    """The settings that tell runs apart, in one line."""
    recipe = run.recipe
    adapters, training = recipe.adapters, recipe.training
    sampled, size = adapters.min_rank < adapters.rank, recipe.backbone.image_size
    parts = [
        f"{recipe.data.kind}, {recipe.data.split} split",
        recipe.backbone.weights + (f" at {size} pixels" if size else ""),
        f"{adapters.adapters} x rank {adapters.rank}",
        f"Kmin {adapters.min_rank}, T {adapters.steps}, sigma {adapters.scale:g}, "
        f"{training.samples} samples"
        if sampled
        else "not sampled",
        f"{training.epochs} epochs of batches of {training.batch_size}, "
        f"rate {training.learning_rate:g}, decay {training.weight_decay:g}, "
        f"warm-up {training.warmup_steps}",
        f"{training.augmentation} views, {training.head} head, "
        f"class weights {training.class_weights}",
        f"{training.precision}, seed {recipe.seed}",
    ]
    return "; ".join(parts)
