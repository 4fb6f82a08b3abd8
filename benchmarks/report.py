"""All results as one Markdown table for each machine: `python -m benchmarks.report`."""

from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.result import Figure, Result, Spread
from benchmarks.results_file import FOLDER, newest, read

HEADER = """| figure | target | measured | ours | reference | spread of the ratio |
|---|---:|---:|---:|---:|---|"""
BOUNDS = {"at most": "≤", "at least": "≥"}


def markdown(results: Sequence[Result]) -> str:
    """A heading and a table for each machine, each figure as it was measured last."""
    machines: dict[str, list[Result]] = {}
    for result in newest(results):
        machines.setdefault(result.machine.name, []).append(result)
    return "\n".join(_section(name, own) for name, own in machines.items())


def _section(machine: str, results: Sequence[Result]) -> str:
    known = sorted(
        {
            f"{each.date.date()}, commit {(each.commit or 'unknown')[:12]}, "
            + ", ".join(f"{name} {number}" for name, number in each.versions.items())
            for each in results
        }
    )
    note = (
        "Ratios are of medians, from alternating runs in one process; the spread is of the ratios "
        "of neighbouring runs: least, quartiles, greatest (number of runs)."
    )
    lines = [f"## {machine}", "", *known, "", note, "", HEADER, *map(_row, results), ""]
    return "\n".join(lines)


def _row(result: Result) -> str:
    target, verdict = "", ""
    if result.target is not None:
        target = f"{BOUNDS[result.target.bound]} {result.target.value:.2f}"
        verdict = " ✓" if result.target.met_by(result.ratio) else " ✗"
    cells = [
        result.name,
        target,
        f"**{result.ratio:.2f}**{verdict}",
        _side(result.ours, result.unit),
        _side(result.reference, result.unit),
        _spread(result.ratio_spread),
    ]
    return f"| {' | '.join(cells)} |"


def _side(figure: Figure, unit: str) -> str:
    median = figure.spread.median
    cost = f"{median / 2**20:.1f} MiB" if unit == "bytes" else f"{1000 * median:.4g} ms"
    if figure.work is not None:
        cost += f", {figure.work / median / 1e9:.4g} GFLOP/s"
    return f"{cost} ({figure.what})"


def _spread(spread: Spread) -> str:
    inner = f"[{spread.lower_quartile:.2f}, {spread.median:.2f}, {spread.upper_quartile:.2f}]"
    return f"{spread.minimum:.2f} {inner} {spread.maximum:.2f} ({spread.repeats})"


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
