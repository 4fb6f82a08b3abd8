"""Every modification of an audit file is detected, except a removed end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from service.audit.file import AuditFile, ChainEnd, ChainError, encode_line, records

Lines = list[bytes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of a header and four decisions."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, "id", after=ChainEnd())
    file.append([{"kind": "decision", "msp": 1 / 3, "ood": None, "label": name} for name in "abcd"])
    file.close()
    return path


def first_invalid_line(path: Path) -> int:
    with pytest.raises(ChainError) as caught:
        list(records(path))
    line = str(caught.value).removeprefix(f"{path}: line ")
    assert "\n" not in line
    return int(line[: line.index(":")])


def test_a_change_of_any_byte_is_detected(path: Path) -> None:
    content = path.read_bytes()
    for at, byte in enumerate(content):
        flipped = byte ^ (0x01, 0x20, 0x80)[at % 3]
        path.write_bytes(content[:at] + bytes([flipped]) + content[at + 1 :])
        assert first_invalid_line(path) == content.count(b"\n", 0, at) + 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
        (lambda lines: [*lines, lines[-1]], 6),
        (lambda lines: [*lines, lines[0]], 6),
        (lambda lines: [*lines[:2], b"\n", *lines[2:]], 3),
        (lambda lines: [*lines[:2], lines[2][:-1] + b" \n", *lines[3:]], 3),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], 5),
        (lambda lines: [*lines[:-1], lines[-1][:9]], 5),
        (lambda lines: [*lines[:2], b"x" * (1 << 21)], 3),
        (lambda lines: [*lines[:2], b"[" * 100_000 + b"\n"], 3),
        (lambda _: [], 1),
    ],
)
def test_removed_swapped_repeated_and_truncated_lines_are_detected(
    path: Path, change: Callable[[Lines], Lines], line: int
) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    assert first_invalid_line(path) == line


def test_a_forged_line_does_not_match_the_next(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    original = list(records(path))
    changed = {name: value for name, value in original[2].items() if name != "hash"} | {
        "label": "x"
    }
    forged, _ = encode_line(changed, ChainEnd(2, original[1]["hash"]))
    path.write_bytes(b"".join([*lines[:2], forged, *lines[3:]]))
    assert first_invalid_line(path) == 4


def encoded_lines(*records: tuple[dict[str, object], ChainEnd]) -> bytes:
    """Returns lines with valid hashes at arbitrary positions of the chain."""
    return b"".join(encode_line({"time": ""} | record, end)[0] for record, end in records)


HEADER = {"kind": "header", "format": 1}
DECISION = {"kind": "decision"}
AFTER_HEADER = encode_line({"time": ""} | HEADER, ChainEnd())[1]


def after_header(record: dict[str, object], end: ChainEnd) -> bytes:
    """Returns a header and one record that claims to follow `end`."""
    return encoded_lines((HEADER, ChainEnd()), (record, end))


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (encoded_lines((DECISION, ChainEnd())), 1, "expected a header"),
        (encoded_lines((HEADER | {"format": 2}, ChainEnd())), 1, "expected format 1"),
        (encoded_lines((HEADER, ChainEnd(3))), 1, "neither starts"),
        (encoded_lines((HEADER, ChainEnd(0, "a" * 64))), 1, "neither starts"),
        (after_header(HEADER, AFTER_HEADER), 2, "one header per file"),
        (
            encoded_lines((HEADER, ChainEnd()), (DECISION, ChainEnd(2, AFTER_HEADER.hash))),
            2,
            "sequence number 1, got 2",
        ),
        (
            encoded_lines((HEADER, ChainEnd()), (DECISION, ChainEnd(1, "a" * 64))),
            2,
            "does not match the previous",
        ),
        (after_header({"kind": "note"}, AFTER_HEADER), 2, "known kind"),
    ],
)
def test_lines_with_valid_hashes_but_a_wrong_chain_are_detected(
    path: Path, content: bytes, line: int, reason: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(ChainError, match=f"line {line}: .*{reason}"):
        list(records(path))
