"""Audit files that can be continued, are repaired, or are refused."""

import errno
import hashlib
import hmac
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eulerlora_clinic.audit.file import AuditFile, ChainEnd, newest_records, records
from eulerlora_contract.errors import SettingsError, StorageError
from tests.full_disk import file_size_limit

KEY = b"key"
OLD_HEADER = (
    b'{"format":1,"hash":"6f2f0a3f","kind":"header","previous":"0","secret_id":"id","sequence":0,'
    b'"time":"2026-11-01T00:00:00.000000+00:00"}\n'
)
"""Of a chain of plain hashes."""
LOCKING_PROCESS = """
import sys
from pathlib import Path
from eulerlora_clinic.audit.file import ChainEnd
from eulerlora_clinic.audit.file import AuditFile
file = AuditFile(Path(sys.argv[1]), b"key", after=ChainEnd())
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def opened(path: Path, key: bytes = KEY) -> AuditFile:
    return AuditFile(path, key, after=ChainEnd())


def write(path: Path, *names: str) -> None:
    file = opened(path)
    file.append([{"kind": "decision", "name": name} for name in names])
    file.close()


def kinds(path: Path) -> list[str]:
    return [record["kind"] for record in records([path], KEY)]


def test_a_new_file_is_private_and_starts_with_a_header(path: Path) -> None:
    opened(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    (header,) = records([path], KEY)
    assert (header["kind"], header["format"], header["secret_id"]) == (
        "header", 4, hmac.digest(KEY, b"identifier", "sha256").hex()[:16],
    )  # fmt: skip
    assert header["retention_months"] == 0


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_records_are_found_from_the_last_one_on_across_blocks_and_files(
    path: Path, monkeypatch, block_bytes: int
) -> None:
    monkeypatch.setattr("eulerlora_clinic.audit.file._BLOCK_BYTES", block_bytes)
    write(path, "a", "b", "wanted 1", "c", "wanted 2", "changed wanted")
    older = path.with_name("older")
    path.rename(older)
    older.write_bytes(older.read_bytes().replace(b"changed wanted", b"changes wanted"))
    write(path, "wanted 3", "d")
    with path.open("ab") as file:
        file.write(b'{"name":"torn wanted')
    opened(path.with_name("another key"), b"other").close()
    found = newest_records(path, KEY, b"wanted")
    assert [record["name"] for record in found] == ["wanted 3", "wanted 2", "wanted 1"]
    sequences = [record["sequence"] for record in newest_records(path, KEY, b"\n")]
    assert sequences == [2, 1, 0, 5, 4, 3, 2, 1, 0]  # all but the changed one


def test_a_file_system_without_locks_is_refused(path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(SettingsError, match="file system with locks"):
        opened(path)


def test_a_trial_removes_what_a_failed_write_left(path: Path, monkeypatch) -> None:
    def broken(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = opened(path)
    with monkeypatch.context() as patch:
        for name in ("fdatasync", "ftruncate"):
            patch.setattr(os, name, broken)
        with pytest.raises(StorageError):
            file.append([{"kind": "decision", "name": "a"}])
    file.check_writable()
    file.close()
    assert kinds(path) == ["header"]


@pytest.mark.parametrize("size", [1, 40, -1])
def test_an_incomplete_line_is_removed_and_the_repair_recorded(
    path: Path, caplog, size: int
) -> None:
    write(path, "a", "b")
    *_, last = path.read_bytes().splitlines(keepends=True)
    torn = last[:size]
    path.write_bytes(path.read_bytes().removesuffix(last) + torn)
    write(path, "c")
    assert kinds(path) == ["header", "decision", "repair", "decision"]
    repair = list(records([path], KEY))[2]
    assert (repair["bytes"], repair["sha256"]) == (len(torn), hashlib.sha256(torn).hexdigest())
    assert str(path) in caplog.text


def test_a_crash_at_any_byte_of_a_write_leaves_the_lines_before_it(path: Path) -> None:
    write(path, "a", "b")
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        whole = content[:size].count(b"\n")
        torn = not content[:size].endswith(b"\n") and size > 0
        opened(path).close()
        expected = ["header", "decision", "decision"][: max(whole, 1)]
        assert kinds(path) == expected + ["repair"] * torn


@pytest.mark.parametrize(
    "content",
    [b"{}\n", OLD_HEADER, b"notes of mine\n", b"no line at all", b"\x89PNG\r\n\x1a\n\0\0"],
)
def test_another_kind_of_file_is_refused_and_not_modified(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="cannot continue this audit log") as caught:
        opened(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_a_modified_last_line_is_refused(path: Path) -> None:
    write(path, "a")
    path.write_bytes(path.read_bytes().replace(b'"name":"a"', b'"name":"b"'))
    with pytest.raises(SettingsError, match="was changed"):
        opened(path)


def test_a_log_of_another_secret_is_refused(path: Path) -> None:
    write(path, "a")
    with pytest.raises(SettingsError, match="another secret"):
        opened(path, b"other")
    write(path, "b")
    assert kinds(path) == ["header", "decision", "decision"]


def test_a_full_disk_at_start_is_reported_with_the_file(path: Path) -> None:
    with file_size_limit(20), pytest.raises(StorageError, match="disk full") as caught:
        opened(path)
    assert str(path) in str(caught.value)
    opened(path).close()


@pytest.mark.parametrize(
    "value", [pytest.param("x" * (1 << 20), id="too long"), math.nan, -math.inf]
)
def test_a_line_that_is_too_long_or_not_json_is_not_written(path: Path, value: object) -> None:
    file = opened(path)
    with pytest.raises(ValueError):
        file.append([{"kind": "decision", "value": value}])
    file.append([{"kind": "decision", "name": "y"}])
    file.close()
    assert kinds(path) == ["header", "decision"]


def test_lines_of_another_program_are_refused_before_the_first_write(path: Path) -> None:
    write(path, "a")
    file = opened(path)
    with path.open("ab") as other:
        other.write(b"{}\n")
    with pytest.raises(StorageError):
        file.append([{"kind": "decision"}])
    file.close()


def test_a_second_process_is_refused_until_the_first_ends(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKING_PROCESS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(SettingsError, match="another process"):
            opened(path)
        first.kill()
    write(path, "a")
    assert kinds(path) == ["header", "decision"]
