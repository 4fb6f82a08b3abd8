"""HTTP responses -> results, or the problem they tell of."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from eulerlora.settings import first_fault
from eulerlora_client.contract.fields import WireModel
from eulerlora_client.contract.problems import (
    ConnectionLost,
    Problem,
    TimedOut,
    UnexpectedAnswer,
    Unreachable,
    problem_class,
)

AnyAnswer = TypeVar("AnyAnswer", bound=WireModel)


def result_in(response: httpx.Response, kind: type[AnyAnswer]) -> AnyAnswer:
    """The result of a kind. Raises the problem that came in its place, or UnexpectedAnswer."""
    if response.status_code != httpx.codes.OK:
        raise problem_in(response)
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        raise UnexpectedAnswer(
            f"wanted a {kind.__name__} ({first_fault(error)})",
            status=response.status_code,
            request_id=response.headers.get("X-Request-ID"),
        ) from error


def problem_in(response: httpx.Response) -> Problem:
    """The problem that a response without a result tells of; any response has one."""
    status = response.status_code
    document = _document(response)
    code = _text(document, "code")
    return problem_class(code, status)(
        _text(document, "detail") or f"status {status} without a problem document",
        code=code,
        status=status,
        title=_text(document, "title"),
        request_id=_text(document, "request_id") or response.headers.get("X-Request-ID"),
        retry_after_s=_retry_after_s(response.headers.get("Retry-After")),
    )


@contextmanager
def transport_problems(url: httpx.URL) -> Iterator[None]:
    """Within the block, what httpx raises becomes a problem."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise Unreachable(f"nothing answers at {url} ({_words(error)})") from error
    except httpx.TimeoutException as error:
        raise TimedOut(f"of {url} ({_words(error)})") from error
    except httpx.TransportError as error:
        raise ConnectionLost(f"to {url} ({_words(error)})") from error
    except httpx.RequestError as error:
        raise UnexpectedAnswer(f"of {url} ({_words(error)})") from error


def _document(response: httpx.Response) -> Mapping[str, Any]:
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) and value else None


def _retry_after_s(value: str | None) -> float | None:
    """Retry-After, in seconds or as a date (RFC 9110, 10.2.3); None where it is neither."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
