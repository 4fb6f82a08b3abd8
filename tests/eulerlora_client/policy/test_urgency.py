"""The order of urgency."""

from eulerlora_client.contract.answers import Disposition
from eulerlora_client.policy.policy import FAILED, urgency


def test_urgency_rises_from_routine_over_failed_and_retake_to_urgent() -> None:
    statuses = [FAILED, *Disposition]
    assert sorted(statuses, key=urgency) == [
        "routine", "failed", "retake", "refer", "unfamiliar", "urgent"
    ]  # fmt: skip
