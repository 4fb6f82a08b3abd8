"""Reads an audit file line by line and checks its chain, in constant memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eulerlora.errors import EulerLoRAError
from service.audit.chain import (
    DECISION,
    FORMAT,
    HEADER,
    MAX_LINE_BYTES,
    REPAIR,
    UNBEGUN,
    Link,
    Record,
    link_of,
    unsealed,
)


class ChainError(EulerLoRAError):
    """A line of an audit file is not what the chain says it was."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}: line {line}: {reason}")


@dataclass
class Summary:
    """What a file holds, counted while its records pass.

    continues: the hash at which an earlier file of the chain ended, if there is one.
    """

    lines: int = 0
    decisions: int = 0
    repairs: int = 0
    first_time: str = ""
    last_time: str = ""
    continues: str | None = None
    last_hash: str = UNBEGUN

    def count(self, record: Record) -> None:
        """Takes one more record into account."""
        if self.lines == 0:
            self.first_time = record["time"]
            self.continues = None if record["previous"] == UNBEGUN else record["previous"]
        self.lines += 1
        self.decisions += record["kind"] == DECISION
        self.repairs += record["kind"] == REPAIR
        self.last_time, self.last_hash = record["time"], record["hash"]


def records(path: Path) -> Iterator[Record]:
    """The records of an audit file, each checked against the one before it.

    Raises ChainError at the first line that does not fit, and OSError for an unreadable file.
    That lines are missing at the end cannot be seen from the lines that are left.
    """
    link: Link | None = None
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            try:
                record = unsealed(line)
                _check_first(record) if link is None else _check_next(record, link)
            except ValueError as error:
                raise ChainError(path, number, str(error)) from error
            link = link_of(record)
            yield record
    if link is None:
        raise ChainError(path, 1, "the file is empty; it should begin with a header")


def _check_first(record: Record) -> None:
    if record["kind"] != HEADER:
        raise ValueError("not a header, with which an audit log begins")
    if record.get("format") != FORMAT:
        raise ValueError(f"of another format than {FORMAT}, which is the one known here")
    if (record["sequence"] == 0) != (record["previous"] == UNBEGUN):
        raise ValueError("neither the first line of a chain nor one that follows another")


def _check_next(record: Record, link: Link) -> None:
    if record["kind"] == HEADER:
        raise ValueError("a second header; each file has one")
    if record["sequence"] != link.lines:
        raise ValueError(f"has number {record['sequence']} where {link.lines} should follow")
    if record["previous"] != link.hash:
        raise ValueError("does not follow the line before it, which was changed or put there")
