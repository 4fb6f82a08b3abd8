"""Requests of the HTTP contract, the same for both clients."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from eulerlora_client.contract.fields import WireModel
from eulerlora_client.contract.models import ModelDetails, ModelList
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.sampling import Auto, Mode
from eulerlora_client.contract.triage import PolicyDescription, TriageBatch, TriageResult
from eulerlora_client.errors import SettingsError
from eulerlora_client.sdk.retry import Timeouts

AnyBody = TypeVar("AnyBody", bound=WireModel)

EXAMPLE = "a URL such as http://127.0.0.1:8000"


@dataclass(frozen=True)
class PredictOptions:
    """Options of a prediction; None takes the default of the service.

    mode: "det", "stoch" or "adaptive". samples: per adapter, with mode stoch; "auto" draws until
    the result has converged. seed: of the draws. model: name of a served model. detail: adds the
    probabilities of every trajectory. coverage: adds the prediction set.
    """

    mode: str = "det"
    samples: int | Auto | None = None
    seed: int | None = None
    model: str | None = None
    detail: bool = False
    coverage: float | None = None

    def parameters(self) -> dict[str, str]:
        """Returns the query parameters of `/predict`."""
        values = {
            "mode": self.mode,
            "samples": self.samples,
            "seed": self.seed,
            "model": self.model,
            "detail": "trajectories" if self.detail else None,
            "coverage": self.coverage,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class TriageOptions:
    """Options of a triage request, as in PredictOptions; None takes the default of the service.

    mode, samples: by default those that the urgent threshold of the service's policy was set for.
    """

    mode: Mode | None = None
    samples: int | Auto | None = None
    seed: int | None = None
    model: str | None = None
    coverage: float | None = None

    def parameters(self) -> dict[str, str]:
        """Returns the query parameters of `/triage`."""
        return {name: str(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class HttpRequest(Generic[AnyBody]):
    """One request and the type of its response body; `options` are those of httpx's `request`."""

    method: str
    path: str
    body: type[AnyBody]
    options: Mapping[str, Any]


def predict_request(content: bytes, options: PredictOptions) -> HttpRequest[Prediction]:
    """Returns the request for one image."""
    parameters = {"params": options.parameters(), "files": {"file": _part(content)}}
    return HttpRequest("POST", "predict", Prediction, parameters)


def triage_request(content: bytes, options: TriageOptions) -> HttpRequest[TriageResult]:
    """Returns the request for the disposition of one image."""
    parameters = {"params": options.parameters(), "files": {"file": _part(content)}}
    return HttpRequest("POST", "triage", TriageResult, parameters)


def triage_batch_request(
    contents: Sequence[bytes], options: TriageOptions
) -> HttpRequest[TriageBatch]:
    """Returns the request for the dispositions of many images."""
    files = [("files", _part(content)) for content in contents]
    parameters = {"params": options.parameters(), "files": files}
    return HttpRequest("POST", "triage/batch", TriageBatch, parameters)


def policy_request() -> HttpRequest[PolicyDescription]:
    """Returns the request for the policy of the service."""
    return HttpRequest("GET", "triage/policy", PolicyDescription, {})


def models_request() -> HttpRequest[ModelList]:
    """Returns the request for the list of served models."""
    return HttpRequest("GET", "models", ModelList, {})


def model_request(name: str) -> HttpRequest[ModelDetails]:
    """Returns the request for the details of one model."""
    return HttpRequest("GET", f"models/{quote(name, '')}", ModelDetails, {})


def _part(content: bytes) -> tuple[str, bytes, str]:
    """Returns a part of a form. The name of the file is not sent: it may name a patient."""
    return "image", content, "application/octet-stream"


def connection_options(url: str, key: str | None, timeouts: Timeouts) -> dict[str, Any]:
    """Returns the options of httpx's clients. Raises SettingsError for an invalid URL or key."""
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
        valid_port = parts.port is None or parts.port > 0
    except ValueError as error:
        raise SettingsError(f"url: expected {EXAMPLE}, got {url!r}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not valid_port:
        raise SettingsError(f"url: expected {EXAMPLE}, got {url!r}")
    if parts.query or parts.fragment:
        raise SettingsError(f"url: expected a URL without query and fragment, got {url!r}")
    return url


def _checked_key(key: str) -> str:
    if not (key.isascii() and key.isprintable() and key and " " not in key):
        raise SettingsError("key: expected printable ASCII characters without spaces")
    return key
