"""What the client asks for: requests of the HTTP contract, the same for both clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from eulerlora.errors import SettingsError
from eulerlora.settings import Auto
from eulerlora_client.sdk.retry import Timeouts


@dataclass(frozen=True)
class Question:
    """How an image is to be answered; None leaves a choice to the service.

    mode: "det" or "stoch". samples: for each adapter, in stoch, or "auto". seed: of the draws.
    model: a served one. detail: with the probabilities of every trajectory.
    """

    mode: str = "det"
    samples: int | Auto | None = None
    seed: int | None = None
    model: str | None = None
    detail: bool = False

    def parameters(self) -> dict[str, str]:
        """The query of /predict."""
        given = {
            "mode": self.mode,
            "samples": self.samples,
            "seed": self.seed,
            "model": self.model,
            "detail": "trajectories" if self.detail else None,
        }
        return {name: str(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Call:
    """One request; `options` are those of httpx's `request`."""

    method: str
    path: str
    options: Mapping[str, Any]


def prediction_call(content: bytes, question: Question) -> Call:
    """The request for one image. File names stay here: they may name a patient."""
    files = {"file": ("image", content, "application/octet-stream")}
    return Call("POST", "predict", {"params": question.parameters(), "files": files})


def models_call() -> Call:
    """The request for all served models."""
    return Call("GET", "models", {})


def model_call(name: str) -> Call:
    """The request for what is known of a model."""
    return Call("GET", f"models/{quote(name, '')}", {})


def connection(url: str, key: str | None, timeouts: Timeouts) -> dict[str, Any]:
    """Options of httpx's clients. Raises SettingsError for an address or a key that is none."""
    return {
        "base_url": _checked_url(url),
        "headers": {} if key is None else {"Authorization": f"Bearer {_checked_key(key)}"},
        "timeout": httpx.Timeout(
            connect=timeouts.connect_s, read=timeouts.read_s, write=timeouts.write_s, pool=None
        ),
        "limits": httpx.Limits(max_connections=None),
    }


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError as error:
        raise SettingsError(f"url: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise SettingsError(f"url: wanted one like http://127.0.0.1:8000, not {url!r}")
    if parts.query or parts.fragment:
        raise SettingsError(f"url: wanted the service's address without ? and #, not {url!r}")
    return url


def _checked_key(key: str) -> str:
    if not (key.isascii() and key.isprintable() and key and " " not in key):
        raise SettingsError("key: wanted printable ASCII characters without spaces")
    return key
