"""uvicorn's HTTP/1.1 protocol (h11) with timeouts, connection limits and problem documents.

uvicorn alone has no timeout for incomplete headers, for the unread rest of a body after the
response, and for clients that do not read a response; it reports protocol errors in plain text.
"""

import asyncio
import re
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from eulerlora_contract.problems import HeadersTooLarge, MalformedRequest, Problem
from service.fair_sharing import address_network
from service.http.middleware import EXCESS_CONNECTION, TOO_LARGE
from service.http.responses import PROBLEM_JSON, problem_document, problem_headers
from service.settings import ConnectionSettings
from service.telemetry.logs import REQUEST_ID_HEADER
from service.telemetry.observation import PROBES

_HEADER_GRACE_S = 1.0  # in which headers that were sent at once have been read
_WRITE_TIMEOUT_S = 60.0  # for a client to read a response that exceeds the socket buffers
_LINGER_S = 5.0  # for a client to stop sending a body after the response
_LINGER_BYTES = 64 * 1024 * 1024  # that such a client may still send; they are discarded
_ABSOLUTE_FORM = re.compile(rb"https?://([^/]*)", re.IGNORECASE)
_IPV4_MAPPED = "::ffff:"


class _LingeringTransport:
    """A transport whose `close` may be deferred until the client has read the response.

    Args:
        linger: Ends the response, discards what arrives and later aborts the transport; returns
            False if nothing unread can arrive, so that the transport is closed at once.
    """

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], bool]) -> None:
        self._transport = transport
        self._linger = linger
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """True after `close`, also while data is discarded."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._closing = True
        if not self._linger():
            self._transport.close()


@dataclass(eq=False)
class Network:
    """The connections of an IPv4 address, or of a /64 network of IPv6.

    Attributes:
        incomplete: Those without complete headers, since when in seconds; oldest first.
        refused: Those whose request is refused for their number, oldest first. Their responses are
            delayed.
        kept: Those idle after a response, oldest first.
    """

    connections: set["Protocol"] = field(default_factory=set)
    incomplete: dict["Protocol", float] = field(default_factory=dict)
    refused: dict["Protocol", None] = field(default_factory=dict)
    kept: dict["Protocol", None] = field(default_factory=dict)

    def waiting(self, opened_before_s: float) -> "Protocol | None":
        """The connection to close first; None if all have accepted requests in progress."""
        oldest = next(iter(self.incomplete.items()), None)
        if oldest is not None and oldest[1] <= opened_before_s:
            return oldest[0]
        return next(iter((*self.refused, *self.kept)), None)


def protocol_of(
    settings: ConnectionSettings, on_problem: Callable[[str], None] = lambda _: None
) -> type["Protocol"]:
    """The protocol class that uvicorn instantiates for every connection.

    `on_problem`: called with the code of every problem that never reaches the application.
    """
    return type(
        "Protocol",
        (Protocol,),
        {"settings": settings, "networks": {}, "on_problem": staticmethod(on_problem)},
    )


class Protocol(H11Protocol):
    """A connection with timeouts for headers, for the unread rest of a body, and for responses.

    Networks share the connections: above the limit, those with more than an equal share lose their
    waiting connections, and their requests are refused. An accepted request is never cut.

    Relies on these internal names of uvicorn: `conn`, `app`, `connections`, `cycle`, `flow`,
    `headers`, `scope`, `handle_events`, `send_400_response`, `on_response_complete`,
    `timeout_keep_alive`, `timeout_keep_alive_task`, `timeout_keep_alive_handler` and
    `_unset_keepalive_if_required`.
    """

    # Set by `protocol_of`.
    settings: ClassVar[ConnectionSettings]
    networks: ClassVar[dict[str, Network]]  # by the result of `address_network`
    on_problem: Callable[[str], None]  # a class attribute

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = _prepared(self.app, self._is_excess)
        self.timeout_keep_alive = self.settings.idle_timeout_s  # type: ignore[assignment]  # floats work too
        self._address = ""
        self._network = Network()
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._discardable = _LINGER_BYTES
        self._lingers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_LingeringTransport(transport, self._linger))  # type: ignore[arg-type]
        self._address = address_network(self.client[0]) if self.client is not None else ""
        self._network = self.networks.setdefault(self._address, self._network)
        self._network.connections.add(self)
        self._make_room()
        self._start_read_timer(self.settings.header_timeout_s)

    def data_received(self, data: bytes) -> None:
        if not self._lingers:
            super().data_received(data)
            return
        self._discardable -= len(data)
        if self._discardable < 0:
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
            self._network.kept[self] = None

    def _make_room(self) -> None:
        """Closes a waiting connection if there are too many.

        It is one of the network with most connections: the oldest without complete headers, else
        one whose request is refused, else the one that has been idle longest. Other networks follow
        if they exceed an equal share, and at the limit of open files in any case; there the new
        connection itself comes last.
        """
        total = len(self.connections)
        is_full = total > self.settings.connections_within_file_limit()
        if not is_full and total <= self.settings.max_connections:
            return
        opened_before_s = self.loop.time() - (0 if is_full else _HEADER_GRACE_S)
        largest_first = sorted(
            self.networks.values(), key=lambda network: len(network.connections), reverse=True
        )
        for network in largest_first:
            if not (is_full or self._exceeds_share(network)):
                return
            closed = network.waiting(opened_before_s)
            if closed is not None:
                closed.close_waiting()
                return
        if is_full:
            self.close_waiting()

    def _exceeds_share(self, network: Network) -> bool:
        equal_share = self.settings.max_connections / len(self.networks)
        return len(network.connections) > equal_share

    def _is_excess(self, path: str) -> bool:
        """True if a request must be refused because of the number of connections."""
        is_crowded = len(self.connections) > self.settings.max_connections
        is_excess = is_crowded and self._exceeds_share(self._network) and path not in PROBES
        if is_excess:
            self._network.refused[self] = None
        return is_excess

    def close_waiting(self) -> None:
        """Closes a connection without an accepted request in progress; it no longer counts."""
        is_kept = self in self._network.kept
        self._leave()
        if is_kept:
            self.timeout_keep_alive_handler()
        else:
            self.transport.abort()

    def _leave(self) -> None:
        self._unset_keepalive_if_required()
        self._stop_read_timer()
        self.connections.discard(self)
        self._network.connections.discard(self)
        self._network.refused.pop(self, None)
        if not self._network.connections and self.networks.get(self._address) is self._network:
            del self.networks[self._address]

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def handle_events(self) -> None:
        super().handle_events()
        self.headers = []  # only the scope keeps them, without the key once it is checked
        if self._lingers:  # for a malformed request; the timer ends the connection
            return
        if self.conn.our_state not in (h11.IDLE, h11.DONE):
            self._stop_read_timer()
        elif self.timeout_keep_alive_task is None and self._read_timer is None:
            # Also for an unread rest of a body.
            self._start_read_timer(self.settings.header_timeout_s)

    def send_400_response(self, msg: str) -> None:
        """Responds to a protocol error; uvicorn calls it while it handles h11's exception."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self.cycle.disconnected = True  # the body is invalid: suppresses the response
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(
                HeadersTooLarge(TOO_LARGE)
                if hint == HeadersTooLarge.status
                else MalformedRequest("expected a well-formed HTTP/1.1 request")
            )
        self.transport.close()

    def _send(self, problem: Problem) -> None:
        request_id = uuid.uuid4().hex
        document = problem_document(problem, request_id)
        body = document.model_dump_json(exclude_unset=True).encode()
        headers = {
            **problem_headers(problem),
            "Content-Type": PROBLEM_JSON,
            "Content-Length": str(len(body)),
            REQUEST_ID_HEADER: request_id,
        }
        response = h11.Response(
            status_code=document.status,
            headers=list(headers.items()),
            reason=STATUS_PHRASES[document.status],
        )
        is_head = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
        content = [] if is_head else [h11.Data(data=body)]
        for event in (response, *content, h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.on_problem(problem.code)

    def _linger(self) -> bool:
        """Ends the response and discards the rest of the request; False if there is none."""
        if self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            return False
        self._lingers = True
        self._start_read_timer(_LINGER_S)
        self.transport.write_eof()
        self.flow.resume_reading()
        return True

    def _unset_keepalive_if_required(self) -> None:
        self._network.kept.pop(self, None)
        super()._unset_keepalive_if_required()

    def _start_read_timer(self, seconds: float) -> None:
        self._stop_read_timer()
        self._network.incomplete[self] = self.loop.time()
        self._read_timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_read_timer(self) -> None:
        self._network.incomplete.pop(self, None)
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _prepared(app: Any, is_excess: Callable[[str], bool]) -> Any:
    """Wraps the application; stores in every request state whether it is in excess, by its path.

    Targets in absolute form get the usual one, and their authority replaces the header Host (RFC
    9112, 3.2.2). An IPv4 client of a socket for both families has its IPv4 address.
    """

    async def prepared_app(scope: Any, receive: Any, send: Any) -> None:
        absolute = _ABSOLUTE_FORM.match(scope["raw_path"])
        if absolute is not None:
            scope["raw_path"] = scope["raw_path"][absolute.end() :] or b"/"
            scope["path"] = unquote(scope["raw_path"].decode("ascii"))
            others = [header for header in scope["headers"] if header[0] != b"host"]
            scope["headers"] = [(b"host", absolute[1]), *others]
        scope["state"][EXCESS_CONNECTION] = is_excess(scope["path"])
        if scope["client"] is not None:
            address, port = scope["client"]
            scope["client"] = address.removeprefix(_IPV4_MAPPED), port
        await app(scope, receive, send)

    return prepared_app
