"""The shift monitor: its alarm, its states, and the rates that it tolerates."""

import random

import pytest

from eulerlora_client.monitoring import PICTURES_PER_FALSE_ALARM, EventRate, ShiftMonitor

FLAG = (EventRate.calibrated(0.05, 1000),)
SHARES = (0.7, 0.2, 0.1, 0.0)
LABELS = tuple(EventRate.calibrated(share, 1000) for share in SHARES)
RATES = {"flag": FLAG, "label": LABELS}


def pictures_to_alarm(share: float, shares: tuple[float, ...], seed: int, pictures: int) -> int:
    """0 without an alarm."""
    random_numbers, monitor = random.Random(seed), ShiftMonitor(RATES)
    for picture in range(1, pictures + 1):
        flag = 0 if random_numbers.random() < share else None
        label = random_numbers.choices(range(len(shares)), shares)[0]
        monitor.record({"flag": flag, "label": label}, RATES)
        if monitor.alarm:
            return picture
    return 0


def test_pictures_like_the_calibration_images_give_no_alarm() -> None:
    assert not any(pictures_to_alarm(0.05, SHARES, seed, 2000) for seed in range(10))


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
def test_an_alarm_follows_within_100_pictures_if_half_of_them_are_flagged(share: float) -> None:
    counts = [pictures_to_alarm(share, SHARES, seed, 100) for seed in range(50)]
    assert all(counts)
    assert sorted(counts)[25] <= 40


def test_labels_that_did_not_occur_in_calibration_give_an_alarm() -> None:
    assert pictures_to_alarm(0.05, (0.5, 0.1, 0.1, 0.3), seed=0, pictures=100)


def test_a_state_has_the_rates_of_the_event_with_the_most_evidence() -> None:
    monitor = ShiftMonitor(RATES, {"label": "abcd"})
    for label in (0, 3, 3, 0):
        monitor.record({"label": label, "flag": None}, RATES)
    monitor.record({"flag": 0}, RATES)
    state = monitor.state()
    flag, label = state.signals
    assert (flag.name, flag.pictures, flag.rate) == ("flag", 5, 0.2)
    assert (label.name, label.label, label.pictures, label.rate) == ("label", "d", 4, 0.5)
    assert (label.expected, label.tolerated) == (0.0, LABELS[3].tolerated)
    assert label.evidence > flag.evidence > 0
    assert state.pictures == 5


def test_an_alarm_is_set_at_the_limit_and_stays_on() -> None:
    monitor = ShiftMonitor({"flag": FLAG})
    alarms, evidence = [], []
    for event in [0] * 20 + [None] * 2000:
        monitor.record({"flag": event}, {"flag": FLAG})
        (signal,) = monitor.state().signals
        alarms.append(signal.alarm)
        evidence.append(signal.evidence)
    first = alarms.index(True)
    limit = monitor.state().limit
    assert evidence[first - 1] < limit <= evidence[first]
    assert evidence[-1] < limit
    assert monitor.alarm


def test_more_signals_need_more_evidence() -> None:
    one, two = (ShiftMonitor(rates).state() for rates in ({"flag": FLAG}, RATES))
    assert 10**one.limit == pytest.approx(PICTURES_PER_FALSE_ALARM, rel=1e-5)
    assert 10**two.limit == pytest.approx(2 * PICTURES_PER_FALSE_ALARM, rel=1e-5)


def test_a_monitor_without_signals_counts_pictures() -> None:
    monitor = ShiftMonitor({})
    monitor.record({}, {})
    state = monitor.state()
    assert (state.pictures, state.alarm, state.signals) == (1, False, ())


def test_fewer_calibration_images_tolerate_a_higher_rate() -> None:
    tolerated = [EventRate.calibrated(0.05, images).tolerated for images in (40, 1000, 10**6)]
    assert 0.5 > tolerated[0] > tolerated[1] > tolerated[2] > 0.05
    assert tolerated[2] == pytest.approx(1.25 * 0.05 / (1.25 * 0.05 + 0.95), rel=0.02)
    assert EventRate.calibrated(1.0, 1000).tolerated == pytest.approx(1)
    assert EventRate.calibrated(0.0, 1000).tolerated > 0
