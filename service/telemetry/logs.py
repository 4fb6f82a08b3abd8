"""How the log is written: a JSON object a line, or plain text for a person at a terminal."""

import logging
import traceback
from contextvars import ContextVar
from typing import Any, Literal, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from eulerlora.settings import Settings
from eulerlora_client.triage.printable import printable
from service.telemetry.request_id import current_request_id

LogFormat = Literal["json", "text"]
LogChoice = Literal["auto", "json", "text"]
CHOICES: tuple[LogChoice, ...] = ("auto", "json", "text")

current_trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
"""The trace that the running task or thread works for, in 32 hexadecimal digits."""


class LogSettings(Settings):
    """How the log is written. auto: text where it goes to a terminal, otherwise JSON."""

    format: LogChoice = "auto"

    def format_for(self, stream: TextIO) -> LogFormat:
        """The format for a log that goes to `stream`."""
        if self.format == "auto":
            return "text" if stream.isatty() else "json"
        return self.format


def log_config(log_format: LogFormat) -> dict[str, Any]:
    """A configuration for `logging.config.dictConfig` or uvicorn: all records, to stderr.

    uvicorn's access log is off; `service.telemetry.observation` has one record a request.
    """
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request": {"()": RequestFilter}},
        "formatters": {"chosen": {"()": _json if log_format == "json" else TextFormatter}},
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


class RequestFilter(logging.Filter):
    """Tells each record whose request it belongs to; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        if request_id := current_request_id.get():
            record.request_id = request_id
        if trace_id := current_trace_id.get():
            record.trace_id = trace_id
        return True


class TextFormatter(logging.Formatter):
    """One line a record, and a margin before each line of a traceback.

    Control characters are escaped, so that nothing in a record can look like another one or
    speak to a terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", "-")
        taken = f"{record.duration_s * 1000:.1f} ms" if hasattr(record, "duration_s") else ""
        words = (
            self.formatTime(record), record.levelname, record.name, request_id,
            record.getMessage(), taken,
        )  # fmt: skip
        lines = [printable(" ".join(word for word in words if word))]
        if record.exc_info and record.exc_info[0]:
            for part in traceback.format_exception(*record.exc_info):
                lines += [f"    | {printable(line)}" for line in part.splitlines()]
        return "\n".join(lines)


def _json() -> JsonFormatter:
    return JsonFormatter(
        ["levelname", "name", "message"],
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "traceback"},
        timestamp="time",
        reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's, the message once more
    )
