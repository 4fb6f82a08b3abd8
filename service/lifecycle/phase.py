"""The phase of the process: starting, ready or stopping."""

import threading
from typing import Literal

Phase = Literal["starting", "ready", "stopping"]


class Lifecycle:
    """The phase of the process and, after a failure, its reason. Thread-safe.

    The phase only advances: starting, ready, stopping.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may run while this thread holds it
        self._phase: Phase = "starting"
        self._failure: str | None = None

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def failure(self) -> str | None:
        """The reason of the first failure, or None."""
        return self._failure

    def become_ready(self) -> None:
        """Changes the phase from starting to ready; has no effect in another phase."""
        with self._lock:
            if self._phase == "starting":
                self._phase = "ready"

    def stop(self) -> None:
        """Requests a normal exit."""
        with self._lock:
            self._phase = "stopping"

    def fail(self, reason: str) -> None:
        """Requests an exit with an error. Only the first reason is stored."""
        with self._lock:
            self._phase = "stopping"
            self._failure = self._failure or reason
