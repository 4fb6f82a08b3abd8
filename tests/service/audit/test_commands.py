"""`eulerlora audit verify`: its output for valid and for modified logs."""

import asyncio
from pathlib import Path

import pytest

from service.audit.file import records
from service.audit.log import AuditLog
from tests.program import run
from tests.service.audit_entries import SECRET, audit_entry


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


def test_a_valid_log_is_summarised_with_its_last_hash(path: Path) -> None:
    done = run("audit", "verify", path)
    first, *_, last = records(path)
    assert (done.status, done.err) == (0, "")
    assert "4 lines, 3 decisions, 0 repairs" in done.out
    assert f"from {first['time']} to {last['time']}" in done.out
    assert done.out.endswith(f"last {last['hash']}\n")


def test_an_invalid_line_is_reported_with_status_1(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"request_id":"r2"', b'"request_id":"rx"'))
    done = run("audit", "verify", path)
    expected = f"eulerlora: {path}: line 3: the hash does not match the line\n"
    assert (done.status, done.err) == (1, expected)


def test_a_truncated_log_is_detected_with_an_expected_hash(path: Path) -> None:
    *_, before_last, last = (record["hash"] for record in records(path))
    for noted, since in ((last, 0), (before_last, 1)):
        done = run("audit", "verify", path, "--expect-last", noted)
        assert (done.status, done.out.splitlines()[-1]) == (
            0,
            f"{since} lines since the expected one",
        )
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert run("audit", "verify", path).status == 0
    done = run("audit", "verify", path, "--expect-last", last)
    assert (done.status, "the end of the log was removed" in done.err) == (1, True)


def test_the_decisions_on_an_image_are_shown(path: Path, image: Path, secret: Path) -> None:
    done = run("audit", "verify", path, "--image", image, "--secret-file", secret)
    assert done.status == 0
    shown = [line for line in done.out.splitlines() if line.startswith("sequence=")]
    assert ["request_id=r1" in shown[0], "request_id=r3" in shown[1], len(shown)] == [True, True, 2]


def test_the_secret_can_come_from_the_environment(path: Path, image: Path, monkeypatch) -> None:
    monkeypatch.setenv("EULERLORA_AUDIT_SECRET", SECRET.decode())
    done = run("audit", "verify", path, "--image", image)
    assert (done.status, done.out.count("sequence=")) == (0, 2)


def test_another_secret_is_an_error(path: Path, image: Path, secret: Path) -> None:
    secret.write_bytes(b"x" * 32)
    done = run("audit", "verify", path, "--image", image, "--secret-file", secret)
    assert (done.status, "another secret" in done.err) == (1, True)


@pytest.mark.parametrize("content", [b"", b"short\n"])
def test_a_missing_or_short_secret_is_refused(
    path: Path, image: Path, secret: Path, monkeypatch, content: bytes
) -> None:
    monkeypatch.delenv("EULERLORA_AUDIT_SECRET", raising=False)
    secret.write_bytes(content)
    for options in (("--secret-file", secret), ()):
        done = run("audit", "verify", path, "--image", image, *options)
        assert (done.status, "at least 32 bytes" in done.err) == (1, True)


def test_wrong_usage_is_status_2(path: Path, secret: Path, tmp_path: Path) -> None:
    assert run("audit", "verify", path, "--secret-file", secret).status == 2
    assert run("audit", "verify", tmp_path / "nowhere").status == 2
