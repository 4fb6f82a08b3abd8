"""The server of the service: its configuration, where it listens, and who may use it."""

import logging
import socket
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from eulerlora_contract.errors import SettingsError
from service.http.middleware import MAX_HEADER_BYTES
from service.http.protocol import Protocol
from service.settings import VARIABLE_PREFIX

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait to be accepted
_ACCEPTED_AT_ONCE = 64  # before the limits on connections are checked; less than the spare files
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def server_config(
    app: ASGIApp, protocol: type[Protocol], trusted_proxies: str = ""
) -> uvicorn.Config:
    """The configuration of the server, without an address to listen on."""
    return uvicorn.Config(
        _behind_proxies(app, trusted_proxies),
        http=protocol,
        # uvloop accepts one connection in a turn of the loop: a client with 200 busy ones would
        # keep all others, and the probes, waiting for 200 turns.
        loop="asyncio",
        backlog=_ACCEPTED_AT_ONCE,
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `_behind_proxies`, without FORWARDED_ALLOW_IPS
    )


def _behind_proxies(app: ASGIApp, trusted: str) -> ASGIApp:
    """Takes the client from `X-Forwarded-For` of trusted proxies; logs the first one of others."""
    proxied = ProxyHeadersMiddleware(app, trusted)  # type: ignore[arg-type]
    is_logged = False

    async def proxied_app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal is_logged
        peer = scope.get("client")
        if peer is not None and peer[0] not in proxied.trusted_hosts and not is_logged:
            is_logged = any(name == b"x-forwarded-for" for name, _ in scope["headers"])
            if is_logged:
                logger.warning(
                    "X-Forwarded-For of %s is ignored: %sTRUSTED_PROXIES does not name this "
                    "address, so all who send through it are one client",
                    peer[0],
                    VARIABLE_PREFIX,
                )
        await proxied(scope, receive, send)  # type: ignore[arg-type]

    return proxied_app


@dataclass(frozen=True)
class Address:
    """Where the service listens; port 0 selects a free port.

    "::" listens on all addresses of both families.
    """

    host: str
    port: int = 0

    def listen(self) -> socket.socket:
        """A listening socket.

        Raises:
            SettingsError: If the address is unknown or in use.
        """
        host, port = self.host, self.port
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            both = address[0] == "::" and socket.has_dualstack_ipv6()
            return socket.create_server(
                (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both
            )
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            reason = getattr(error, "strerror", None) or "invalid host name"
            raise SettingsError(f"cannot listen on {host} port {port}: {reason}") from error

    @property
    def url(self) -> str:
        """An IPv6 address is enclosed in brackets (RFC 3986, 3.2.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def check_exposure(self, has_keys: bool, open_to_all: bool) -> str | None:
        """A warning for serving without keys; None if keys are used.

        Raises:
            SettingsError: If the host is not a loopback address and neither `has_keys` nor
                `open_to_all` is set, or if both are.
        """
        if has_keys and open_to_all:
            raise SettingsError("expected at most one of --keys and --open, got both")
        if has_keys:
            return None
        if _is_loopback(self.host):
            return f"no keys: every user of this machine can send requests to {self.host}"
        if open_to_all:
            return (
                f"no keys: everyone who can reach {self.host or 'this machine'} can send requests, "
                f"to localhost unless {VARIABLE_PREFIX}ALLOWED_HOSTS names other hosts"
            )
        raise SettingsError(
            f"--host {self.host} requires --keys FILE, or --open to serve everyone without keys"
        )

    def allowed_hosts(self, has_keys: bool, names: str) -> frozenset[str] | None:
        """The host names that requests may use, in lower case; None for all.

        `names`: the setting ALLOWED_HOSTS. If it is empty, a service without keys accepts the names
        of this machine and its own host only: otherwise any web site could point its own name to
        this machine and use the service through a visitor's browser (DNS rebinding).
        """
        if names:
            return frozenset(names.lower().split(","))
        return None if has_keys else _LOOPBACK_NAMES | ({self.host.lower()} - {""})


def _is_loopback(host: str) -> bool:
    """True if only this machine can reach the address.

    `localhost` is the only name that counts as loopback; other names are not resolved.
    """
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
