"""Whether an address may be served without keys."""

from ipaddress import IPv6Address, ip_address

from eulerlora.errors import SettingsError


def check_exposure(host: str, keyed: bool, open_to_all: bool) -> str | None:
    """What to warn of before `host` is served; None where there is nothing.

    Without keys only this machine is served, unless told otherwise. Raises SettingsError, one
    line that says what to do, for an address that others may reach, and for keys that would not
    be asked for.
    """
    if keyed and open_to_all:
        raise SettingsError("--keys and --open contradict each other: give one of them")
    if keyed:
        return None
    if is_loopback(host):
        return f"no keys: whoever is on this machine may ask on {host}"
    if open_to_all:
        return f"no keys: whoever can reach {host or 'this machine'} may ask"
    raise SettingsError(
        f"--host {host} without keys: give --keys FILE, or --open to serve everybody"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address.

    Of names `localhost` alone is taken for one: where others lead is not ours to know.
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
