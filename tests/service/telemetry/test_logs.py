"""How the log is written: JSON that parses, text that cannot be forged."""

import io
import json
import logging
import logging.config
from collections.abc import Callable, Iterator

import pytest
import uvicorn

from service.telemetry.logs import LogSettings, TextFormatter, log_config
from service.telemetry.request_id import current_request_id

FORGED = "first\n2026-01-01 00:00:00,000 INFO service.telemetry.observation forged\x1b[2J\u2028"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stderr(capsys) -> Iterator[Callable[[], str]]:
    """() -> what was written to stderr; the loggers are left as they were."""
    names = [None, "eulerlora", "service", "uvicorn", "uvicorn.error", "uvicorn.access"]
    loggers = [logging.getLogger(name) for name in names]
    before = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    yield lambda: capsys.readouterr().err
    for each, handlers, level, propagate in before:
        each.handlers[:], each.propagate = handlers, propagate
        each.setLevel(level)


def failing(log: logging.Logger) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("it failed: %s", FORGED)


def test_every_logger_writes_json_lines_to_stderr(stderr) -> None:
    logging.config.dictConfig(log_config("json"))
    logging.getLogger("service.http.problem_responses").info("ours")
    logging.getLogger("uvicorn.error").info("uvicorn's", extra={"color_message": "coloured"})
    logging.getLogger("some.library").warning("a library's")
    logging.getLogger("some.library").info("too much")
    lines = [json.loads(line) for line in stderr().splitlines()]
    assert [(each["logger"], each["message"]) for each in lines] == [
        ("service.http.problem_responses", "ours"),
        ("uvicorn.error", "uvicorn's"),
        ("some.library", "a library's"),
    ]
    assert all(set(each) == {"time", "level", "logger", "message"} for each in lines)


def test_uvicorns_access_log_is_off(stderr) -> None:
    uvicorn.Config(lambda: None, log_config=log_config("json"))
    assert not logging.getLogger("uvicorn.access").hasHandlers()
    assert logging.getLogger("uvicorn.error").hasHandlers()


def test_a_record_in_json_is_one_line_with_its_traceback_as_a_field(stderr) -> None:
    logging.config.dictConfig(log_config("json"))
    failing(logging.getLogger("service"))
    (line,) = stderr().splitlines()
    record = json.loads(line)
    assert record["message"] == f"it failed: {FORGED}"
    assert record["traceback"].startswith("Traceback")
    assert "exc_info" not in record


def test_in_text_nothing_looks_like_another_record(stderr) -> None:
    logging.config.dictConfig(log_config("text"))
    failing(logging.getLogger("service"))
    first, *rest = stderr().removesuffix("\n").split("\n")
    assert "it failed: first\\n2026-01-01 00:00:00,000" in first
    assert len(rest) > 3
    assert all(line.startswith("    | ") for line in rest)
    assert all(line.isprintable() for line in (first, *rest))


def test_records_carry_the_id_of_the_request_they_belong_to(stderr) -> None:
    logging.config.dictConfig(log_config("text"))
    logger = logging.getLogger("service")
    logger.info("before")
    token = current_request_id.set("an-id")
    logger.info("within")
    current_request_id.reset(token)
    before, within = stderr().splitlines()
    assert before.endswith("INFO service - before")
    assert within.endswith("INFO service an-id within")


def test_text_tells_how_long_a_request_took() -> None:
    record = logging.makeLogRecord({"msg": "GET / 200", "duration_s": 0.0123})
    assert TextFormatter().format(record).endswith("GET / 200 12.3 ms")


@pytest.mark.parametrize(
    ("chosen", "stream", "log_format"),
    [("auto", Terminal(), "text"), ("auto", io.StringIO(), "json"), ("json", Terminal(), "json"),
     ("text", io.StringIO(), "text")],
)  # fmt: skip
def test_only_a_terminal_gets_text_unasked(chosen, stream, log_format) -> None:
    assert LogSettings(format=chosen).format_for(stream) == log_format
