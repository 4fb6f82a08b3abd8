"""The hash chain of an audit log: every line contains the hash of the previous line.

A line is a record in canonical JSON: sorted keys, no spaces, ASCII, numbers in Python's shortest
representation. `hash` is the SHA-256 of the record without `hash`; `previous` is the `hash` of the
previous line. Changing, removing or moving a line therefore invalidates all later lines.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = 1
FIRST_PREVIOUS = "0" * 64  # `previous` of the first line of a chain
MAX_LINE_BYTES = 1 << 20
HEADER, DECISION, REPAIR = "header", "decision", "repair"
KINDS = (HEADER, DECISION, REPAIR)

Record = dict[str, Any]


@dataclass(frozen=True)
class ChainEnd:
    """The end of a chain: its number of lines, and the hash of the last one."""

    lines: int = 0
    hash: str = FIRST_PREVIOUS


def canonical(record: Mapping[str, Any]) -> bytes:
    """Returns a record as canonical JSON. Raises ValueError for NaN and infinities."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def encode_line(record: Mapping[str, Any], end: ChainEnd) -> tuple[bytes, ChainEnd]:
    """Returns the line of a record appended at `end`, and the new end of the chain.

    Raises ValueError for a line longer than MAX_LINE_BYTES.
    """
    chained = {**record, "sequence": end.lines, "previous": end.hash}
    digest = hashlib.sha256(canonical(chained)).hexdigest()
    line = canonical({**chained, "hash": digest}) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"expected a line of at most {MAX_LINE_BYTES:,} bytes, got {len(line):,}")
    return line, ChainEnd(end.lines + 1, digest)


def decode_line(line: bytes) -> Record:
    """Returns the record of one line after checking its hash. Raises ValueError with a reason."""
    if not line.endswith(b"\n"):
        raise ValueError("the line is truncated or longer than the limit")
    try:
        record: Record = dict(json.loads(line))
        intact = canonical(record) + b"\n" == line
    except (ValueError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise ValueError("not in the canonical form of this service")
    unhashed = {name: value for name, value in record.items() if name != "hash"}
    if record.get("hash") != hashlib.sha256(canonical(unhashed)).hexdigest():
        raise ValueError("the hash does not match the line")
    if not {"kind", "time", "sequence", "previous"} <= record.keys() or record["kind"] not in KINDS:
        raise ValueError("not a record of a known kind")
    return record


def end_after(record: Record) -> ChainEnd:
    """Returns the end of the chain after this record."""
    return ChainEnd(record["sequence"] + 1, record["hash"])
