"""Where the process is between its start and its end."""

import threading
from typing import Literal

Phase = Literal["starting", "ready", "stopping"]


class Lifecycle:
    """Starting, then ready, then stopping, never back; may be told so from any thread.

    failure: why the process is to end with an error; None while there is no such reason.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal may come while this thread has it
        self._phase: Phase = "starting"
        self._failure: str | None = None

    @property
    def phase(self) -> Phase:
        """The phase that the process is in."""
        return self._phase

    @property
    def failure(self) -> str | None:
        """The first thing that failed."""
        return self._failure

    def become_ready(self) -> None:
        """Ends the start; changes nothing where the process is stopping already."""
        with self._lock:
            if self._phase == "starting":
                self._phase = "ready"

    def stop(self) -> None:
        """Asks for a clean end."""
        with self._lock:
            self._phase = "stopping"

    def fail(self, reason: str) -> None:
        """Asks for an end with an error. Of several reasons the first is kept."""
        with self._lock:
            self._phase = "stopping"
            self._failure = self._failure or reason
