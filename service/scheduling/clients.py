"""The clients that share the service, and their requests."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INTERNAL = "internal"  # health checks and warm-up
IPV6_PREFIX = 64  # a site gets at least this prefix (RFC 6177), and can use all of its addresses


@dataclass(frozen=True, eq=False)
class Flow:
    """The work of one request. Clients have equal shares, and so have the flows of a client."""

    client: str = INTERNAL


def client_of(scope: Mapping[str, Any]) -> str:
    """Returns who sent a request: the name of its API key, otherwise the address of its peer.

    Behind a trusted proxy, the server replaces the peer by the forwarded address.
    """
    name = scope.get("state", {}).get("client")
    if name is not None:
        return f"key:{name}"
    peer = scope.get("client")
    return "address:" if peer is None else f"address:{network_of(peer[0])}"


def network_of(address: str) -> str:
    """Returns an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address  # the host name of a test client, or the path of a Unix socket
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), IPV6_PREFIX), strict=False))
