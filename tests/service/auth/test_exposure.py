"""Without keys only loopback addresses are served, unless --open is given."""

import pytest

from eulerlora.errors import SettingsError
from service.auth.access import allowed_hosts, check_exposure

LOOPBACK = ["127.0.0.1", "127.8.9.10", "localhost", "LOCALHOST", "::1", "::ffff:127.0.0.1"]
EXPOSED = ["0.0.0.0", "::", "", "192.168.1.7", "10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1"]
NAMES = ["clinic.example", "localhost.example", "127.0.0.1.example", "2130706433"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_is_served_without_keys_with_a_warning(host: str) -> None:
    warning = check_exposure(host, has_keys=False, open_to_all=False)
    assert warning is not None
    assert warning.startswith("no keys: ")
    assert "this machine" in warning


@pytest.mark.parametrize("host", EXPOSED + NAMES)
def test_other_addresses_require_keys_or_open(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_exposure(host, has_keys=False, open_to_all=False)
    assert str(caught.value).startswith(f"--host {host} requires --keys FILE, or --open")


@pytest.mark.parametrize("host", EXPOSED + NAMES)
def test_open_serves_every_address_with_a_warning(host: str) -> None:
    warning = check_exposure(host, has_keys=False, open_to_all=True)
    assert warning is not None
    assert "everyone who can reach" in warning


@pytest.mark.parametrize("host", LOOPBACK + EXPOSED + NAMES)
def test_keys_allow_every_address_without_a_warning(host: str) -> None:
    assert check_exposure(host, has_keys=True, open_to_all=False) is None


def test_keys_together_with_open_are_refused() -> None:
    with pytest.raises(SettingsError, match="at most one"):
        check_exposure("127.0.0.1", has_keys=True, open_to_all=True)


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_keyless_loopback_address_is_served_under_its_own_names_only(host: str) -> None:
    names = allowed_hosts(host, has_keys=False, names="")
    assert names == {"localhost", "127.0.0.1", "::1", host.lower()}
    assert allowed_hosts(host, has_keys=True, names="") is None


@pytest.mark.parametrize("host", EXPOSED + NAMES)
def test_other_addresses_are_served_under_every_name(host: str) -> None:
    assert allowed_hosts(host, has_keys=False, names="") is None


@pytest.mark.parametrize("has_keys", [False, True])
def test_the_setting_replaces_the_names(has_keys: bool) -> None:
    names = allowed_hosts("127.0.0.1", has_keys, "Clinic.example,10.0.0.7")
    assert names == {"clinic.example", "10.0.0.7"}
