"""Addresses and keys are checked before anything is asked."""

import pytest

from eulerlora_client.errors import SettingsError
from eulerlora_client.sdk.requests import connection_options
from eulerlora_client.sdk.retry import Timeouts


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://x:y",
        "http://x:0",
        "http://x/?a",
        "http://[",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="url: "):
        connection_options(url, None, Timeouts())


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\nbreak"])
def test_a_key_that_is_none_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(SettingsError, match="key: ") as refused:
        connection_options("http://127.0.0.1", key, Timeouts())
    assert not key or key not in str(refused.value)


def test_a_key_is_shown_as_a_bearer_token() -> None:
    assert connection_options("https://x/y/", "elk_1", Timeouts())["headers"] == {
        "Authorization": "Bearer elk_1"
    }
    assert connection_options("https://x/y/", None, Timeouts())["headers"] == {}
