"""The quota of decoding time, with a clock that the test sets."""

import pytest

from eulerlora_client.contract.problems import QuotaExceeded
from service.decoding.slots import DecodingQuota
from tests.service.fake_engine import FakeClock


def test_a_client_may_use_its_quota_at_once_and_then_waits_for_its_debt() -> None:
    clock = FakeClock()
    quota = DecodingQuota(30, clock)
    quota.charge("a", 29)
    quota.check("a")
    quota.charge("a", 6)  # an image that was more expensive than expected
    with pytest.raises(QuotaExceeded, match="at most 30 s of image decoding a minute") as raised:
        quota.check("a")
    assert raised.value.retry_after_s == pytest.approx(10)  # 5 s of debt at half a second a second
    clock.now_s += 9.9
    with pytest.raises(QuotaExceeded):
        quota.check("a")
    clock.now_s += 0.2
    quota.check("a")


def test_other_clients_are_not_affected() -> None:
    quota = DecodingQuota(30, FakeClock())
    quota.charge("a", 100)
    quota.check("b")


def test_a_client_saves_at_most_one_minute() -> None:
    clock = FakeClock()
    quota = DecodingQuota(30, clock)
    quota.charge("a", 1)
    clock.now_s += 3600
    quota.charge("a", 31)
    with pytest.raises(QuotaExceeded):
        quota.check("a")


def test_clients_with_a_full_quota_are_forgotten() -> None:
    clock = FakeClock()
    quota = DecodingQuota(30, clock)
    for name in ("a", "b"):
        quota.charge(name, 1)
    clock.now_s += 3600
    quota.check("a")
    quota.check("b")
    assert quota._balances == {}
