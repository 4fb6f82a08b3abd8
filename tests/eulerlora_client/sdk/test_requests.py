"""URLs and keys are validated before a request is sent."""

import pytest

from eulerlora_client.errors import SettingsError
from eulerlora_client.sdk.requests import Timeouts, connection_options


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
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(SettingsError, match="url: "):
        connection_options(url, None, Timeouts())


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\nbreak"])
def test_an_invalid_key_is_an_error_that_does_not_repeat_it(key: str) -> None:
    with pytest.raises(SettingsError, match="key: ") as raised:
        connection_options("http://127.0.0.1", key, Timeouts())
    assert not key or key not in str(raised.value)


def test_a_key_is_sent_as_a_bearer_token() -> None:
    assert connection_options("https://x/y/", "elk_1", Timeouts())["headers"] == {
        "Authorization": "Bearer elk_1"
    }
    assert connection_options("https://x/y/", None, Timeouts())["headers"] == {}
