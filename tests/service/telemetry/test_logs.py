"""Request ids, and log records: JSON that parses, and text that cannot be forged."""

import asyncio
import io
import json
import logging
import re

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from service.telemetry.logs import log_config, log_format
from tests.service.http.plain_app import guarded

NEW = re.compile(r"[0-9a-f]{32}")


async def return_id(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.state.request_id, headers={"X-Request-ID": "overwritten"})


async def log_twice(_: Request) -> PlainTextResponse:
    logger = logging.getLogger("service")
    logger.info("in the task")
    await asyncio.to_thread(logger.info, "in a thread")
    return PlainTextResponse("")


@pytest.fixture(scope="module")
def echo() -> TestClient:
    """A client of an app that returns the id."""
    app = Starlette(routes=[Route("/", return_id), Route("/log", log_twice)])
    return TestClient(guarded(app))


@pytest.mark.parametrize("sent", ["a", "abc-DEF_1.2", "9" * 128])
def test_a_well_formed_id_is_returned(echo, sent) -> None:
    response = echo.get("/", headers={"X-Request-ID": sent})
    assert response.headers.get_list("X-Request-ID") == [sent]
    assert response.text == sent


@pytest.mark.parametrize(
    "sent",
    ["", "a" * 129, "two words", "tab\there", "<script>", "a/b", "a\u00e9".encode(), b"\xff", "a,b",
     "{}", "'", "an-id:3"],
)  # fmt: skip
def test_a_malformed_id_is_replaced(echo, sent) -> None:
    response = echo.get("/", headers={"X-Request-ID": sent})
    assert NEW.fullmatch(response.headers["X-Request-ID"])
    assert response.text == response.headers["X-Request-ID"]


def test_requests_without_an_id_get_different_ones(echo) -> None:
    ids = {echo.get("/").headers["X-Request-ID"] for _ in range(20)}
    assert len(ids) == 20
    assert all(NEW.fullmatch(request_id) for request_id in ids)


def test_records_have_the_id_of_their_request_in_threads_too(echo, log) -> None:
    log("text")
    logging.getLogger("service").info("before")
    echo.get("/log", headers={"X-Request-ID": "my.request-id_7"})
    logging.getLogger("service").info("after")
    before, task, thread, request, after = log()
    assert before.endswith("INFO service - before")
    assert task.endswith("INFO service my.request-id_7 in the task")
    assert thread.endswith("INFO service my.request-id_7 in a thread")
    assert " my.request-id_7 GET /log 200 " in request
    assert after.endswith("INFO service - after")


FORGED = "first\n2026-01-01 00:00:00,000 INFO service.telemetry.observation forged\x1b[2J\u2028"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def log_exception(logger: logging.Logger) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("it failed: %s", FORGED)


def test_every_logger_writes_json_lines_to_stderr(log) -> None:
    log("json")
    logging.getLogger("service.http.responses").info("ours")
    logging.getLogger("uvicorn.error").info("uvicorn's", extra={"color_message": "coloured"})
    logging.getLogger("some.library").warning("a library's")
    logging.getLogger("some.library").info("too much")
    lines = [json.loads(line) for line in log()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("service.http.responses", "ours"),
        ("uvicorn.error", "uvicorn's"),
        ("some.library", "a library's"),
    ]
    assert all(set(line) == {"time", "level", "logger", "message"} for line in lines)


def test_uvicorns_access_log_is_off(log) -> None:
    uvicorn.Config(lambda: None, log_config=log_config("json"))
    assert not logging.getLogger("uvicorn.access").hasHandlers()
    assert logging.getLogger("uvicorn.error").hasHandlers()


def test_a_json_record_is_one_line_with_the_traceback_as_a_field(log) -> None:
    log("json")
    log_exception(logging.getLogger("service"))
    (line,) = log()
    record = json.loads(line)
    assert record["message"] == f"it failed: {FORGED}"
    assert record["traceback"].startswith("Traceback")
    assert "exc_info" not in record


def test_text_records_cannot_be_forged(log) -> None:
    log("text")
    log_exception(logging.getLogger("service"))
    first, *rest = log()
    assert "it failed: first\\n2026-01-01 00:00:00,000" in first
    assert len(rest) > 3
    assert all(line.startswith("    | ") for line in rest)
    assert all(line.isprintable() for line in (first, *rest))


def test_text_shows_the_duration_of_a_request(log) -> None:
    log("text")
    logging.getLogger("service").info("GET / 200", extra={"duration_s": 0.0123})
    (line,) = log()
    assert line.endswith("GET / 200 12.3 ms")


@pytest.mark.parametrize(
    ("chosen", "stream", "expected"),
    [("auto", Terminal(), "text"), ("auto", io.StringIO(), "json"), ("json", Terminal(), "json"),
     ("text", io.StringIO(), "text")],
)  # fmt: skip
def test_auto_is_text_on_a_terminal_and_json_elsewhere(chosen, stream, expected) -> None:
    assert log_format(chosen, stream) == expected
