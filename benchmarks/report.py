"""Markdown tables of all results by machine: `python -m benchmarks.report`."""

from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.measurement.reading import Reading
from benchmarks.measurement.result import Result, Side, Spread, Target
from benchmarks.measurement.results_file import FOLDER, Record, newest, read

HEADER = """| measurement | target | measured | ours | reference | spread of the ratio |
|---|---:|---:|---:|---:|---|"""
BOUNDS = {"at most": "≤", "at least": "≥"}


def markdown(results: Sequence[Record]) -> str:
    """Returns a heading and a table for each machine, with the newest result of each name."""
    machines: dict[str, list[Record]] = {}
    for result in newest(results):
        machines.setdefault(result.machine.name, []).append(result)
    return "\n".join(_section(name, records) for name, records in machines.items())


def _section(machine: str, results: Sequence[Record]) -> str:
    conditions = sorted(
        {
            f"{result.date.date()}, commit {(result.commit or 'unknown')[:12]}, "
            + ", ".join(f"{name} {number}" for name, number in result.versions.items())
            for result in results
        }
    )
    note = (
        "Ratios are ratios of medians from alternating runs. The spread is that of the ratios of "
        "paired runs: minimum, quartiles, maximum (number of runs). A row without a reference is "
        "a single value with the spread of its measurements."
    )
    lines = [f"## {machine}", "", *conditions, "", note, "", HEADER, *map(_row, results), ""]
    return "\n".join(lines)


def _row(record: Record) -> str:
    cells = _ratio_cells(record) if isinstance(record, Result) else _value_cells(record)
    return f"| {' | '.join([record.name, *cells])} |"


def _ratio_cells(result: Result) -> list[str]:
    return [
        "" if result.target is None else f"{BOUNDS[result.target.bound]} {result.target.value:.2f}",
        f"**{result.ratio:.2f}**{_verdict(result.target, result.ratio)}",
        _side(result.ours, result.unit),
        _side(result.reference, result.unit),
        _spread(result.ratio_spread, "ratio"),
    ]


def _value_cells(reading: Reading) -> list[str]:
    unit, target = reading.unit, reading.target
    return [
        "" if target is None else f"{BOUNDS[target.bound]} {_amount(target.value, unit)}",
        f"**{_amount(reading.value, unit)}**{_verdict(target, reading.value)}",
        reading.what,
        "",
        _spread(reading.spread, unit),
    ]


def _verdict(target: Target | None, measured: float) -> str:
    return "" if target is None else " ✓" if target.met_by(measured) else " ✗"


def _side(side: Side, unit: str) -> str:
    median = side.spread.median
    cost = _amount(median, unit)
    if side.work is not None:
        cost += f", {side.work / median / 1e9:.4g} GFLOP/s"
    return f"{cost} ({side.what})"


def _spread(spread: Spread, unit: str) -> str:
    low, first, middle, third, high = (
        _amount(value, unit)
        for value in (
            spread.minimum,
            spread.lower_quartile,
            spread.median,
            spread.upper_quartile,
            spread.maximum,
        )
    )
    return f"{low} [{first}, {middle}, {third}] {high} ({spread.repeats})"


def _amount(value: float, unit: str) -> str:
    match unit:
        case "ratio":
            return f"{value:.2f}"
        case "seconds":
            return f"{1000 * value:.4g} ms"
        case "bytes":
            return f"{value / 2**20:.1f} MiB"
        case "share":
            return f"{100 * value:.4g}%"
        case "count":
            return f"{value:g}"
    return f"{value:.4g} {unit}"


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(paths: tuple[Path, ...]) -> None:
    """Print the results in PATHS, or all results in benchmarks/results."""
    files = paths or sorted(FOLDER.glob("*.json*"))
    if not files:
        raise click.ClickException(
            "expected results in benchmarks/results, got none: run `python -m benchmarks.cpu` first"
        )
    click.echo(markdown([result for path in files for result in read(path)]), nl=False)


if __name__ == "__main__":
    main()
