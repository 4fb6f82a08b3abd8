"""Clients that were active recently, for whom a worker is kept free."""

import time
from collections.abc import Callable, Collection, Sequence

WINDOW_S = 10.0


class RecentClients:
    """Remembers the last activity of every client.

    Work in a worker cannot be interrupted. If one client occupied all workers, every other client
    would first wait for one of them. So while several clients are active, the last free worker
    takes no work of a client that has work in all others. now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last_s: dict[str, float] = {}  # least recent first

    def note(self, client: str) -> None:
        """Records that a client is active now."""
        self._last_s.pop(client, None)
        self._last_s[client] = self._now()

    def may_start(self, client: str, workers: int, running: Sequence[Collection[str]]) -> bool:
        """Returns whether a free worker may take work of a client.

        running: the clients with work in each of the busy workers.
        """
        if workers == 1 or len(running) < workers - 1 or not self.has_other(client):
            return True
        return not all(client in clients for clients in running)

    def has_other(self, client: str) -> bool:
        """Returns whether another client was active in the last ten seconds."""
        oldest_s = self._now() - WINDOW_S
        while self._last_s and self._last_s[first := next(iter(self._last_s))] < oldest_s:
            del self._last_s[first]
        return len(self._last_s) > (client in self._last_s)
