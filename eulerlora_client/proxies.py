"""The proxy between a client and a service: never one for a service on the same machine.

`getproxies` alone takes HTTP_PROXY for 127.0.0.1 too, so that a picture would leave the machine.
"""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from eulerlora_contract.errors import SettingsError

__all__ = ["environment_proxy"]


def environment_proxy(url: str) -> httpx.Proxy | None:
    """The proxy that the environment names for a URL, without credentials; None for this machine.

    Raises:
        SettingsError: For a proxy that is no URL.
    """
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_this_machine(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    try:
        return httpx.Proxy(proxy if "://" in proxy else f"http://{proxy}")
    except (ValueError, httpx.InvalidURL) as error:
        variable = f"{parts.scheme.upper()}_PROXY or ALL_PROXY"
        raise SettingsError(f"{variable}: expected a URL such as http://proxy:3128") from error


def _is_this_machine(host: str) -> bool:
    """True for a name or an address that every system resolves to the machine itself.

    Addresses may have any form that the resolver accepts, such as 127.1 and 0x7f000001.
    """
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761, 6.3
        return True
    try:
        address: IPv4Address | IPv6Address = ip_address(name)
    except ValueError:
        try:
            address = IPv4Address(socket.inet_aton(name))
        except OSError:
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
