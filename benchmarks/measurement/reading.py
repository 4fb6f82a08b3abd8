"""One measured figure that stands by itself: not a ratio of two sides, but a value in its unit."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import torch

from benchmarks.measurement.machine import Machine, commit, this_machine, versions
from benchmarks.measurement.result import Spread, Target
from eulerlora.settings import Settings

Unit = Literal["seconds", "bytes", "share", "count"]


class Reading(Settings):
    """A value and the measurements that it sums up.

    unit: of the value, its target and its spread. what: how it was measured. sizes: of what.
    """

    name: str
    what: str
    unit: Unit
    value: float
    spread: Spread
    target: Target | None
    sizes: dict[str, Any]
    machine: Machine
    versions: dict[str, str]
    commit: str | None
    date: datetime


class Measurement(Settings):
    """What a reading is about: its row in the table. libraries: whose versions matter."""

    name: str
    what: str
    unit: Unit
    target: Target | None = None
    libraries: tuple[str, ...]

    def reading(
        self, value: float, measured: Sequence[float], device: torch.device, sizes: dict[str, Any]
    ) -> Reading:
        """The reading of a value, with at least one measurement behind it."""
        return Reading(
            name=self.name,
            what=self.what,
            unit=self.unit,
            value=value,
            spread=Spread.of(measured),
            target=self.target,
            sizes=sizes,
            machine=this_machine(device),
            versions=versions(self.libraries),
            commit=commit(),
            date=datetime.now(UTC),
        )
