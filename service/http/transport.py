"""A transport that lets a client read the response before it closes.

A system that closes a connection with unread data resets it, and the client's system then discards
the response that the client has not read yet (RFC 9112, 9.6).
"""

import asyncio
from collections.abc import Callable
from typing import Any


class LingeringTransport:
    """A transport whose `close` may be deferred until the client has read the response.

    linger: ends the response, discards what arrives and later aborts the transport; returns False
    if nothing unread can arrive, so that the transport is closed at once.
    """

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], bool]) -> None:
        self._transport = transport
        self._linger = linger
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Returns True after `close`, also while data is discarded."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Closes the transport, at once or after it has discarded the rest of a body."""
        if self.is_closing():
            return
        self._closing = True
        if not self._linger():
            self._transport.close()
