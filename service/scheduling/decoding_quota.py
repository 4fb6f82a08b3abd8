"""A quota of decoding time for every client."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from eulerlora_client.contract.problems import QuotaExceeded

MINUTE_S = 60.0


@dataclass
class _Balance:
    """CPU seconds that a client may use; negative after an expensive image."""

    seconds: float
    at_s: float


class DecodingQuota:
    """A token bucket of CPU seconds for every client, for the images that it sends.

    seconds_per_minute: the size of the bucket, which refills in a minute. A decode is charged when
    it ends, whatever its result; a client in debt waits until the debt is refilled. now: a clock
    in seconds that never goes back. For use in one event loop.
    """

    def __init__(
        self, seconds_per_minute: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity_s = seconds_per_minute
        self._rate = seconds_per_minute / MINUTE_S
        self._now = now
        self._balances: dict[str, _Balance] = {}  # of clients below the capacity

    def check(self, client: str) -> None:
        """Raises QuotaExceeded if the client has used up its quota."""
        balance = self._balances.get(client)
        if balance is None:
            return
        self._refill(client, balance)
        if balance.seconds <= 0:
            raise QuotaExceeded(
                f"at most {self._capacity_s:g} s of image decoding a minute",
                retry_after_s=-balance.seconds / self._rate,
            )

    def charge(self, client: str, cpu_s: float) -> None:
        """Subtracts the CPU time of a decode."""
        balance = self._balances.setdefault(client, _Balance(self._capacity_s, self._now()))
        self._refill(client, balance)
        self._balances[client] = balance
        balance.seconds -= cpu_s

    def _refill(self, client: str, balance: _Balance) -> None:
        now = self._now()
        balance.seconds += (now - balance.at_s) * self._rate
        balance.at_s = now
        if balance.seconds >= self._capacity_s:
            balance.seconds = self._capacity_s
            self._balances.pop(client, None)
