"""Request ids, and log records with them: one JSON object per line, or text for a terminal."""

import logging
import re
import traceback
import uuid
from contextvars import ContextVar
from typing import Any, Literal, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter
from starlette.datastructures import Headers
from starlette.types import Scope

from eulerlora_contract.printable import printable

REQUEST_ID_HEADER = "X-Request-ID"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")
current_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that the current task or thread processes."""

_LogFormat = Literal["json", "text"]
LogChoice = Literal["auto", "json", "text"]
current_trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
"""The trace of the current task or thread, as 32 hexadecimal digits."""


def request_id_of(scope: Scope) -> str:
    """The id that the client has sent if it is well-formed, otherwise a new one."""
    sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return sent if _WELL_FORMED.fullmatch(sent) else uuid.uuid4().hex


def log_format(choice: LogChoice, stream: TextIO) -> _LogFormat:
    """The format of a log on a stream. auto: text on a terminal, otherwise JSON."""
    if choice == "auto":
        return "text" if stream.isatty() else "json"
    return choice


def log_config(log_format: _LogFormat) -> dict[str, Any]:
    """A configuration for `logging.config.dictConfig` that logs to stderr.

    uvicorn's access log is off: `service.telemetry.observation` logs one record per request.
    """
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request": {"()": _RequestFilter}},
        "formatters": {"chosen": {"()": _json if log_format == "json" else _TextFormatter}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "filters": ["request"],
                "formatter": "chosen",
            }
        },
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "eulerlora": {"level": "INFO"},
            "service": {"level": "INFO"},
            "uvicorn": {"level": "INFO"},
            "uvicorn.access": {"handlers": [], "propagate": False},
        },
    }


class _RequestFilter(logging.Filter):
    """Adds the request id and the trace id to every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        if request_id := current_request_id.get():
            record.request_id = request_id
        if trace_id := current_trace_id.get():
            record.trace_id = trace_id
        return True


class _TextFormatter(logging.Formatter):
    """Formats a record as one line, followed by indented lines of a traceback.

    Escapes control characters, so that no record can imitate another one or control a terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", "-")
        duration = f"{record.duration_s * 1000:.1f} ms" if hasattr(record, "duration_s") else ""
        parts = (
            self.formatTime(record), record.levelname, record.name, request_id,
            record.getMessage(), duration,
        )  # fmt: skip
        lines = [printable(" ".join(part for part in parts if part))]
        if record.exc_info and record.exc_info[0]:
            for entry in traceback.format_exception(*record.exc_info):
                lines += [f"    | {printable(line)}" for line in entry.splitlines()]
        return "\n".join(lines)


def _json() -> JsonFormatter:
    return JsonFormatter(
        ["levelname", "name", "message"],
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "traceback"},
        timestamp="time",
        reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's copy of the message
    )
