"""One measured figure with all that is needed to judge it, as a line of JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Self

import numpy as np
import torch

from benchmarks.measurement.machine import PEERS, Machine, commit, this_machine, versions
from eulerlora.settings import Settings

Unit = Literal["seconds", "bytes", "answers/s"]


class Target(Settings):
    """What a ratio, or another measured value, should be."""

    bound: Literal["at most", "at least"]
    value: float

    def met_by(self, measured: float) -> bool:
        """Whether what was measured is on the right side of the bound."""
        return measured <= self.value if self.bound == "at most" else measured >= self.value


class Spread(Settings):
    """Repeated measurements of one thing."""

    median: float
    minimum: float
    lower_quartile: float
    upper_quartile: float
    maximum: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The spread of at least one value."""
        low, first, middle, third, high = np.percentile(values, [0, 25, 50, 75, 100]).tolist()
        return cls(
            median=middle,
            minimum=low,
            lower_quartile=first,
            upper_quartile=third,
            maximum=high,
            repeats=len(values),
        )


class Figure(Settings):
    """One side of a comparison. work: FLOPs of one run, where rates are compared."""

    what: str
    spread: Spread
    work: float | None = None


class Result(Settings):
    """Ours over the reference, from alternating runs.

    unit: of both spreads. ratio: of the medians; where each side has its work, of work over
    median. ratio_spread: of the ratios of neighbouring runs. sizes: what was measured.
    """

    name: str
    unit: Unit
    ours: Figure
    reference: Figure
    ratio: float
    ratio_spread: Spread
    target: Target | None
    sizes: dict[str, Any]
    machine: Machine
    versions: dict[str, str]
    commit: str | None
    date: datetime


class Comparison(Settings):
    """What a result is about: its row in the table. libraries: whose versions matter."""

    name: str
    ours: str
    reference: str
    target: Target | None = None
    unit: Unit = "seconds"
    libraries: tuple[str, ...] = PEERS

    def result(
        self,
        ours: Sequence[float],
        reference: Sequence[float],
        device: torch.device,
        sizes: dict[str, Any],
        work: tuple[float, float] | None = None,
    ) -> Result:
        """Of paired costs, or of rates. work: FLOPs of one run of ours and of the
        reference; the ratio is then our rate over the reference's.
        """
        own, other = Spread.of(ours), Spread.of(reference)
        first, second = work or (None, None)
        pairs = zip(ours, reference, strict=True)
        return Result(
            name=self.name,
            unit=self.unit,
            ours=Figure(what=self.ours, spread=own, work=first),
            reference=Figure(what=self.reference, spread=other, work=second),
            ratio=ratio(own.median, other.median, work),
            ratio_spread=Spread.of([ratio(*pair, work) for pair in pairs]),
            target=self.target,
            sizes=sizes,
            machine=this_machine(device),
            versions=versions(self.libraries),
            commit=commit(),
            date=datetime.now(UTC),
        )


def ratio(ours: float, reference: float, work: tuple[float, float] | None) -> float:
    """Of two costs; of two rates where each side's work is given."""
    if work is None:
        return ours / reference
    return (work[0] / ours) / (work[1] / reference)
