"""The log of the service, as `eulerlora serve` configures it."""

import io
import json
import logging
import logging.config
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from typing import Any, Literal

import pytest

from service.telemetry.logs import log_config

LOGGERS = [None, "eulerlora", "service", "uvicorn", "uvicorn.error", "uvicorn.access"]


@pytest.fixture
def log() -> Iterator[Callable[..., list[str]]]:
    """(format) -> the lines on stderr so far; later ones have the format, if one is given."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    written = io.StringIO()

    def lines(log_format: Literal["json", "text"] | None = None) -> list[str]:
        text = written.getvalue()
        written.seek(0)
        written.truncate()
        if log_format is not None:
            with redirect_stderr(written):
                logging.config.dictConfig(log_config(log_format))
        return text.removesuffix("\n").split("\n") if text else []

    yield lines
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def records(log: Callable[..., list[str]]) -> Callable[[], list[dict[str, Any]]]:
    """() -> the parsed records of the service since the last call, including debug records."""
    log("json")
    logging.getLogger("service").setLevel(logging.DEBUG)
    return lambda: [json.loads(line) for line in log()]
