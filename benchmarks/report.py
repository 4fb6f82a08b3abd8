"""All results as one Markdown table for each machine: `python -m benchmarks.report`."""

from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.measurement.reading import Reading
from benchmarks.measurement.result import Figure, Result, Spread, Target
from benchmarks.measurement.results_file import FOLDER, Record, newest, read

HEADER = """| figure | target | measured | ours | reference | spread of the ratio |
|---|---:|---:|---:|---:|---|"""
BOUNDS = {"at most": "≤", "at least": "≥"}


def markdown(results: Sequence[Record]) -> str:
    """A heading and a table for each machine, each figure as it was measured last."""
    machines: dict[str, list[Record]] = {}
    for result in newest(results):
        machines.setdefault(result.machine.name, []).append(result)
    return "\n".join(_section(name, own) for name, own in machines.items())


def _section(machine: str, results: Sequence[Record]) -> str:
    known = sorted(
        {
            f"{each.date.date()}, commit {(each.commit or 'unknown')[:12]}, "
            + ", ".join(f"{name} {number}" for name, number in each.versions.items())
            for each in results
        }
    )
    note = (
        "Ratios are of medians, from alternating runs; the spread is of the ratios of neighbouring "
        "runs: least, quartiles, greatest (number of runs). A figure without a reference is a "
        "value by itself, and the spread that of its measurements."
    )
    lines = [f"## {machine}", "", *known, "", note, "", HEADER, *map(_row, results), ""]
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


def _side(figure: Figure, unit: str) -> str:
    median = figure.spread.median
    cost = _amount(median, unit)
    if figure.work is not None:
        cost += f", {figure.work / median / 1e9:.4g} GFLOP/s"
    return f"{cost} ({figure.what})"


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
    """Print the results in PATHS, or all that are in benchmarks/results."""
    chosen = paths or sorted(FOLDER.glob("*.json*"))
    if not chosen:
        raise click.ClickException("no results yet: run `python -m benchmarks.cpu` first")
    click.echo(markdown([result for path in chosen for result in read(path)]), nl=False)


if __name__ == "__main__":
    main()
