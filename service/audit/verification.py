"""Verification of an audit file, line by line and in constant memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eulerlora.errors import EulerLoRAError
from service.audit.chain import (
    DECISION,
    FIRST_PREVIOUS,
    FORMAT,
    HEADER,
    MAX_LINE_BYTES,
    REPAIR,
    ChainEnd,
    Record,
    decode_line,
    end_after,
)


class ChainError(EulerLoRAError):
    """A line of an audit file does not match the hash chain."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}: line {line}: {reason}")


@dataclass
class Summary:
    """Statistics of an audit file, updated with every record.

    continues: last hash of the previous file of the chain, if there is one.
    """

    lines: int = 0
    decisions: int = 0
    repairs: int = 0
    first_time: str = ""
    last_time: str = ""
    continues: str | None = None
    last_hash: str = FIRST_PREVIOUS

    def count(self, record: Record) -> None:
        """Adds one record to the statistics."""
        if self.lines == 0:
            self.first_time = record["time"]
            self.continues = None if record["previous"] == FIRST_PREVIOUS else record["previous"]
        self.lines += 1
        self.decisions += record["kind"] == DECISION
        self.repairs += record["kind"] == REPAIR
        self.last_time, self.last_hash = record["time"], record["hash"]


def records(path: Path) -> Iterator[Record]:
    """Yields the records of an audit file after checking each against the previous one.

    Raises ChainError at the first invalid line, and OSError for an unreadable file. Lines missing
    at the end of the file cannot be detected without the expected last hash.
    """
    end: ChainEnd | None = None
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            try:
                record = decode_line(line)
                _check_first(record) if end is None else _check_next(record, end)
            except ValueError as error:
                raise ChainError(path, number, str(error)) from error
            end = end_after(record)
            yield record
    if end is None:
        raise ChainError(path, 1, "expected a header, got an empty file")


def _check_first(record: Record) -> None:
    if record["kind"] != HEADER:
        raise ValueError(f"expected a header, got a record of kind {record['kind']}")
    if record.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got another one")
    if (record["sequence"] == 0) != (record["previous"] == FIRST_PREVIOUS):
        raise ValueError("the header neither starts a chain nor continues one")


def _check_next(record: Record, end: ChainEnd) -> None:
    if record["kind"] == HEADER:
        raise ValueError("expected one header per file, got a second one")
    if record["sequence"] != end.lines:
        raise ValueError(f"expected sequence number {end.lines}, got {record['sequence']}")
    if record["previous"] != end.hash:
        raise ValueError("does not match the previous line, which was changed or inserted")
