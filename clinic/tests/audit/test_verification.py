"""Every modification of an audit file is detected, except a removed end."""

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from eulerlora_clinic.audit.file import AuditFile, ChainEnd, ChainError, records

Lines = list[bytes]
KEY = b"key"


def canonical(record: dict[str, object]) -> bytes:
    """A record as the documents describe its line."""
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")


def write_log(path: Path, labels: str, after: ChainEnd = ChainEnd()) -> Path:  # noqa: B008
    """Writes a new file with a decision for each label."""
    path.unlink(missing_ok=True)
    file = AuditFile(path, KEY, after)
    file.append([{"kind": "decision", "msp": 1 / 3, "ood": None, "label": name} for name in labels])
    file.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of a header and four decisions."""
    return write_log(tmp_path / "audit.jsonl", "abcd")


def first_invalid_line(path: Path) -> int:
    with pytest.raises(ChainError) as caught:
        list(records([path], KEY))
    line = str(caught.value).removeprefix(f"{path}: line ")
    assert "\n" not in line
    return int(line[: line.index(":")])


OF_EVERY_LINE = {"kind", "time", "sequence", "previous", "mac"}
OF_KIND = {
    "header": {"format", "secret_id", "retention_months"},
    "decision": {"msp", "ood", "label"},  # whatever is appended
    "repair": {"bytes", "sha256"},
}


def test_lines_of_all_kinds_are_written_as_the_documents_describe_them(path: Path) -> None:
    with path.open("ab") as torn:
        torn.write(b'{"kind":"decision')
    AuditFile(path, KEY, ChainEnd()).close()
    lines = path.read_bytes().splitlines(keepends=True)
    assert {json.loads(line)["kind"] for line in lines} == OF_KIND.keys()
    end = ChainEnd()
    for line in lines:
        record = json.loads(line)
        assert record.keys() == OF_EVERY_LINE | OF_KIND[record["kind"]]
        assert re.fullmatch(r"(\d+-){2}\d+T(\d\d:){2}\d\d\.\d{6}\+00:00", record["time"])
        del record["mac"], record["sequence"], record["previous"]
        expected, end = chained(record, end, KEY)
        assert line == expected


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


def chained(record: dict[str, object], end: ChainEnd, key: bytes) -> tuple[bytes, ChainEnd]:
    """The line of a record at the end of a chain, as the documents describe it, and the new end."""
    record = record | {"sequence": end.lines, "previous": end.mac}
    mac = hmac.digest(key, canonical(record), "sha256").hex()
    return canonical(record | {"mac": mac}) + b"\n", ChainEnd(end.lines + 1, mac)


def end_of(paths: Sequence[Path]) -> ChainEnd:
    *_, last = records(paths, KEY)
    return ChainEnd(last["sequence"] + 1, last["mac"])


def rechained(path: Path, key: bytes, after: int = 0) -> bytes:
    """Returns the lines of a log, those after the first `after` ones with another label and key."""
    lines = path.read_bytes().splitlines(keepends=True)
    originals = list(records([path], KEY))
    end = ChainEnd(after, originals[after - 1]["mac"]) if after else ChainEnd()
    for at, original in enumerate(originals[after:], after):
        record = {name: value for name, value in original.items() if name != "mac"}
        lines[at], end = chained(record | {"label": "x"}, end, key)
    return b"".join(lines)


def with_plain_hashes(path: Path) -> bytes:
    """Returns the lines of a log with a SHA-256 that everybody can compute as `mac`."""
    lines, previous = [], "0" * 64
    for original in records([path], KEY):
        record = {name: value for name, value in original.items() if name != "mac"}
        record["previous"] = previous
        previous = hashlib.sha256(canonical(record)).hexdigest()
        lines.append(canonical(record | {"mac": previous}) + b"\n")
    return b"".join(lines)


def with_line_of_another_log(path: Path) -> bytes:
    """Replaces the last line by that of another log with the same secret."""
    other = write_log(path.with_name("other"), "wxyz")
    return b"".join(
        [*path.read_bytes().splitlines(True)[:-1], other.read_bytes().splitlines(True)[-1]]
    )


@pytest.mark.parametrize(
    ("forge", "line"),
    [
        (lambda path: rechained(path, b"guess"), 1),
        (lambda path: rechained(path, b"guess", after=2), 3),
        (lambda path: rechained(path, b"", after=4), 5),
        (
            lambda path: rechained(path, next(records([path], KEY))["secret_id"].encode(), after=4),
            5,
        ),
        (with_plain_hashes, 1),
        (with_line_of_another_log, 5),
        (lambda path: path.read_bytes().replace(b'"format":4', b'"format":1'), 1),
    ],
)
def test_without_the_key_no_line_can_be_forged_and_none_chained_again(
    path: Path, forge: Callable[[Path], bytes], line: int
) -> None:
    path.write_bytes(forge(path))
    assert first_invalid_line(path) == line


@pytest.fixture
def series(tmp_path: Path) -> list[Path]:
    """Three files of one chain, by two rotations, with two decisions each."""
    end, paths = ChainEnd(), []
    for name in ("audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"):
        paths.append(write_log(tmp_path / name, "ab", end))
        end = end_of(paths)
    return paths


def test_a_rotated_series_is_one_chain_whatever_the_order_of_its_paths(series: list[Path]) -> None:
    ordered = list(records(series, KEY))
    assert [record["sequence"] for record in ordered] == list(range(9))
    assert list(records(reversed(series), KEY)) == ordered


def without_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:-1]))


@pytest.mark.parametrize(
    ("attack", "line"),
    [
        (lambda files: files[0].unlink(), 1),
        (lambda files: files[1].unlink(), 1),
        (lambda files: without_last_line(files[0]), 1),
        (lambda files: without_last_line(files[1]), 1),
        (lambda files: files[1].write_bytes(files[0].read_bytes()), 1),
        (lambda files: write_log(files[0].with_name("new"), "a"), 1),
        (lambda files: write_log(files[1], "ab", ChainEnd(3, "0" * 64)), 1),
        (lambda files: files[2].write_bytes(files[2].read_bytes()[:-5]), 3),
        (lambda files: files[1].write_bytes(b'{"format":2'), 1),
    ],
    ids=[
        "missing first", "missing between", "first one shortened", "one between shortened",
        "file repeated", "another chain", "replaced by another chain", "end cut", "torn header",
    ],
)  # fmt: skip
def test_missing_shortened_and_foreign_files_of_a_series_are_detected(
    series: list[Path], attack: Callable[[list[Path]], object], line: int
) -> None:
    attack(series)
    with pytest.raises(ChainError, match=f"audit.jsonl.*: line {line}: |new: line {line}: "):
        list(records(series[0].parent.iterdir(), KEY))


def test_archived_files_are_named_by_the_line_that_the_others_follow(series: list[Path]) -> None:
    first = list(records(series[:1], KEY))
    assert len(list(records(series[1:], KEY, first[-1]["mac"]))) == 6
    for wrong in (first[0]["mac"], "a" * 64):
        with pytest.raises(ChainError):
            list(records(series[1:], KEY, wrong))


def encoded_lines(*records: tuple[dict[str, object], ChainEnd]) -> bytes:
    """Returns lines that the service would never write, with valid `mac`s."""
    return b"".join(chained({"time": ""} | record, end, KEY)[0] for record, end in records)


HEADER = {"kind": "header", "format": 4}
DECISION = {"kind": "decision"}
AFTER_HEADER = chained({"time": ""} | HEADER, ChainEnd(), KEY)[1]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (encoded_lines((HEADER | {"format": 3}, ChainEnd())), 1),
        (encoded_lines((DECISION, ChainEnd())), 1),
        (encoded_lines((HEADER, ChainEnd(0, "a" * 64))), 1),
        (encoded_lines((HEADER, ChainEnd()), (HEADER, AFTER_HEADER)), 2),
        (encoded_lines((HEADER, ChainEnd()), (DECISION, ChainEnd(2, AFTER_HEADER.mac))), 2),
        (encoded_lines((HEADER, ChainEnd()), (DECISION, ChainEnd(1, "a" * 64))), 2),
        (encoded_lines((HEADER, ChainEnd()), ({"kind": "note"}, AFTER_HEADER)), 2),
    ],
)
def test_authentic_lines_of_another_format_or_in_a_wrong_chain_are_detected(
    path: Path, content: bytes, line: int
) -> None:
    path.write_bytes(content)
    assert first_invalid_line(path) == line
