"""Requests of the HTTP contract, their responses and their retries, the same for both clients.

Retrying a prediction has no side effects, and its seed is derived from the image, so that a
repeated request has the same result.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import Field, ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_when_event_set,
    wait_random,
    wait_random_exponential,
)

from eulerlora_client.contract.answers import (
    ModelDetails,
    ModelList,
    PolicyDescription,
    Prediction,
    ProblemDocument,
    TriageBatch,
    TriageResult,
    WireModel,
)
from eulerlora_client.contract.problems import (
    ConnectionLost,
    Problem,
    QuotaExceeded,
    TimedOut,
    UnexpectedAnswer,
    Unreachable,
    problem_class,
)
from eulerlora_client.contract.sampling import Auto, Mode
from eulerlora_client.errors import SettingsError
from eulerlora_client.settings import Settings, first_error

AnyBody = TypeVar("AnyBody", bound=WireModel)


@dataclass(frozen=True)
class RequestOptions:
    """Options of a prediction or a disposition; None takes the default of the service.

    mode: "det" or "stoch". samples: per adapter, with mode stoch; "auto" draws only if a pass in
    det leaves a decision open, until it is settled. seed: of the draws. model: name of a served
    model. coverage: adds the prediction set.
    """

    mode: Mode | None = None
    samples: int | Auto | None = None
    seed: int | None = None
    model: str | None = None
    coverage: float | None = None

    def parameters(self) -> dict[str, str]:
        """Returns the query parameters."""
        return {name: str(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class HttpRequest(Generic[AnyBody]):
    """One request and the type of its response body; `options` are those of httpx's `request`."""

    method: str
    path: str
    body: type[AnyBody]
    options: Mapping[str, Any]


def predict_request(
    content: bytes, options: RequestOptions, detail: bool = False
) -> HttpRequest[Prediction]:
    """Returns the request for one image. detail: adds the probabilities of every trajectory."""
    parameters = options.parameters() | ({"detail": "trajectories"} if detail else {})
    sent = {"params": parameters, "files": {"file": _part(content)}}
    return HttpRequest("POST", "predict", Prediction, sent)


def triage_request(content: bytes, options: RequestOptions) -> HttpRequest[TriageResult]:
    """Returns the request for the disposition of one image."""
    parameters = {"params": options.parameters(), "files": {"file": _part(content)}}
    return HttpRequest("POST", "triage", TriageResult, parameters)


def triage_batch_request(
    contents: Sequence[bytes], options: RequestOptions
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


EXAMPLE = "a URL such as http://127.0.0.1:8000"
Seconds = Annotated[float, Field(gt=0)]


class Timeouts(Settings):
    """Timeouts of one attempt, in seconds.

    connect_s: to make a connection. read_s, write_s: without progress of the response or of the
    request.
    """

    connect_s: Seconds = 5
    read_s: Seconds = 60
    write_s: Seconds = 60


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


def response_body(response: httpx.Response, request: HttpRequest[AnyBody]) -> AnyBody:
    """Returns the body of a response. Raises the reported Problem, or UnexpectedAnswer."""
    if response.status_code != httpx.codes.OK:
        raise reported_problem(response)
    try:
        # unknown keys of later services are ignored, also in models that checkpoints share
        return request.body.model_validate_json(response.content, extra="ignore")
    except ValidationError as error:
        raise UnexpectedAnswer(
            f"expected a {request.body.__name__} ({first_error(error, request.body)})",
            status=response.status_code,
            request_id=response.headers.get("X-Request-ID"),
        ) from error


def reported_problem(response: httpx.Response) -> Problem:
    """Returns the problem that a response reports; a response without a document has one too."""
    status = response.status_code
    document = _json_object(response)
    code = _text(document, "code")
    return problem_class(code, status)(
        _text(document, "detail") or f"status {status} without a problem document",
        code=code,
        status=status,
        title=_text(document, "title"),
        request_id=_text(document, "request_id") or response.headers.get("X-Request-ID"),
        retry_after_s=_retry_after_s(response.headers.get("Retry-After")),
    )


def batch_results(batch: TriageBatch) -> tuple[TriageResult | Problem, ...]:
    """Returns the results of a batch, with an exception in place of each problem document."""
    return tuple(
        _problem_of(result) if isinstance(result, ProblemDocument) else result
        for result in batch.results
    )


def _problem_of(document: ProblemDocument) -> Problem:
    return problem_class(document.code, document.status)(
        document.detail,
        code=document.code,
        status=document.status,
        title=document.title,
        request_id=document.request_id,
    )


@contextmanager
def transport_problems(url: httpx.URL) -> Iterator[None]:
    """Raises a Problem for each error of httpx in the block."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise Unreachable(f"no connection to {url} ({_reason(error)})") from error
    except httpx.TimeoutException as error:
        raise TimedOut(f"{url} ({_reason(error)})") from error
    except httpx.TransportError as error:
        raise ConnectionLost(f"{url} ({_reason(error)})") from error
    except httpx.RequestError as error:
        raise UnexpectedAnswer(f"{url} ({_reason(error)})") from error


def _json_object(response: httpx.Response) -> Mapping[str, Any]:
    """Returns the JSON object of a response, empty if there is none."""
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) and value else None


def _retry_after_s(value: str | None) -> float | None:
    """Returns Retry-After in seconds; the header holds seconds or a date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


RetrySeconds = Annotated[float, Field(ge=0)]
RETRYABLE_STATUSES = (429, 503, 504)
BACKOFF = wait_random_exponential(multiplier=0.25, max=5)
JITTER = wait_random(0, 0.5)  # clients that got the same Retry-After spread their attempts


class RetryPolicy(Settings):
    """Seconds since the first attempt within which a request is retried; 0 disables retries.

    service_s: after a refused or lost connection, and after status 503 and 504. quota_s: after
    status 429. Retry-After is respected; a wait that would exceed the limit is not started.
    """

    service_s: RetrySeconds = 30
    quota_s: RetrySeconds = 120


def retrying(policy: RetryPolicy, cancelled: Event) -> Retrying:
    """Returns a caller that retries a function; setting `cancelled` ends its waits at once."""
    return Retrying(
        retry=retry_if_exception(is_retryable),
        wait=wait_s,
        stop=lambda state: stop_when_event_set(cancelled)(state) or _exceeds(policy)(state),
        sleep=sleep_using_event(cancelled),
        reraise=True,
    )


def retrying_async(policy: RetryPolicy) -> AsyncRetrying:
    """Returns a caller that retries a coroutine function; waits end when their task ends."""
    return AsyncRetrying(
        retry=retry_if_exception(is_retryable), wait=wait_s, stop=_exceeds(policy), reraise=True
    )


def is_retryable(error: BaseException) -> bool:
    """Returns True if the same request may succeed later."""
    return isinstance(error, (Unreachable, ConnectionLost)) or (
        isinstance(error, Problem) and error.status in RETRYABLE_STATUSES
    )


def wait_s(state: RetryCallState) -> float:
    """Returns the seconds to the next attempt: Retry-After, or an exponential backoff."""
    problem = _problem(state)
    if problem.retry_after_s is None:
        return BACKOFF(state)
    return problem.retry_after_s + JITTER(state)


def _exceeds(policy: RetryPolicy) -> Callable[[RetryCallState], bool]:
    def exceeds(state: RetryCallState) -> bool:
        is_quota = isinstance(_problem(state), QuotaExceeded)
        limit_s = policy.quota_s if is_quota else policy.service_s
        return (state.seconds_since_start or 0) + state.upcoming_sleep > limit_s

    return exceeds


def _problem(state: RetryCallState) -> Problem:
    assert state.outcome is not None
    problem = state.outcome.exception()
    assert isinstance(problem, Problem)
    return problem
