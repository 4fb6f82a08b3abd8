"""A decision is on the disk before its answer, in order, or there is no answer."""

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eulerlora.errors import SettingsError
from eulerlora_client.contract.problems import AuditUnavailable
from eulerlora_client.policy import policy
from service.audit import file as audit_file
from service.audit.log import AuditLog, AuditSettings
from service.audit.secret import image_hash
from service.audit.verification import records
from tests.full_disk import file_size_limit
from tests.service.audit_decisions import SECRET, decision


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    with opened(path) as log:
        yield log


def opened(path: Path) -> AuditLog:
    return AuditLog(AuditSettings(file=path), SECRET)


def record(log: AuditLog, *names: str, **changes: Any) -> None:
    """Records decisions at the same time; raises what the first failure raised."""

    async def all_of_them() -> None:
        await asyncio.gather(*(log.record(decision(name, **changes)) for name in names))

    asyncio.run(all_of_them())


def ids(path: Path) -> list[str]:
    return [each["request_id"] for each in records(path) if each["kind"] == "decision"]


def test_a_line_holds_the_answer_exactly_and_nothing_of_the_picture(log, path: Path) -> None:
    record(log, "r1", image=b"bytes of the file")
    written = json.loads(path.read_text().splitlines()[1])
    answer = decision("r1").prediction.model_dump()
    left_out = {"trajectories", "expected_entropy", "ood_threshold", "trajectory_probabilities"} | {
        "standard_error"
    }
    assert written.pop("warnings") == 1
    assert written.pop("triage") is None
    assert written.pop("samples_asked") is None
    assert written.pop("image") == image_hash(SECRET, b"bytes of the file")
    assert written.pop("client") == "clinic"
    for name in ("hash", "previous", "sequence", "kind"):
        del written[name]
    assert written.pop("time").endswith("+00:00")
    assert written == {
        name: value for name, value in answer.items() if name != "warnings" and name not in left_out
    }


def test_a_line_of_a_triage_holds_its_disposition_and_the_policy_that_decided(
    log, path: Path
) -> None:
    reasons = (policy.Reason.BLURRED, policy.Reason.MALIGNANT_GROUP)
    record(log, "r1", triage=policy.Decision(policy.Disposition.URGENT, reasons, 3, "sha256:12"))
    assert json.loads(path.read_text().splitlines()[1])["triage"] == {
        "disposition": "urgent",
        "reasons": ["blurred", "malignant_group"],
        "policy_version": 3,
        "policy_hash": "sha256:12",
    }


def test_a_decision_is_in_the_file_when_recording_returns(log, path: Path) -> None:
    for name in ("r1", "r2"):
        record(log, name)
        assert ids(path)[-1] == name


def test_decisions_at_the_same_time_keep_their_order(log, path: Path) -> None:
    names = [f"r{number}" for number in range(200)]
    record(log, *names)
    assert ids(path) == names


def test_decisions_that_gather_while_the_disk_is_busy_are_written_together(
    path: Path, monkeypatch
) -> None:
    busy, free, synced = threading.Event(), threading.Event(), []
    sync = audit_file.os.fdatasync

    def slow(descriptor: int) -> None:
        synced.append(descriptor)
        busy.set()
        assert free.wait(30)
        sync(descriptor)

    async def many(log: AuditLog) -> None:
        first = asyncio.ensure_future(log.record(decision("first")))
        await asyncio.to_thread(busy.wait, 30)
        others = [asyncio.ensure_future(log.record(decision(f"r{n}"))) for n in range(50)]
        await asyncio.sleep(0)
        assert not first.done()  # the event loop runs, and the answer waits for the disk
        free.set()
        await asyncio.gather(first, *others)

    with opened(path) as log:
        monkeypatch.setattr(audit_file.os, "fdatasync", slow)
        asyncio.run(many(log))
        monkeypatch.undo()
    assert ids(path) == ["first", *(f"r{n}" for n in range(50))]
    assert len(synced) == 2


def test_a_decision_whose_client_left_before_its_turn_is_not_recorded(
    path: Path, monkeypatch
) -> None:
    busy, free = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        busy.set()
        assert free.wait(30)

    async def one_leaves(log: AuditLog) -> None:
        first = asyncio.ensure_future(log.record(decision("stays")))
        await asyncio.to_thread(busy.wait, 30)
        leaving = asyncio.ensure_future(log.record(decision("leaves")))
        last = asyncio.ensure_future(log.record(decision("stays too")))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(first, last)

    with opened(path) as log:
        monkeypatch.setattr(audit_file.os, "fdatasync", slow)
        asyncio.run(one_leaves(log))
        monkeypatch.undo()
    assert ids(path) == ["stays", "stays too"]


def test_the_chain_goes_on_after_a_restart(path: Path) -> None:
    for name in ("r1", "r2", "r3"):
        with opened(path) as log:
            record(log, name)
    assert ids(path) == ["r1", "r2", "r3"]


def test_without_waiting_for_the_disk_the_lines_are_the_same(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(audit_file.os, "fdatasync", lambda _: pytest.fail("waited for the disk"))
    with AuditLog(AuditSettings(file=path, sync=False), SECRET) as log:
        record(log, "r1")
    assert ids(path) == ["r1"]


@contextmanager
def full(path: Path) -> Iterator[None]:
    """The disk takes a part of the next line and no more."""
    with file_size_limit(path.stat().st_size + 20):
        yield


@contextmanager
def appended(path: Path) -> Iterator[None]:
    """Somebody else has written a line, for a while."""
    size = path.stat().st_size
    with path.open("a") as file:
        file.write("{}\n")
    yield
    with path.open("r+") as file:
        file.truncate(size)


@contextmanager
def replaced(path: Path) -> Iterator[None]:
    """Another file has the place for a while, though one that could be continued."""
    away = path.with_name("away")
    path.rename(away)
    shutil.copy(away, path)
    yield
    away.rename(path)


@pytest.mark.parametrize("obstacle", [full, appended, replaced])
def test_what_cannot_be_recorded_is_not_answered_and_the_next_is_tried_again(
    log, path: Path, caplog, obstacle: Callable[[Path], Any]
) -> None:
    record(log, "before")
    with obstacle(path):
        for name in ("refused", "refused too"):
            with pytest.raises(AuditUnavailable) as caught:
                record(log, name)
            assert (caught.value.status, caught.value.code) == (503, "audit_unavailable")
            assert str(path) not in caught.value.detail
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    record(log, "after")
    assert ids(path) == ["before", "after"]


def test_after_the_file_was_deleted_nothing_is_answered(log, path: Path) -> None:
    record(log, "before")
    path.unlink()
    for _ in range(2):
        with pytest.raises(AuditUnavailable):
            record(log, "after")
    assert not path.exists()


def test_a_failed_sync_is_a_failure_and_leaves_no_line(log, path: Path, monkeypatch) -> None:
    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(audit_file.os, "fdatasync", broken)
        with pytest.raises(AuditUnavailable):
            record(log, "refused")
    record(log, "after")
    assert ids(path) == ["after"]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_file_that_was_moved_away_is_followed_by_one_that_takes_up_the_chain(
    log, path: Path, recreated: bool
) -> None:
    record(log, "before")
    older = path.with_name("older.jsonl")
    path.rename(older)
    if recreated:
        path.touch()
    record(log, "after")
    record(log, "and after")
    assert (ids(older), ids(path)) == (["before"], ["after", "and after"])
    last, first = list(records(older))[-1], next(records(path))
    assert (first["previous"], first["sequence"]) == (last["hash"], last["sequence"] + 1)


def test_a_disk_full_at_the_change_of_files_is_tried_again(log, path: Path) -> None:
    record(log, "before")
    path.rename(path.with_name("older.jsonl"))
    with file_size_limit(50), pytest.raises(AuditUnavailable):
        record(log, "refused")
    record(log, "after")
    assert ids(path) == ["after"]


def test_a_second_holder_is_refused(log, path: Path) -> None:
    with pytest.raises(SettingsError, match="another process"):
        opened(path)
    record(log, "r1")
    assert ids(path) == ["r1"]
