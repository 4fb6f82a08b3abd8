"""Nothing in an audit file can be changed unnoticed but its end."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from service.audit.chain import Link, sealed
from service.audit.file import AuditFile
from service.audit.verification import ChainError, Summary, records

Lines = list[bytes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of a header and four decisions."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, "id", sync=False, after=Link())
    file.append([{"kind": "decision", "msp": 1 / 3, "ood": None, "label": name} for name in "abcd"])
    file.close()
    return path


def broken_at(path: Path) -> int:
    with pytest.raises(ChainError) as caught:
        list(records(path))
    line = str(caught.value).removeprefix(f"{path}: line ")
    assert "\n" not in line
    return int(line[: line.index(":")])


def test_an_untouched_file_is_good(path: Path) -> None:
    summary = Summary()
    for record in records(path):
        summary.count(record)
    assert (summary.lines, summary.decisions, summary.repairs) == (5, 4, 0)
    assert summary.first_time <= summary.last_time
    assert summary.continues is None


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80])
def test_a_change_of_any_byte_is_found_in_its_line_or_the_next(path: Path, flip: int) -> None:
    content = path.read_bytes()
    for at, byte in enumerate(content):
        path.write_bytes(content[:at] + bytes([byte ^ flip]) + content[at + 1 :])
        assert broken_at(path) == content.count(b"\n", 0, at) + 1


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
def test_lines_cannot_be_taken_out_swapped_repeated_or_cut(
    path: Path, change: Callable[[Lines], Lines], line: int
) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    assert broken_at(path) == line


def test_a_line_sealed_anew_does_not_fit_the_next(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    found = list(records(path))
    changed = {name: value for name, value in found[2].items() if name != "hash"} | {"label": "x"}
    forged, _ = sealed(changed, Link(2, found[1]["hash"]))
    path.write_bytes(b"".join([*lines[:2], forged, *lines[3:]]))
    assert broken_at(path) == 4


def sealed_lines(*records: tuple[dict[str, object], Link]) -> bytes:
    """Lines whose own hashes are right, wherever they say they stand."""
    return b"".join(sealed({"time": ""} | record, at)[0] for record, at in records)


HEADER = {"kind": "header", "format": 1}
DECISION = {"kind": "decision"}
AFTER_HEADER = sealed({"time": ""} | HEADER, Link())[1]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (sealed_lines((DECISION, Link())), 1, "not a header"),
        (sealed_lines((HEADER | {"format": 2}, Link())), 1, "of another format"),
        (sealed_lines((HEADER, Link(3))), 1, "neither the first"),
        (sealed_lines((HEADER, Link(0, "a" * 64))), 1, "neither the first"),
        (sealed_lines((HEADER, Link()), (HEADER, AFTER_HEADER)), 2, "a second header"),
        (sealed_lines((HEADER, Link()), (DECISION, Link(2, AFTER_HEADER.hash))), 2, "has number 2"),
        (sealed_lines((HEADER, Link()), (DECISION, Link(1, "a" * 64))), 2, "does not follow"),
        (sealed_lines((HEADER, Link()), ({"kind": "note"}, AFTER_HEADER)), 2, "of a known kind"),
    ],
)
def test_well_sealed_lines_in_the_wrong_place_are_found(
    path: Path, content: bytes, line: int, reason: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(ChainError, match=f"line {line}: .*{reason}"):
        list(records(path))


def test_a_cut_between_two_lines_at_the_end_cannot_be_seen(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    assert len(list(records(path))) == 3


def test_a_long_log_is_read_in_little_memory(path: Path) -> None:
    link, lines = Link(), []
    for number in range(3000):
        record = {
            "kind": "decision" if number else "header",
            "format": 1,
            "time": "",
            "x": "y" * 900,
        }
        line, link = sealed(record, link)
        lines.append(line)
    path.write_bytes(b"".join(lines))
    lines.clear()
    tracemalloc.start()
    try:
        assert sum(1 for _ in records(path)) == 3000
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 5
    finally:
        tracemalloc.stop()
