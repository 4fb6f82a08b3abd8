"""A measured value in its unit, without a reference."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import torch

from benchmarks.measurement.machine import Machine, commit, this_machine, versions
from benchmarks.measurement.result import Spread, Target
from eulerlora_client.settings import Settings

Unit = Literal["seconds", "bytes", "share", "count", "rows/s", "answers/s"]


class Reading(Settings):
    """A value and the measurements behind it.

    unit: of value, target and spread. what: how it was measured. sizes: details of the workload.
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
    """Definition of a reading, a row of the table. libraries: libraries whose versions matter."""

    name: str
    what: str
    unit: Unit
    target: Target | None = None
    libraries: tuple[str, ...]

    def reading(
        self, value: float, measured: Sequence[float], device: torch.device, sizes: dict[str, Any]
    ) -> Reading:
        """Returns the reading of a value. measured: at least one measurement."""
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
