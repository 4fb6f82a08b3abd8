"""uvicorn's server, which stops as the process's life wants it."""

import os
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn

from service.lifecycle.phase import Lifecycle
from service.settings import LifeSettings

MARGIN_S = 10.0
"""How long the end may take beyond what is granted to requests, before the process is cut off."""


class Server(uvicorn.Server):
    """Stops at the first SIGTERM or SIGINT, or when the lifecycle says so.

    First the drain time passes, in which requests are still accepted; after a failure it does
    not. Then uvicorn stops listening, finishes what was accepted, and ends the application. A
    second signal ends the process at once. So does a thread that never comes back, after a while.
    """

    def __init__(
        self, config: uvicorn.Config, lifecycle: Lifecycle, settings: LifeSettings
    ) -> None:
        config.timeout_graceful_shutdown = settings.shutdown_s  # type: ignore[assignment]  # awaited
        super().__init__(config)
        self._lifecycle = lifecycle
        self._settings = settings
        self._signalled = False
        self._drained_at: float | None = None
        self._cut_off = threading.Timer(
            settings.drain_s + settings.shutdown_s + MARGIN_S, self._exit
        )
        self._cut_off.daemon = True

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until it has stopped."""
        try:
            super().run(sockets)
        finally:
            self._cut_off.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by SIGTERM and SIGINT."""
        if self._signalled:
            os._exit(128 + sig)
        self._signalled = True
        self._lifecycle.stop()

    async def on_tick(self, counter: int) -> bool:
        """Whether it is time to stop; called ten times a second."""
        if self._lifecycle.phase == "stopping":
            self._begin_to_stop()
        return await super().on_tick(counter)

    def _begin_to_stop(self) -> None:
        if self._drained_at is None:
            self._drained_at = time.monotonic() + self._settings.drain_s
            self._cut_off.start()
        if self._lifecycle.failure is not None or time.monotonic() >= self._drained_at:
            self.should_exit = True

    def _exit(self) -> None:
        reason = self._lifecycle.failure or "the work under way did not end in time"
        print(f"eulerlora: {reason}", file=sys.stderr, flush=True)
        os._exit(1)
