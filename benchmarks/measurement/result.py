"""A measured comparison with its target, workload, machine and versions; a correctness check."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Self

import numpy as np
import torch

from benchmarks.measurement.machine import LIBRARIES, Machine, commit, this_machine, versions
from eulerlora_client.settings import Settings

Unit = Literal["seconds", "bytes", "answers/s"]


class Target(Settings):
    """A bound on a ratio or another measured value."""

    bound: Literal["at most", "at least"]
    value: float

    def met_by(self, measured: float) -> bool:
        """True if the measured value satisfies the bound."""
        return measured <= self.value if self.bound == "at most" else measured >= self.value


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
    """One side of a comparison. work: FLOPs of a run if rates are compared."""

    what: str
    spread: Spread
    work: float | None = None


class Result(Settings):
    """Ratio of ours to the reference, from alternating runs.

    unit: of both spreads. ratio: of the medians, or of work / median if both sides have work.
    ratio_spread: of the ratios of paired runs. sizes: details of the workload.
    """

    name: str
    unit: Unit
    ours: Side
    reference: Side
    ratio: float
    ratio_spread: Spread
    target: Target | None
    sizes: dict[str, Any]
    machine: Machine
    versions: dict[str, str]
    commit: str | None
    date: datetime


class Comparison(Settings):
    """Definition of a result, a row of the table. libraries: libraries whose versions matter."""

    name: str
    ours: str
    reference: str
    target: Target | None = None
    unit: Unit = "seconds"
    libraries: tuple[str, ...] = LIBRARIES

    def result(
        self,
        ours: Sequence[float],
        reference: Sequence[float],
        device: torch.device,
        sizes: dict[str, Any],
        work: tuple[float, float] | None = None,
    ) -> Result:
        """Returns the result of paired measurements.

        work: FLOPs of a run of ours and of the reference; the ratio is then a ratio of rates.
        """
        our_spread, reference_spread = Spread.of(ours), Spread.of(reference)
        our_work, reference_work = work or (None, None)
        pairs = zip(ours, reference, strict=True)
        return Result(
            name=self.name,
            unit=self.unit,
            ours=Side(what=self.ours, spread=our_spread, work=our_work),
            reference=Side(what=self.reference, spread=reference_spread, work=reference_work),
            ratio=ratio(our_spread.median, reference_spread.median, work),
            ratio_spread=Spread.of([ratio(*pair, work) for pair in pairs]),
            target=self.target,
            sizes=sizes,
            machine=this_machine(device),
            versions=versions(self.libraries),
            commit=commit(),
            date=datetime.now(UTC),
        )


class Check(Settings):
    """Result of a check. difference: largest difference of a probability. allowed: tolerance."""

    name: str
    difference: float
    allowed: float

    @property
    def passed(self) -> bool:
        """True if the difference is within the tolerance."""
        return self.difference <= self.allowed


def ratio(ours: float, reference: float, work: tuple[float, float] | None) -> float:
    """Returns the ratio of two costs, or of two rates if work is given."""
    if work is None:
        return ours / reference
    return (work[0] / ours) / (work[1] / reference)
