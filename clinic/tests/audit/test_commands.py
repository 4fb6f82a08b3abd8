"""`eulerlora audit verify` and `due`: their outputs for valid and for modified logs."""

import asyncio
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from clinic.tests.audit_entries import SECRET, audit_entry, verified
from eulerlora_clinic.audit.file import AuditFile, ChainEnd, Record
from eulerlora_clinic.audit.log import AuditLog, chain_key
from tests.program import refusal, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of three answers on the images `one`, `two` and `one`."""
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
    (path.parent / "empty.txt").touch()
    (path.parent / "folder").mkdir()
    for argument in (path, path.parent):
        done = run("audit", "verify", argument)
        assert (done.status, done.err) == (0, "")
        assert "files: 1, lines: 4, answers: 3, decisions: 0, repairs after a crash: 0" in done.out
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
            f"lines since the expected one: {since}",
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
    assert "files: 2, lines: 6" in run("audit", "verify", path, archived).out
    assert f"{path}: line 1: " in refusal("audit", "verify", path)
    last = verified(archived)[-1]["mac"]
    assert "files: 1, lines: 2" in run("audit", "verify", path, "--after", last).out


def decided(path: Path, answer: Record, reason: str) -> None:
    """Adds the record of a decision on an answer."""
    record = {
        "kind": "decision", "disposition": "urgent", "decision": "routine", "reason": reason,
        "diagnosis": None, **{name: answer[name] for name in ("request_id", "client", "image")},
        "item_id": None, "answer": answer["mac"],
    }  # fmt: skip
    with AuditLog(path, SECRET) as log:
        asyncio.run(log.record(record))


def test_answers_and_decisions_on_an_image_are_shown(path: Path, image: Path) -> None:
    _, first, second, _ = verified(path)
    decided(path, first, "why\x1b[2J")
    decided(path, second, "other")
    done = run("audit", "verify", path, "--image", image)
    assert done.status == 0
    assert "answers: 3, decisions: 2" in done.out
    shown = [line for line in done.out.splitlines() if line.startswith("sequence=")]
    ids = [word for line in shown for word in line.split() if word.startswith("request_id=")]
    assert ids == ["request_id=r1", "request_id=r3", "request_id=r1"]
    assert shown[2].endswith(r"decision=routine  reason=why\x1b[2J  diagnosis=None")
    decisions = run("audit", "verify", path, "--decisions").out
    assert [line.split("request_id=")[1][:2] for line in decisions.splitlines()[:2]] == ["r1", "r2"]


def test_files_are_due_when_their_last_line_is_older_than_the_retention(
    path: Path, monkeypatch
) -> None:
    older = path.with_name("older.jsonl")
    path.rename(older)
    after = ChainEnd(lines=4, mac=verified(older)[-1]["mac"])
    monkeypatch.setattr("eulerlora_clinic.audit.file._now", lambda: "2026-05-31T10:00:00+00:00")
    AuditFile(path, chain_key(SECRET), after, retention_months=240).close()
    done = run("audit", "due", path.parent)
    first, second = done.out.splitlines()
    assert first.startswith(f"{older}: ") and first.endswith("lines: 4, kept")
    assert second == f"{path}: 2026-05-31 to 2026-05-31, lines: 1, due 2046-05-31"
    after_mac = verified(older, path)[-1]["mac"]
    monkeypatch.setattr("eulerlora_clinic.audit.commands.datetime", Clock)
    done = run("audit", "due", path, older, "--months", "1")
    assert done.out.splitlines()[1].endswith("lines: 1, DUE since 2026-06-30")
    assert done.out.splitlines()[2].endswith(f"--after {after_mac}")


class Clock(datetime):
    """A clock of the year 2100."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Clock":
        return cls(2100, 1, 1, tzinfo=tz)


@pytest.mark.parametrize(
    ("months", "due"),
    [(1, "2127-09-30"), (5, "2128-01-31"), (6, "2128-02-29"), (12, "2128-08-31")],
)
def test_months_end_on_the_last_day_of_a_shorter_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, months: int, due: str
) -> None:
    path = tmp_path / "audit.jsonl"
    monkeypatch.setattr("eulerlora_clinic.audit.file._now", lambda: "2127-08-31T10:00:00+00:00")
    AuditFile(path, chain_key(SECRET), ChainEnd()).close()
    done = run("audit", "due", path, "--months", str(months))
    assert done.out.endswith(f"due {due}\n")


def test_a_secret_file_replaces_the_environment(path: Path, secret: Path) -> None:
    secret.write_bytes(b"x" * 32)
    assert f"{path}: line 1: " in refusal("audit", "verify", path, "--audit-secret", secret)


def test_only_line_ends_after_a_secret_do_not_belong_to_it(path: Path, secret: Path) -> None:
    secret.write_bytes(SECRET + b"\r\n")
    assert run("audit", "verify", path, "--audit-secret", secret).out
    for other in (b"\n" + SECRET, SECRET + b" \n"):
        secret.write_bytes(other)
        assert f"{path}: line 1: " in refusal("audit", "verify", path, "--audit-secret", secret)


@pytest.mark.parametrize("content", [b"", b"short\n"])
def test_a_missing_or_short_secret_is_refused(
    path: Path, secret: Path, monkeypatch, content: bytes
) -> None:
    monkeypatch.delenv("EULERLORA_AUDIT_SECRET")
    secret.write_bytes(content)
    assert "at least 32 bytes" in refusal("audit", "verify", path, "--audit-secret", secret)
    assert "--audit-secret FILE or EULERLORA_AUDIT_SECRET: " in refusal("audit", "verify", path)
    assert "--audit-secret FILE or EULERLORA_AUDIT_SECRET: " in run("serve", "--audit", path).err


def test_wrong_usage_is_status_2(tmp_path: Path) -> None:
    for arguments in ((), (tmp_path / "nowhere",)):
        assert run("audit", "verify", *arguments).status == 2


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys.jsonl").write_text("{}\n")
    assert str(tmp_path) in refusal("audit", "verify", tmp_path)
