"""Every entry is on the disk before its response, in order; failures give no response."""

import asyncio
import hmac
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clinic.tests.audit_entries import SECRET, audit_entry, verified
from eulerlora_clinic.audit.file import AuditFile
from eulerlora_clinic.audit.log import AuditLog
from eulerlora_clinic.policy import policy
from tests.full_disk import file_size_limit
from tests.problems import raises_problem

TIMEOUT_S = 120


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    with open_log(path) as log:
        yield log


def open_log(path: Path) -> AuditLog:
    return AuditLog(path, SECRET)


def record(log: AuditLog, *names: str, **changes: Any) -> None:
    """Records entries concurrently; raises the first failure."""

    async def record_all() -> None:
        await asyncio.gather(*(log.record(audit_entry(name, **changes)) for name in names))

    asyncio.run(record_all())


def ids(*paths: Path) -> list[str]:
    return [record["request_id"] for record in verified(*paths) if record["kind"] == "answer"]


def test_a_line_contains_the_exact_prediction_and_no_image_content(log, path: Path) -> None:
    entry = audit_entry("r1", image=b"bytes of the file")
    asyncio.run(log.record(replace(entry, samples_asked="auto", lesion="one")))
    written = json.loads(path.read_text().splitlines()[1])
    prediction = audit_entry("r1").prediction.model_dump()
    omitted = {"trajectories", "expected_entropy", "ood_threshold", "trajectory_probabilities"} | {
        "ood_scores", "prediction_set", "index", "trajectory_views", "variance", "type",
    }  # fmt: skip
    assert written.pop("warnings") == 1
    assert written.pop("triage") is None
    assert (written.pop("samples_asked"), written.pop("lesion")) == ("auto", "one")
    key = hmac.digest(SECRET, b"eulerlora audit image", "sha256")
    assert written.pop("image") == hmac.digest(key, b"bytes of the file", "sha256").hex()
    assert written.pop("client") == "clinic"
    for name in ("mac", "previous", "sequence", "kind"):
        del written[name]
    assert written.pop("time").endswith("+00:00")
    assert written == {
        name: value for name, value in prediction.items() if name not in omitted | {"warnings"}
    }


def test_every_file_states_the_retention(path: Path) -> None:
    older = path.with_name("older.jsonl")
    with AuditLog(path, SECRET, retention_months=6) as log:
        record(log, "r1")
        path.rename(older)
        record(log, "r2")
    headers = [line for line in verified(older, path) if line["kind"] == "header"]
    assert [header["retention_months"] for header in headers] == [6, 6]


def test_a_line_of_a_triage_contains_disposition_and_policy(log, path: Path) -> None:
    reasons = (policy.Reason.BLURRED, policy.Reason.TARGET_CLASSES)
    record(log, "r1", triage=policy.Decision(policy.Disposition.URGENT, reasons, 3, "sha256:12"))
    assert json.loads(path.read_text().splitlines()[1])["triage"] == {
        "disposition": "urgent",
        "reasons": ["blurred", "target_classes"],
        "policy_version": 3,
        "policy_hash": "sha256:12",
    }


def test_entries_that_arrive_during_a_write_are_written_together(path: Path, monkeypatch) -> None:
    busy, free, synced = threading.Event(), threading.Event(), []
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        synced.append(descriptor)
        busy.set()
        assert free.wait(TIMEOUT_S)
        sync(descriptor)

    async def many(log: AuditLog) -> None:
        first = asyncio.ensure_future(log.record(audit_entry("first")))
        await asyncio.to_thread(busy.wait, TIMEOUT_S)
        others = [asyncio.ensure_future(log.record(audit_entry(f"r{n}"))) for n in range(50)]
        await asyncio.sleep(0)
        assert not first.done()  # it waits for the disk without blocking the event loop
        free.set()
        await asyncio.gather(first, *others)

    with open_log(path) as log:
        monkeypatch.setattr(os, "fdatasync", slow)
        asyncio.run(many(log))
        monkeypatch.undo()
    assert ids(path) == ["first", *(f"r{n}" for n in range(50))]
    assert len(synced) == 2


def test_an_entry_cancelled_before_its_write_is_not_recorded(path: Path, monkeypatch) -> None:
    busy, free = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        busy.set()
        assert free.wait(TIMEOUT_S)

    async def one_leaves(log: AuditLog) -> None:
        first = asyncio.ensure_future(log.record(audit_entry("stays")))
        await asyncio.to_thread(busy.wait, TIMEOUT_S)
        leaving = asyncio.ensure_future(log.record(audit_entry("leaves")))
        last = asyncio.ensure_future(log.record(audit_entry("stays too")))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(first, last)

    with open_log(path) as log:
        monkeypatch.setattr(os, "fdatasync", slow)
        asyncio.run(one_leaves(log))
        monkeypatch.undo()
    assert ids(path) == ["stays", "stays too"]


@contextmanager
def full(path: Path) -> Iterator[None]:
    """The disk has space for a part of the next line."""
    with file_size_limit(path.stat().st_size + 20):
        yield


@contextmanager
def appended(path: Path) -> Iterator[None]:
    """Another program has appended a line, which it removes on exit."""
    size = path.stat().st_size
    with path.open("a") as file:
        file.write("{}\n")
    yield
    with path.open("r+") as file:
        file.truncate(size)


@contextmanager
def replaced(path: Path) -> Iterator[None]:
    """A copy replaces the file until exit."""
    original, other = path.with_name("original"), path.with_name("other")
    os.link(path, original)
    shutil.copy(path, other)
    other.replace(path)  # at no time the path is missing, as after a rotation
    yield
    original.replace(path)


@pytest.mark.parametrize("obstacle", [full, appended, replaced])
def test_a_failed_write_refuses_the_request_and_the_next_one_is_tried_again(
    log, path: Path, caplog, obstacle: Callable[[Path], Any]
) -> None:
    caplog.set_level("INFO")
    record(log, "before")
    with obstacle(path):
        for name in ("refused", "refused too"):
            with raises_problem("audit_unavailable") as caught:
                record(log, name)
            assert caught.value.status == 503
            assert str(path) not in caught.value.detail
            assert not log.is_writable
    assert [one.levelname for one in caplog.records] == ["ERROR"]
    assert str(path) in caplog.text
    for name in ("after", "and after"):
        record(log, name)
        assert log.is_writable
    assert [one.levelname for one in caplog.records] == ["ERROR", "INFO"]
    assert ids(path) == ["before", "after", "and after"]


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("obstacle", [full, appended, replaced])
def test_without_requests_a_log_that_cannot_be_written_is_noticed_and_recovers(
    path: Path, monkeypatch, obstacle: Callable[[Path], Any], is_asked: bool
) -> None:
    tried = threading.Semaphore(0)
    check = AuditFile.check_writable

    def counted(file: AuditFile) -> None:
        try:
            check(file)
        finally:
            tried.release()

    monkeypatch.setattr(AuditFile, "check_writable", counted)
    with AuditLog(path, SECRET, trial_interval_s=0.01) as log:
        record(log, "before")
        with obstacle(path):
            if is_asked:
                with raises_problem("audit_unavailable"):
                    record(log, "refused")
            while tried.acquire(blocking=False):
                pass  # trials before the obstacle
            for _ in range(2):
                assert tried.acquire(timeout=TIMEOUT_S)
            assert not log.is_writable
        ends_at = time.monotonic() + TIMEOUT_S
        while not log.is_writable and time.monotonic() < ends_at:
            time.sleep(0.005)
        assert log.is_writable
        record(log, "after")
    assert ids(path) == ["before", "after"]


def test_a_trial_changes_nothing_for_readers_of_the_log(path: Path, monkeypatch) -> None:
    seen: list[bytes] = []
    sync = os.fdatasync

    def observed(descriptor: int) -> None:
        seen.append(path.read_bytes())
        sync(descriptor)

    with AuditLog(path, SECRET) as log:
        record(log, "r1")
    with AuditLog(path, SECRET, trial_interval_s=0.01) as log:
        monkeypatch.setattr(os, "fdatasync", observed)
        ends_at = time.monotonic() + TIMEOUT_S
        while len(seen) < 2 and time.monotonic() < ends_at:
            time.sleep(0.005)
        monkeypatch.undo()
    assert set(seen) == {path.read_bytes()}
    assert ids(path) == ["r1"]


def test_a_defect_of_one_record_does_not_count_as_a_failure_of_the_log(log, path, caplog) -> None:
    with raises_problem("audit_unavailable"):
        record(log, "x" * (1 << 20))
    assert log.is_writable
    assert "cannot write a record" in caplog.text
    record(log, "after")
    assert ids(path) == ["after"]


def test_a_deleted_file_refuses_every_request(log, path: Path) -> None:
    record(log, "before")
    path.unlink()
    for _ in range(2):
        with raises_problem("audit_unavailable"):
            record(log, "after")
    assert not path.exists()


@pytest.mark.parametrize("calls", [("fdatasync",), ("fdatasync", "ftruncate")])
def test_a_failed_sync_leaves_no_line(log, path: Path, monkeypatch, calls: Sequence[str]) -> None:
    def broken(*_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        for call in calls:
            patch.setattr(os, call, broken)
        with raises_problem("audit_unavailable"):
            record(log, "refused")
    record(log, "after")
    assert ids(path) == ["after"]


@pytest.mark.parametrize("recreated", [False, True])
def test_after_a_rotation_a_new_file_continues_the_chain(log, path: Path, recreated: bool) -> None:
    record(log, "before")
    older = path.with_name("older.jsonl")
    path.rename(older)
    if recreated:
        path.touch()
    record(log, "after")
    record(log, "and after")
    assert ids(older) == ["before"]
    assert ids(path, older) == ["before", "after", "and after"]


def test_a_full_disk_during_a_rotation_is_tried_again(log, path: Path) -> None:
    record(log, "before")
    path.rename(path.with_name("older.jsonl"))
    with file_size_limit(50), raises_problem("audit_unavailable"):
        record(log, "refused")
    record(log, "after")
    assert ids(path, path.with_name("older.jsonl")) == ["before", "after"]
