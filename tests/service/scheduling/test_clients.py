"""Who counts as one client."""

import pytest

from service.inference.fair_sharing import client_of, network_of


def test_the_name_of_a_key_comes_before_the_address() -> None:
    scope = {"client": ("10.0.0.1", 4), "state": {"client": "ward"}}
    assert client_of(scope) == "key:ward"
    assert client_of({**scope, "state": {}}) == "address:10.0.0.1"
    assert client_of({}) == "address:"


def test_a_key_cannot_have_the_name_of_an_address() -> None:
    named = {"client": ("10.0.0.2", 4), "state": {"client": "10.0.0.1"}}
    assert client_of(named) != client_of({"client": ("10.0.0.1", 4)})


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("testclient", "testclient"),
    ],
)
def test_all_addresses_of_an_ipv6_site_are_one_client(address: str, network: str) -> None:
    assert network_of(address) == network
