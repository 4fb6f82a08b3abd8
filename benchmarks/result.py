"""One measured figure with all that is needed to judge it, as a line of JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Self

import numpy as np
import torch

from benchmarks.machine import Machine, this_machine, versions
from eulerlora.settings import Settings
from training.provenance import current_commit


class Target(Settings):
    """What the ratio should be."""

    bound: Literal["at most", "at least"]
    value: float

    def met_by(self, ratio: float) -> bool:
        """Whether a ratio is on the right side of the bound."""
        return ratio <= self.value if self.bound == "at most" else ratio >= self.value


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
    """One side of a comparison. work: of one run, where rates are compared, in FLOPs."""

    what: str
    spread: Spread
    work: float = 1.0


class Result(Settings):
    """Ours over the reference, from alternating runs in one process.

    unit: of both spreads. ratio: of the medians; where each side has its work, of work over
    median. ratio_spread: of the ratios of neighbouring runs. sizes: what was measured.
    """

    name: str
    unit: Literal["seconds", "bytes"]
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
    """What a result is about: its row in the table."""

    name: str
    ours: str
    reference: str
    target: Target | None = None
    unit: Literal["seconds", "bytes"] = "seconds"

    def result(
        self,
        ours: Sequence[float],
        reference: Sequence[float],
        device: torch.device,
        sizes: dict[str, Any],
    ) -> Result:
        """Of paired costs, where less is better: seconds or bytes."""
        pairs = zip(ours, reference, strict=True)
        return self._result(
            Figure(what=self.ours, spread=Spread.of(ours)),
            Figure(what=self.reference, spread=Spread.of(reference)),
            Spread.of([own / other for own, other in pairs]),
            device,
            sizes,
        )

    def rate_result(
        self,
        ours: Sequence[float],
        reference: Sequence[float],
        work: tuple[float, float],
        device: torch.device,
        sizes: dict[str, Any],
    ) -> Result:
        """Of paired seconds for different work: our rate over the reference's rate.

        work: FLOPs of one run of ours and of one run of the reference.
        """
        pairs = zip(ours, reference, strict=True)
        return self._result(
            Figure(what=self.ours, spread=Spread.of(ours), work=work[0]),
            Figure(what=self.reference, spread=Spread.of(reference), work=work[1]),
            Spread.of([work[0] / own / (work[1] / other) for own, other in pairs]),
            device,
            sizes,
            of_rates=True,
        )

    def _result(
        self,
        ours: Figure,
        reference: Figure,
        ratio_spread: Spread,
        device: torch.device,
        sizes: dict[str, Any],
        of_rates: bool = False,
    ) -> Result:
        costs = ours.spread.median / reference.spread.median
        return Result(
            name=self.name,
            unit=self.unit,
            ours=ours,
            reference=reference,
            ratio=ours.work / reference.work / costs if of_rates else costs,
            ratio_spread=ratio_spread,
            target=self.target,
            sizes=sizes,
            machine=this_machine(device),
            versions=versions(),
            commit=current_commit(),
            date=datetime.now(UTC),
        )
