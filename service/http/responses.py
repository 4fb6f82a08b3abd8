"""Response bodies: JSON, and a problem document (RFC 9457) for every 4xx and 5xx error.

A plug-in may give the problems of its paths another body, with the same status.
"""

import asyncio
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic_core import ErrorDetails, to_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from eulerlora_contract.answers import PROBLEM_URN, ProblemDocument
from eulerlora_contract.problems import (
    BodyTooLarge,
    HeadersTooLarge,
    InternalError,
    InvalidParameter,
    MalformedRequest,
    MethodNotAllowed,
    NotAuthenticated,
    NotFound,
    NotReady,
    Overloaded,
    Problem,
    QuotaExceeded,
    RequestRefused,
    UploadTooSlow,
)
from eulerlora_contract.settings import expected_value
from service.fair_sharing import ShareExceeded
from service.telemetry.logs import REQUEST_ID_HEADER
from service.telemetry.records import CLIENT_CLOSED_REQUEST

logger = logging.getLogger(__name__)

JSON, PROBLEM_JSON = "application/json", "application/problem+json"
SEE_DOCUMENTATION = "see /docs for the available resources"
ProblemBody = Callable[[ProblemDocument], Mapping[str, Any]]
"""From a problem document to another JSON body."""

_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_UNREAD_BODY = (
    MalformedRequest, NotAuthenticated, UploadTooSlow, BodyTooLarge, QuotaExceeded, HeadersTooLarge,
)  # fmt: skip
"""Problems that leave the rest of the body unread, so that the connection must be closed."""

_NOT_READY_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="{seconds}">
<title>{title}</title>
<h1>{title}</h1>
<p>Reason: {detail}. This page loads again every {seconds} seconds.</p>
</html>
"""
_MAX_REFUSAL_DELAY_S = 1.0
_SIGNIFICANT_DIGITS = 6
"""Of the numbers in a response. The relative error is at most 5e-6, and so is the deviation of a
sum of probabilities from 1, for any number of classes."""


def add_problem_handlers(
    app: FastAPI,
    overload_status: int | None = Overloaded.status,
    bodies: Mapping[str, ProblemBody] = MappingProxyType({}),
) -> None:
    """Adds exception handlers that respond to every error with a problem document.

    Args:
        app: Changed in place.
        overload_status: Of the problem Overloaded, in every response of the application.
        bodies: In place of the documents, by the prefix of the path.
    """
    app.state.overload_status, app.state.problem_bodies = overload_status, bodies
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, on_defect)


def problem_document(problem: Problem, request_id: str) -> ProblemDocument:
    assert problem.status is not None, "client-side problems have no response"
    return ProblemDocument(
        type=f"{PROBLEM_URN}{problem.code}",
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        code=problem.code,
        request_id=request_id,
    )


def problem_headers(problem: Problem, closes: bool | None = None) -> dict[str, str]:
    """The headers that are specific to a problem.

    `closes`: whether the connection ends after the response; None takes the default of the class.
    """
    headers = {}
    if isinstance(problem, _UNREAD_BODY) if closes is None else closes:
        headers["Connection"] = "close"
    if problem.retry_after_s is not None:
        seconds = max(1, math.ceil(problem.retry_after_s))  # RFC 9110, 10.2.3: whole seconds
        headers["Retry-After"] = str(seconds)
    if isinstance(problem, NotAuthenticated):
        headers["WWW-Authenticate"] = "Bearer"  # RFC 9110, 15.5.2 requires a challenge
    return headers


class ProblemResponse(JSONResponse):
    """A problem document; stores its code in the request state for logs, metrics and traces.

    Like every response it is also an ASGI application, which middlewares can call. Its headers are
    by default those of the problem. It is delayed for a client beyond its quota or its share: one
    that ignores Retry-After would keep the event loop busy with refusals. A browser that opens `/`
    before the service is ready gets a page that loads again.
    """

    def __init__(
        self, problem: Problem, request_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._document = problem_document(problem, request_id)
        is_delayed = isinstance(problem, QuotaExceeded | ShareExceeded)
        self._delay_s = min(problem.retry_after_s or 0, _MAX_REFUSAL_DELAY_S) if is_delayed else 0
        chosen = problem_headers(problem) if headers is None else headers
        super().__init__(None, self._document.status, chosen, PROBLEM_JSON)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(self._delay_s)
        document = self._document
        scope.setdefault("state", {})["problem"] = document.code
        state = scope["app"].state if "app" in scope else None
        if document.code == Overloaded.code:
            status = getattr(state, "overload_status", document.status)
            document = document.model_copy(update={"status": status})
        content: Mapping[str, Any] = document.model_dump(exclude_unset=True)
        for prefix, body_of in getattr(state, "problem_bodies", {}).items():
            if f"{scope['path']}/".startswith(f"{prefix}/"):
                content = body_of(document)
                self.headers["Content-Type"] = JSONResponse.media_type
        self.status_code, self.body = document.status, self.render(content)
        if document.code == NotReady.code and _is_first_page(scope):
            seconds = self.headers.get("Retry-After", "5")
            values = {"title": document.title, "detail": escape(document.detail)}
            self.body = _NOT_READY_PAGE.format(seconds=seconds, **values).encode()
            self.headers["Content-Type"] = "text/html; charset=utf-8"
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def _is_first_page(scope: Scope) -> bool:
    """True if a browser opens `/`; programs accept any type."""
    return scope["path"] == "/" and "text/html" in Headers(scope=scope).get("Accept", "")


async def _on_problem(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, Problem)
    return ProblemResponse(problem, request.state.request_id)


async def _on_disconnect(request: Request, _: Exception) -> Response:
    """Ends a request whose client has disconnected; the response is not sent."""
    logger.info("request %s: the client disconnected", request.state.request_id)
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Names the parameter and the reason, without the invalid value."""
    assert isinstance(error, RequestValidationError)
    fault: ErrorDetails = error.errors()[0]
    name = str(fault["loc"][-1])
    if not _PRINTABLE_NAME.fullmatch(name):
        name = "a parameter with an unprintable name"
    if fault["type"] == "extra_forbidden":
        reason = "unknown parameter"
    elif fault["type"] == "missing":
        reason = "expected a value, got none"
    elif fault["type"] == "value_error":
        reason = str(fault["ctx"]["error"])
    else:
        reason = f"expected {expected_value(fault)}"
    return await _on_problem(request, InvalidParameter(f"{name}: {reason}"))


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = error.status_code
    kind = {404: NotFound, 405: MethodNotAllowed}.get(status, RequestRefused)
    problem = kind(SEE_DOCUMENTATION, status=status)
    return ProblemResponse(problem, request.state.request_id, error.headers)


async def on_defect(request: Request, error: Exception) -> JSONResponse:
    """Logs an unexpected exception and answers it."""
    request_id = request.state.request_id
    logger.exception("request %s failed", request_id, exc_info=error)
    problem = InternalError("the failure was logged under the request id")
    # The header is also needed outside of ObservationMiddleware.
    return ProblemResponse(problem, request_id, {REQUEST_ID_HEADER: request_id})


def json_response(
    body: BaseModel | Mapping[str, Any],
    media_type: str = JSON,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response with a body.

    Omits fields that are not set, and rounds numbers to _SIGNIFICANT_DIGITS.
    """
    values = body.model_dump(exclude_unset=True) if isinstance(body, BaseModel) else body
    content = to_json(rounded(values), inf_nan_mode="null")
    return Response(content, headers=headers, media_type=media_type)


def batch_response(
    headers: Mapping[str, str] | None = None, **results: Sequence[BaseModel]
) -> Response:
    """The response of a batch, as `json_response`; `results`: of its images, and others."""
    content = {
        name: [result.model_dump(exclude_unset=True) for result in part]
        for name, part in results.items()
    }
    return json_response(content, headers=headers)


def rounded(value: Any) -> Any:
    """A JSON value with its floating-point numbers rounded; integers are exact."""
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return value
