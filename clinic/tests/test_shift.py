"""The shift monitor: its alarm, its states, and the rates that it tolerates."""

import random

import pytest

from eulerlora_clinic.monitoring import EventRate, ShiftMonitor

BLOCK = 8  # consecutive pictures of a trial

FLAG = (EventRate.calibrated(0.05, 1000),)
SHARES = (0.7, 0.2, 0.1, 0.0)
LABELS = tuple(EventRate.calibrated(share, 1000) for share in SHARES)
RATES = {"flag": FLAG, "label": LABELS}


def pictures_to_alarm(
    share: float, shares: tuple[float, ...], seed: int, pictures: int, per_lesion: int = 1
) -> int:
    """0 without an alarm. All `per_lesion` consecutive pictures of a lesion are equal."""
    random_numbers, monitor = random.Random(seed), ShiftMonitor(RATES)
    first = random_numbers.randrange(per_lesion)  # blocks do not begin with a lesion
    for picture in range(1, pictures + 1):
        if picture == 1 or (picture + first) % per_lesion == 0:
            flag = 0 if random_numbers.random() < share else None
            label = random_numbers.choices(range(len(shares)), shares)[0]
        monitor.record({"flag": flag, "label": label}, RATES)
        if monitor.alarm:
            return picture
    return 0


def test_pictures_like_the_calibration_images_give_no_alarm() -> None:
    assert not any(pictures_to_alarm(0.05, SHARES, seed, 2000) for seed in range(10))


@pytest.mark.parametrize("per_lesion", [2, 3, 4, 8])
def test_equal_pictures_of_each_lesion_give_no_alarm(per_lesion: int) -> None:
    assert not any(pictures_to_alarm(0.05, SHARES, seed, 5000, per_lesion) for seed in range(10))


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
def test_an_alarm_follows_within_160_pictures_if_half_of_them_are_flagged(share: float) -> None:
    counts = [pictures_to_alarm(share, SHARES, seed, 160) for seed in range(50)]
    assert all(counts)
    assert sorted(counts)[25] <= 80


def test_labels_that_did_not_occur_in_calibration_give_an_alarm() -> None:
    assert pictures_to_alarm(0.05, (0.5, 0.1, 0.1, 0.3), seed=0, pictures=200)


def test_a_state_has_the_rates_of_the_event_with_the_most_evidence() -> None:
    monitor = ShiftMonitor(RATES, {"label": "abcd"})
    for label in (0, 3, 3, 0) * (BLOCK // 4):
        monitor.record({"label": label, "flag": None}, RATES)
    for _ in range(BLOCK // 4):
        monitor.record({"flag": 0}, RATES)
    state = monitor.state()
    flag, label = state.signals
    assert (flag.name, flag.pictures, flag.rate) == ("flag", BLOCK * 5 // 4, 0.2)
    assert (label.name, label.label, label.pictures, label.rate) == ("label", "d", BLOCK, 0.5)
    assert (label.expected, label.tolerated) == (0.0, LABELS[3].tolerated)
    assert label.evidence > flag.evidence > 0
    assert state.pictures == BLOCK * 5 // 4


def test_pictures_of_an_incomplete_block_are_no_evidence_yet() -> None:
    monitor = ShiftMonitor({"flag": FLAG})
    for _ in range(BLOCK - 1):
        monitor.record({"flag": 0}, {"flag": FLAG})
    assert monitor.state().signals[0].evidence == 0
    monitor.record({"flag": 0}, {"flag": FLAG})
    assert monitor.state().signals[0].evidence > 0


def test_pictures_of_a_block_count_by_the_rates_of_their_own_options() -> None:
    other = (EventRate(0.5, 0.5),)
    monitor = ShiftMonitor({"flag": other})
    for _ in range(BLOCK):
        monitor.record({"flag": 0}, {"flag": other})
    usual = ShiftMonitor({"flag": FLAG})
    for _ in range(BLOCK):
        usual.record({"flag": 0}, {"flag": FLAG})
    assert monitor.state().signals[0].evidence < usual.state().signals[0].evidence


def test_an_alarm_is_set_at_the_limit_and_stays_on() -> None:
    monitor = ShiftMonitor({"flag": FLAG})
    alarms, evidence = [], []
    for event in [0] * 10 * BLOCK + [None] * 2000 * BLOCK:
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
    assert 10**one.limit == pytest.approx(1_000_000 / BLOCK, rel=1e-4)
    assert 10**two.limit == pytest.approx(2 * 1_000_000 / BLOCK, rel=1e-4)


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
