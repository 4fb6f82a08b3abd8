"""Without keys only this machine is served, unless told otherwise."""

import pytest

from eulerlora.errors import SettingsError
from service.auth.exposure import check_exposure

LOOPBACK = ["127.0.0.1", "127.8.9.10", "localhost", "LOCALHOST", "::1", "::ffff:127.0.0.1"]
EXPOSED = ["0.0.0.0", "::", "", "192.168.1.7", "10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1"]
NAMES = ["clinic.example", "localhost.example", "127.0.0.1.example", "2130706433"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machine_alone_is_served_without_keys_and_with_a_warning(host: str) -> None:
    warning = check_exposure(host, keyed=False, open_to_all=False)
    assert warning is not None
    assert warning.startswith("no keys: ")
    assert "this machine" in warning


@pytest.mark.parametrize("host", EXPOSED + NAMES)
def test_others_are_not_served_without_keys_and_the_line_says_what_to_do(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_exposure(host, keyed=False, open_to_all=False)
    wanted = f"--host {host} without keys: give --keys FILE, or --open to serve everybody"
    assert str(caught.value) == wanted


@pytest.mark.parametrize("host", EXPOSED + NAMES)
def test_everybody_is_served_when_told_so_with_a_warning(host: str) -> None:
    warning = check_exposure(host, keyed=False, open_to_all=True)
    assert warning is not None
    assert "whoever can reach" in warning


@pytest.mark.parametrize("host", LOOPBACK + EXPOSED + NAMES)
def test_with_keys_every_address_is_served_without_a_warning(host: str) -> None:
    assert check_exposure(host, keyed=True, open_to_all=False) is None


def test_keys_that_would_not_be_asked_for_are_a_contradiction() -> None:
    with pytest.raises(SettingsError, match="contradict"):
        check_exposure("127.0.0.1", keyed=True, open_to_all=True)
