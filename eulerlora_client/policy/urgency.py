"""The order of urgency of triage results: one for policies, tables and reports."""

from typing import Literal

from eulerlora_client.contract.triage import Disposition

FAILED: Literal["failed"] = "failed"
"""The status of a file without a disposition."""

TriageStatus = Disposition | Literal["failed"]

BY_URGENCY: tuple[TriageStatus, ...] = (
    Disposition.ROUTINE, FAILED, Disposition.RETAKE, Disposition.REFER, Disposition.UNFAMILIAR,
    Disposition.URGENT,
)  # fmt: skip
"""The least urgent first. A failed file may show anything, so it precedes routine ones."""


def urgency(status: TriageStatus) -> int:
    """Returns the rank of a status: 0 for routine, higher is more urgent."""
    return BY_URGENCY.index(status)
