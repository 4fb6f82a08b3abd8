"""The phases of a process's life."""

import pytest
from pydantic import ValidationError

from service.lifecycle.phase import Lifecycle
from service.settings import LifeSettings


def test_a_life_starts_is_ready_and_stops() -> None:
    lifecycle = Lifecycle()
    phases = [lifecycle.phase]
    lifecycle.become_ready()
    phases.append(lifecycle.phase)
    lifecycle.stop()
    phases.append(lifecycle.phase)
    assert phases == ["starting", "ready", "stopping"]
    assert lifecycle.failure is None


def test_a_process_that_is_stopping_does_not_become_ready() -> None:
    lifecycle = Lifecycle()
    lifecycle.stop()
    lifecycle.become_ready()
    assert lifecycle.phase == "stopping"


def test_the_first_of_several_failures_is_kept() -> None:
    lifecycle = Lifecycle()
    lifecycle.become_ready()
    lifecycle.fail("first")
    lifecycle.fail("second")
    assert (lifecycle.phase, lifecycle.failure) == ("stopping", "first")


@pytest.mark.parametrize(
    "wrong",
    [{"probe_interval_s": 0}, {"probe_timeout_s": -1}, {"drain_s": -1}, {"shutdown_s": 0}],
)
def test_times_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        LifeSettings.model_validate(wrong)
