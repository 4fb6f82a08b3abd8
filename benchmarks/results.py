"""A measured value with its workload, machine and versions, as a line of JSON or of a table."""

import functools
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

import click
import numpy as np
import torch

from eulerlora_client.settings import Settings
from training.fit.run import current_commit

LIBRARIES = ("torch", "torchvision", "peft", "transformers", "fastapi", "uvicorn", "h11", "pillow")
Unit = Literal["ratio", "seconds", "bytes", "share", "count", "rows/s", "answers/s"]


class Target(Settings):
    """A bound on a measured value."""

    bound: Literal["at most", "at least"]
    value: float

    def met_by(self, measured: float) -> bool:
        """True if the measured value satisfies the bound."""
        return measured <= self.value if self.bound == "at most" else measured >= self.value


def at_most(value: float) -> Target:
    """Returns an upper bound."""
    return Target(bound="at most", value=value)


def at_least(value: float) -> Target:
    """Returns a lower bound."""
    return Target(bound="at least", value=value)


class Spread(Settings):
    """Quantiles of repeated measurements."""

    median: float
    minimum: float
    lower_quartile: float
    upper_quartile: float
    maximum: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Returns the spread of at least one value."""
        low, first, middle, third, high = np.percentile(values, [0, 25, 50, 75, 100]).tolist()
        return cls(
            median=middle,
            minimum=low,
            lower_quartile=first,
            upper_quartile=third,
            maximum=high,
            repeats=len(values),
        )


class Side(Settings):
    """What was measured. work: FLOPs of a run if rates are compared."""

    what: str
    unit: Unit
    spread: Spread
    work: float | None = None


class Machine(Settings):
    """cpu: model name. threads: number of torch threads. gpu: model name, None for the CPU."""

    cpu: str
    threads: int
    gpu: str | None

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Returns this machine; with the GPU if `device` is a CUDA device."""
        return cls(
            cpu=_cpu_model(),
            threads=torch.get_num_threads(),
            gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        )


class Result(Settings):
    """A value, or the ratio of ours to a reference from alternating runs.

    unit: of value, target and spread. value: for a comparison the ratio of the medians, or of
    work / median if both sides have work; `spread` is then that of the ratios of paired runs.
    sizes: details of the workload.
    """

    name: str
    unit: Unit
    value: float
    spread: Spread
    target: Target | None
    ours: Side
    reference: Side | None
    sizes: dict[str, Any]
    machine: Machine
    versions: dict[str, str]
    commit: str | None
    date: datetime

    def row(self) -> str:
        """Returns the result as a row of the table with the heading `HEADING`."""
        target, verdict = "", ""
        if self.target is not None:
            target = f"{self.target.bound} {_amount(self.target.value, self.unit)}"
            verdict = " ✓" if self.target.met_by(self.value) else " ✗"
        quantiles = self.spread.model_dump(exclude={"repeats"}).values()
        middle, low, first, third, high = (_amount(value, self.unit) for value in quantiles)
        cells = [
            self.name, target, f"**{_amount(self.value, self.unit)}**{verdict}",
            _described(self.ours), "" if self.reference is None else _described(self.reference),
            f"{low} [{first}, {middle}, {third}] {high} ({self.spread.repeats})",
        ]  # fmt: skip
        return f"| {' | '.join(cells)} |"


HEADING = """| measurement | target | measured | ours | reference | spread |
|---|---:|---:|---|---|---|"""


class Measurement(Settings):
    """Definition of a result. unit: of the sides of a comparison, or of the value."""

    name: str
    ours: str
    reference: str = ""
    unit: Unit = "seconds"
    target: Target | None = None

    def reading(
        self,
        value: float,
        measured: Sequence[float],
        device: torch.device,
        sizes: Mapping[str, Any],
    ) -> Result:
        """Returns a value without a reference. measured: at least one measurement behind it."""
        spread = Spread.of(measured)
        side = Side(what=self.ours, unit=self.unit, spread=spread)
        return self._result(self.unit, value, spread, (side, None), device, sizes)

    def comparison(
        self,
        ours: Sequence[float],
        reference: Sequence[float],
        device: torch.device,
        sizes: Mapping[str, Any],
        work: tuple[float, float] | None = None,
    ) -> Result:
        """Returns the ratio of paired measurements.

        work: FLOPs of a run of ours and of the reference; the ratio is then a ratio of rates.
        """
        our_work, reference_work = work or (None, None)
        pairs = zip(ours, reference, strict=True)
        sides = (
            Side(what=self.ours, unit=self.unit, spread=Spread.of(ours), work=our_work),
            Side(
                what=self.reference,
                unit=self.unit,
                spread=Spread.of(reference),
                work=reference_work,
            ),
        )
        value = _ratio(sides[0].spread.median, sides[1].spread.median, work)
        spread = Spread.of([_ratio(*pair, work) for pair in pairs])
        return self._result("ratio", value, spread, sides, device, sizes)

    def _result(
        self,
        unit: Unit,
        value: float,
        spread: Spread,
        sides: tuple[Side, Side | None],
        device: torch.device,
        sizes: Mapping[str, Any],
    ) -> Result:
        return Result(
            name=self.name,
            unit=unit,
            value=value,
            spread=spread,
            target=self.target,
            ours=sides[0],
            reference=sides[1],
            sizes=dict(sizes),
            machine=Machine.of(device),
            versions={"python": platform.python_version()}
            | {name: version(name) for name in LIBRARIES},
            commit=_commit(),
            date=datetime.now(UTC),
        )


def report(results: Iterable[Result], out: Path | None) -> None:
    """Prints the results as a table, and appends each to a JSON Lines file as soon as it exists."""
    click.echo(HEADING)
    for result in results:
        click.echo(result.row())
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a") as file:
                file.write(result.model_dump_json() + "\n")


def _cpu_model() -> str:
    """Returns the processor's model name on Linux, otherwise the architecture."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.exists() else ""
    match = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


@functools.cache
def _commit() -> str | None:
    """Returns the measured commit; cached, because a result file may change the checkout."""
    return current_commit()


def _ratio(ours: float, reference: float, work: tuple[float, float] | None) -> float:
    if work is None:
        return ours / reference
    return (work[0] / ours) / (work[1] / reference)


def _described(side: Side) -> str:
    cost = _amount(side.spread.median, side.unit)
    if side.work is not None:
        cost += f", {side.work / side.spread.median / 1e9:.4g} GFLOP/s"
    return f"{cost} ({side.what})"


def _amount(value: float, unit: Unit) -> str:
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
