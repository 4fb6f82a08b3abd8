"""A measured value with its target and its spread, as a row of a table."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import click
import numpy as np

from eulerlora_contract.printable import markdown_row

MeasuredUnit = Literal["ratio", "seconds", "bytes", "share", "count", "rows/s", "answers/s"]
_HEADING = """| measurement | target | measured | ours | reference | spread |
|---|---:|---:|---|---|---|"""


@dataclass(frozen=True)
class Target:
    """A bound on a measured value."""

    bound: Literal["at most", "at least"]
    value: float

    def met_by(self, measured: float) -> bool:
        return measured <= self.value if self.bound == "at most" else measured >= self.value


def at_most(value: float) -> Target:
    return Target("at most", value)


def at_least(value: float) -> Target:
    return Target("at least", value)


@dataclass(frozen=True)
class Result:
    """A value of one program, or the ratio of ours to a reference.

    Attributes:
        ours: What was measured.
        value: In `unit`, as the target and `measured`.
        measured: The repeated measurements behind the value.
        reference: What ours is compared with, if it is a ratio.
    """

    name: str
    ours: str
    value: float
    measured: Sequence[float]
    unit: MeasuredUnit = "seconds"
    target: Target | None = None
    reference: str = ""

    def row(self) -> str:
        """A row of the table with the heading `_HEADING`."""
        target, verdict = "", ""
        if self.target is not None:
            target = f"{self.target.bound} {_amount(self.target.value, self.unit)}"
            verdict = " ✓" if self.target.met_by(self.value) else " ✗"
        quantiles = np.percentile(self.measured, [0, 25, 50, 75, 100]).tolist()
        low, first, middle, third, high = (_amount(value, self.unit) for value in quantiles)
        cells = [
            self.name, target, f"**{_amount(self.value, self.unit)}**{verdict}", self.ours,
            self.reference, f"{low} [{first}, {middle}, {third}] {high} ({len(self.measured)})",
        ]  # fmt: skip
        return markdown_row(cells)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: what it is, and a measurement of each run."""

    what: str
    measured: Sequence[float]

    def described(self, unit: MeasuredUnit) -> str:
        return f"{_amount(median(self.measured), unit)} ({self.what})"


def comparison(
    name: str,
    ours: Side,
    reference: Side,
    target: Target | None = None,
    unit: MeasuredUnit = "seconds",
) -> Result:
    """The ratio of the medians; its spread is that of the ratios of paired runs.

    `unit` is that of both sides.
    """
    return Result(
        name=name,
        ours=ours.described(unit),
        value=median(ours.measured) / median(reference.measured),
        measured=[a / b for a, b in zip(ours.measured, reference.measured, strict=True)],
        unit="ratio",
        target=target,
        reference=reference.described(unit),
    )


@dataclass(frozen=True)
class Failure:
    """A measurement that failed, with the error in one line."""

    name: str
    error: str

    def row(self) -> str:
        """A row of the table with the heading `_HEADING`."""
        return markdown_row([self.name, "", "**failed**", self.error, "", ""])


def report(results: Iterable[Result | Failure], out: Path | None = None) -> None:
    """Prints the rows of a table as they come, and writes a JSON object for each as a line."""
    click.echo(_HEADING)
    for result in results:
        click.echo(result.row())
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def _amount(value: float, unit: MeasuredUnit) -> str:
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
