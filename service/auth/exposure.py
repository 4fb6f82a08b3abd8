"""Who may reach the service: keys for addresses other than loopback, and allowed host names."""

from ipaddress import IPv6Address, ip_address

from eulerlora.errors import SettingsError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def check_exposure(host: str, has_keys: bool, open_to_all: bool) -> str | None:
    """Returns a warning for serving `host` without keys; None if keys are used.

    Raises SettingsError if `host` is not a loopback address and neither `has_keys` nor
    `open_to_all` is set, or if both are.
    """
    if has_keys and open_to_all:
        raise SettingsError("expected at most one of --keys and --open, got both")
    if has_keys:
        return None
    if is_loopback(host):
        return f"no keys: every user of this machine can send requests to {host}"
    if open_to_all:
        return f"no keys: everyone who can reach {host or 'this machine'} can send requests"
    raise SettingsError(
        f"--host {host} requires --keys FILE, or --open to serve everyone without keys"
    )


def allowed_hosts(host: str, has_keys: bool, names: str) -> frozenset[str] | None:
    """Returns the host names that requests may use, in lower case; None for all.

    names: the setting ALLOWED_HOSTS. If it is empty, a loopback address without keys is served
    under its own names only: otherwise any web site could point its own name to this machine and
    use the service through a visitor's browser (DNS rebinding).
    """
    if names:
        return frozenset(names.lower().split(","))
    if not has_keys and is_loopback(host):
        return LOOPBACK_NAMES | {host.lower()}
    return None


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the address.

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
