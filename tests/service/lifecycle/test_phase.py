"""The phases of the process."""

import pytest
from pydantic import ValidationError

from service.lifecycle.phase import Lifecycle
from service.settings import LifeSettings


def test_the_phases_are_starting_ready_and_stopping() -> None:
    lifecycle = Lifecycle()
    phases = [lifecycle.phase]
    lifecycle.become_ready()
    phases.append(lifecycle.phase)
    lifecycle.stop()
    phases.append(lifecycle.phase)
    assert phases == ["starting", "ready", "stopping"]
    assert lifecycle.failure is None


def test_a_stopping_process_does_not_become_ready() -> None:
    lifecycle = Lifecycle()
    lifecycle.stop()
    lifecycle.become_ready()
    assert lifecycle.phase == "stopping"


def test_only_the_first_failure_is_stored() -> None:
    lifecycle = Lifecycle()
    lifecycle.become_ready()
    lifecycle.fail("first")
    lifecycle.fail("second")
    assert (lifecycle.phase, lifecycle.failure) == ("stopping", "first")


@pytest.mark.parametrize(
    "wrong",
    [{"probe_interval_s": 0}, {"probe_timeout_s": -1}, {"drain_s": -1}, {"grace_s": 0}],
)
def test_times_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        LifeSettings.model_validate(wrong)
