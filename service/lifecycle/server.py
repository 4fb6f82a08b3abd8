"""A uvicorn server that stops when the lifecycle does."""

import os
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn

from service.lifecycle.phase import Lifecycle
from service.settings import STOP_MARGIN_S, LifeSettings


class Server(uvicorn.Server):
    """Stops at the first SIGTERM or SIGINT, or when the lifecycle is stopping.

    The server accepts requests for the drain time (not after a failure); then uvicorn stops
    listening, completes the accepted requests and ends the application's lifespan. It cancels
    requests that are not complete shortly before the grace time has passed, which
    `check_consistency` excludes for accepted ones. A second signal ends the process at once. A
    timer ends the process if the shutdown is not complete after the grace time.
    """

    def __init__(
        self, config: uvicorn.Config, lifecycle: Lifecycle, settings: LifeSettings
    ) -> None:
        complete_s = max(0, settings.grace_s - settings.drain_s - STOP_MARGIN_S)
        config.timeout_graceful_shutdown = complete_s  # type: ignore[assignment]  # floats work too
        super().__init__(config)
        self._lifecycle = lifecycle
        self._settings = settings
        self._signalled = False
        self._drain_ends: float | None = None
        self._forced_exit = threading.Timer(settings.grace_s, self._exit)
        self._forced_exit.daemon = True

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until the server has stopped."""
        try:
            super().run(sockets)
        finally:
            self._forced_exit.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT."""
        if self._signalled:
            os._exit(128 + sig)
        self._signalled = True
        self._lifecycle.stop()

    async def on_tick(self, counter: int) -> bool:
        """Returns True if the server should stop; uvicorn calls it ten times per second."""
        if self._lifecycle.phase == "stopping":
            self._drain()
        return await super().on_tick(counter)

    def _drain(self) -> None:
        if self._drain_ends is None:
            self._drain_ends = time.monotonic() + self._settings.drain_s
            self._forced_exit.start()
        if self._lifecycle.failure is not None or time.monotonic() >= self._drain_ends:
            self.should_exit = True

    def _exit(self) -> None:
        reason = self._lifecycle.failure or "the shutdown did not complete in time"
        print(f"eulerlora: {reason}", file=sys.stderr, flush=True)
        os._exit(1)
