"""The lines of an audit log, each of which holds the hash of the one before it.

A line is a record as canonical JSON: sorted keys, no spaces, ASCII, numbers as Python writes them
(the shortest digits that give the same double). `hash` is the SHA-256 of the record without
`hash`; `previous` is the `hash` of the line before, so that no line can be changed, taken out or
moved without changing all that follow.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = 1
UNBEGUN = "0" * 64  # what the first line of a chain has as `previous`
MAX_LINE_BYTES = 1 << 20
HEADER, DECISION, REPAIR = "header", "decision", "repair"
KINDS = (HEADER, DECISION, REPAIR)

Record = dict[str, Any]


@dataclass(frozen=True)
class Link:
    """Where a chain stands: how many lines it has had, and the hash of its last."""

    lines: int = 0
    hash: str = UNBEGUN


def canonical(record: Mapping[str, Any]) -> bytes:
    """The one way to write a record. Raises ValueError for NaN and infinities."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def sealed(record: Mapping[str, Any], at: Link) -> tuple[bytes, Link]:
    """The line that a record becomes at the end of a chain, and where the chain then stands.

    Raises ValueError for a line that would be longer than one may be.
    """
    chained = {**record, "sequence": at.lines, "previous": at.hash}
    digest = hashlib.sha256(canonical(chained)).hexdigest()
    line = canonical({**chained, "hash": digest}) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line of {len(line):,} bytes; at most {MAX_LINE_BYTES:,} are written")
    return line, Link(at.lines + 1, digest)


def unsealed(line: bytes) -> Record:
    """The record of one line, its own hash checked. Raises ValueError, which says what is wrong."""
    if not line.endswith(b"\n"):
        raise ValueError("the line has no end; it was cut, or is longer than any line can be")
    try:
        record: Record = dict(json.loads(line))
        intact = canonical(record) + b"\n" == line
    except (ValueError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise ValueError("not a line as this service writes it")
    unhashed = {name: value for name, value in record.items() if name != "hash"}
    if record.get("hash") != hashlib.sha256(canonical(unhashed)).hexdigest():
        raise ValueError("the hash is not that of the line")
    if not {"kind", "time", "sequence", "previous"} <= record.keys() or record["kind"] not in KINDS:
        raise ValueError("not a record of a known kind")
    return record


def link_of(record: Record) -> Link:
    """Where a chain stands after this record."""
    return Link(record["sequence"] + 1, record["hash"])
