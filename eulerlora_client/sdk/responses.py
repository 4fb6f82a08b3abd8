"""Response -> body of the expected type, or the problem that it reports."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import ValidationError

from eulerlora_client.contract.predictions import ProblemDocument
from eulerlora_client.contract.problems import (
    ConnectionLost,
    Problem,
    TimedOut,
    UnexpectedAnswer,
    Unreachable,
    problem_class,
)
from eulerlora_client.contract.triage import TriageBatch, TriageResult
from eulerlora_client.sdk.requests import AnyBody, HttpRequest
from eulerlora_client.settings import first_error


def response_body(response: httpx.Response, request: HttpRequest[AnyBody]) -> AnyBody:
    """Returns the body of a response. Raises the reported Problem, or UnexpectedAnswer."""
    if response.status_code != httpx.codes.OK:
        raise reported_problem(response)
    try:
        return request.body.model_validate_json(response.content)
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
