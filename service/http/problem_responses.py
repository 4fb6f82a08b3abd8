"""Every 4xx and 5xx as `application/problem+json`, whatever raised it."""

import logging
import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_client.contract.predictions import ProblemDocument
from eulerlora_client.contract.problems import (
    BodyTooLarge,
    HeadersTooLarge,
    InternalError,
    InvalidParameter,
    MalformedRequest,
    MethodNotAllowed,
    NotAuthenticated,
    NotFound,
    Problem,
    QuotaExceeded,
    RequestRefused,
    UploadTooSlow,
)
from service.telemetry.request_id import HEADER, request_id_of

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
CLIENT_LEFT = 499  # as nginx logs it
PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

UNREAD_BODY = (
    MalformedRequest, NotAuthenticated, UploadTooSlow, BodyTooLarge, QuotaExceeded, HeadersTooLarge,
)  # fmt: skip
"""Problems that leave the rest of the body unread, so that the connection cannot be used again."""


def install(app: FastAPI) -> None:
    """Makes the app answer every error with a problem document."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_defect)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI description says of answers with these statuses."""
    schema = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}
    content = {MEDIA_TYPE: {"schema": schema}}
    return {each: {"description": HTTPStatus(each).phrase, "content": content} for each in statuses}


def problem_body(problem: Problem, request_id: str) -> ProblemDocument:
    """Returns the problem document for the response to a request."""
    assert problem.status is not None, "client-side problems have no response"
    return ProblemDocument(
        type=f"urn:eulerlora:problem:{problem.code}",
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        code=problem.code,
        request_id=request_id,
    )


def problem_response(problem: Problem, request_id: str, closes: bool | None = None) -> JSONResponse:
    """Returns the response to a problem, which is also an ASGI application for middlewares.

    closes: as in `problem_headers`.
    """
    return _ProblemResponse(problem_body(problem, request_id), problem_headers(problem, closes))


def problem_headers(problem: Problem, closes: bool | None = None) -> dict[str, str]:
    """Returns the headers that are specific to a problem.

    closes: whether the connection ends after the response; None takes the default of the class.
    """
    headers = {}
    if isinstance(problem, UNREAD_BODY) if closes is None else closes:
        headers["Connection"] = "close"
    if problem.retry_after_s is not None:
        seconds = max(1, math.ceil(problem.retry_after_s))  # RFC 9110, 10.2.3: whole seconds
        headers["Retry-After"] = str(seconds)
    if isinstance(problem, NotAuthenticated):
        headers["WWW-Authenticate"] = "Bearer"  # RFC 9110, 15.5.2 requires a challenge
    return headers


class _ProblemResponse(JSONResponse):
    """Leaves the problem's code in the request's state, for whoever observes the request."""

    def __init__(self, body: ProblemDocument, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(body.model_dump(), body.status, headers, MEDIA_TYPE)
        self.problem = body.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["problem"] = self.problem
        await super().__call__(scope, receive, send)


class DefectMiddleware:
    """Answers a defect like any other problem, so that the connection can be used again.

    Starlette raises a defect on after it was answered, whereupon uvicorn logs it once more and
    closes the connection without having told the client. This is left for a defect that comes
    after the answer has begun.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = scope["type"] != "http"

        async def watched_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception as error:
            if begun:
                raise
            await (await _on_defect(Request(scope), error))(scope, receive, send)


async def _on_problem(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, Problem)
    return problem_response(problem, request_id_of(request))


async def _on_disconnect(request: Request, _: Exception) -> Response:
    """The client left before its body was whole: nothing is run, and nobody reads an answer."""
    logger.info("request %s: the client left", request_id_of(request))
    return Response(status_code=CLIENT_LEFT)


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return await _on_problem(request, InvalidParameter(_without_values(error.errors()[0])))


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = error.status_code
    kind = {404: NotFound, 405: MethodNotAllowed}.get(status, RequestRefused)
    problem = kind("see /docs for what is served", status=status)
    return _ProblemResponse(problem_body(problem, request_id_of(request)), error.headers)


async def _on_defect(request: Request, error: Exception) -> JSONResponse:
    logger.exception("request %s failed", request_id_of(request), exc_info=error)
    body = problem_body(
        InternalError("the failure was logged under the request id"), request_id_of(request)
    )
    return _ProblemResponse(body, {HEADER: body.request_id})  # also used outside the middleware


def _without_values(error: Mapping[str, Any]) -> str:
    """What was wrong with which parameter; the value that came is not repeated."""
    name = str(error["loc"][-1])
    shown = name if PRINTABLE_NAME.fullmatch(name) else "a parameter with an unprintable name"
    if error["type"] == "extra_forbidden":
        return f"{shown}: no such parameter"
    return f"{shown}: {error['msg']}"
