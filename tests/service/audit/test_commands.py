"""`eulerlora audit verify`: its output for valid and for modified logs."""

import asyncio
from pathlib import Path

import pytest

from service.audit.log import AuditLog
from tests.program import refusal, run
from tests.service.audit_entries import SECRET, audit_entry, verified


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of three decisions on the images `one`, `two` and `one`."""
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, SECRET) as log:
        for name, image in (("r1", b"one"), ("r2", b"two"), ("r3", b"one")):
            asyncio.run(log.record(audit_entry(name, image)))
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The image `one` as a file."""
    file = tmp_path / "one.png"
    file.write_bytes(b"one")
    return file


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    return file


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EULERLORA_AUDIT_SECRET", SECRET.decode())


def test_a_valid_log_is_summarised_with_its_last_line(path: Path) -> None:
    first, *_, last = verified(path)
    for argument in (path, path.parent):
        done = run("audit", "verify", argument)
        assert (done.status, done.err) == (0, "")
        assert "1 files, 4 lines, 3 decisions, 0 repairs" in done.out
        assert f"from {first['time']} to {last['time']}" in done.out
        assert f"last {last['mac']}\n" in done.out


def test_an_invalid_line_is_reported_with_status_1(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"request_id":"r2"', b'"request_id":"rx"'))
    assert f"{path}: line 3: " in refusal("audit", "verify", path)


def test_a_truncated_log_is_detected_with_an_expected_line(path: Path) -> None:
    *_, before_last, last = (record["mac"] for record in verified(path))
    for noted, since in ((last, 0), (before_last, 1)):
        done = run("audit", "verify", path, "--expect-last", noted)
        assert (done.status, done.out.splitlines()[-1]) == (
            0,
            f"{since} lines since the expected one",
        )
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert run("audit", "verify", path).status == 0
    assert last in refusal("audit", "verify", path, "--expect-last", last)


def test_a_later_file_is_accepted_with_the_last_line_of_archived_ones(
    path: Path, tmp_path: Path
) -> None:
    archived = tmp_path / "archived"
    with AuditLog(path, SECRET) as log:
        path.rename(archived)
        asyncio.run(log.record(audit_entry("r4", b"two")))
    assert "2 files, 6 lines" in run("audit", "verify", path, archived).out
    assert f"{path}: line 1: " in refusal("audit", "verify", path)
    last = verified(archived)[-1]["mac"]
    assert "1 files, 2 lines" in run("audit", "verify", path, "--after", last).out


def test_the_decisions_on_an_image_are_shown(path: Path, image: Path) -> None:
    done = run("audit", "verify", path, "--image", image)
    assert done.status == 0
    shown = [line for line in done.out.splitlines() if line.startswith("sequence=")]
    assert ["request_id=r1" in shown[0], "request_id=r3" in shown[1], len(shown)] == [True, True, 2]


def test_a_secret_file_replaces_the_environment(path: Path, secret: Path) -> None:
    secret.write_bytes(b"x" * 32)
    assert f"{path}: line 1: " in refusal("audit", "verify", path, "--secret-file", secret)


@pytest.mark.parametrize("content", [b"", b"short\n"])
def test_a_missing_or_short_secret_is_refused(
    path: Path, secret: Path, monkeypatch, content: bytes
) -> None:
    monkeypatch.delenv("EULERLORA_AUDIT_SECRET")
    secret.write_bytes(content)
    for options in (("--secret-file", secret), ()):
        assert "at least 32 bytes" in refusal("audit", "verify", path, *options)


def test_wrong_usage_is_status_2(tmp_path: Path) -> None:
    for arguments in ((), (tmp_path / "nowhere",)):
        assert run("audit", "verify", *arguments).status == 2


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys.jsonl").write_text("{}\n")
    assert str(tmp_path) in refusal("audit", "verify", tmp_path)
