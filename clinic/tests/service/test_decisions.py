"""POST /decisions: a person's word, in the audit log."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from clinic.tests.audit_entries import SECRET, verified
from clinic.tests.runs import mel_policy
from clinic.tests.service.conftest import app_of
from eulerlora_clinic.audit.log import AuditLog
from eulerlora_clinic.monitoring import Promise, outcome_summary, read_logs
from eulerlora_contract.answers import Disposition
from eulerlora_contract.errors import OutcomesError
from tests.service.key_files import client as client_with
from tests.service.key_files import write_keys

JSON = {"Content-Type": "application/json"}
PNG = {"Content-Type": "image/png"}
REASON = "unchanged for years"
SECRET_TEXT = "zz-secret-zz"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def client(model, path: Path) -> Iterator[TestClient]:
    """A client of a service that records decisions."""
    with TestClient(app_of(model, policy=mel_policy(), audit=AuditLog(path, SECRET))) as client:
        yield client


def triaged(client: TestClient, png: bytes, request_id: str = "r1", **headers: str) -> str:
    """The disposition of the image in the answer with this request id."""
    sent = {**PNG, "X-Request-ID": request_id, **headers}
    disposition: str = client.post("/triage", content=png, headers=sent).json()["disposition"]
    return disposition


def decide(client: TestClient, request_id: str = "r1", **fields: object) -> Any:
    return client.post("/decisions", json={"request_id": request_id, **fields})


def other_than(disposition: str) -> str:
    return "urgent" if disposition != "urgent" else "routine"


def decisions(path: Path) -> list[dict[str, Any]]:
    return [record for record in verified(path) if record["kind"] == "decision"]


def test_a_decision_is_a_disposition_or_undo(client) -> None:
    schema = client.get("/openapi.json").json()["components"]["schemas"]["DecisionRequest"]
    decision, none = schema["properties"]["decision"]["anyOf"]
    assert (set(decision["enum"]), none) == ({*Disposition, "undo"}, {"type": "null"})


def test_equal_decisions_that_arrive_together_are_recorded_once(
    client, path: Path, png, monkeypatch: pytest.MonkeyPatch
) -> None:
    disposition, record = triaged(client, png), AuditLog.record

    async def slow(log: AuditLog, entry: Any) -> None:
        await asyncio.sleep(0.2)  # so that the other requests come while this one is recorded
        await record(log, entry)

    monkeypatch.setattr(AuditLog, "record", slow)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: decide(client, decision=disposition), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(decisions(path)) == 1


@pytest.mark.parametrize("rotates", [False, True])
def test_a_clock_that_is_set_back_hides_no_decision(
    client, path: Path, png, monkeypatch, rotates: bool
) -> None:
    days = (f"2026-11-{day}T00:00:00.000000+00:00" for day in range(28, 10, -1))
    monkeypatch.setattr("eulerlora_clinic.audit.file._now", lambda: next(days))
    suggested, older = triaged(client, png), path.with_name("older.jsonl")
    if rotates:
        path.rename(older)
    assert decide(client, decision=suggested).status_code == 200
    last = other_than(suggested)
    assert decide(client, decision=last, reason=REASON).status_code == 200
    body = decide(client, diagnosis="nv").json()
    assert (body["decision"], body["diagnosis"]) == (last, "nv")
    (logged,) = read_logs([path, older] if rotates else [path])
    assert (logged.decided.decision, logged.decided.diagnosis) == (last, "nv")


def test_the_last_decision_counts_and_every_one_is_recorded(client, path: Path, png) -> None:
    suggested = triaged(client, png)
    other = other_than(suggested)
    state = {
        "request_id": "r1", "disposition": suggested, "decision": None, "reason": None,
        "diagnosis": None,
    }  # fmt: skip
    for fields, changes in (
        ({"decision": suggested}, {"decision": suggested}),
        ({"decision": other, "reason": f" {REASON} "}, {"decision": other, "reason": REASON}),
        ({"diagnosis": "mel"}, {"diagnosis": "mel"}),
        ({"decision": "undo"}, {"decision": None, "reason": None, "diagnosis": None}),
        ({"decision": suggested, "diagnosis": "nv"}, {"decision": suggested, "diagnosis": "nv"}),
    ):
        state |= changes
        answer = decide(client, **fields)
        assert (answer.status_code, answer.json()) == (200, state)
        assert answer.headers["Cache-Control"] == "no-store"
    (answered,) = (record for record in verified(path) if record["kind"] == "answer")
    written = decisions(path)
    assert [one["decision"] for one in written] == [suggested, other, None, "undo", suggested]
    assert [one["diagnosis"] for one in written] == [None, None, "mel", None, "nv"]
    for name in ("mac", "previous", "sequence", "time"):
        del written[1][name]
    assert written[1] == {
        "kind": "decision", "client": None, "request_id": "r1", "item_id": None, "model": "tiny",
        "revision": answered["revision"], "image": answered["image"], "answer": answered["mac"],
        "disposition": suggested, "decision": other, "reason": REASON, "diagnosis": None,
    }  # fmt: skip


def test_the_same_decision_again_changes_nothing(client, path: Path, png) -> None:
    suggested = triaged(client, png)
    answers = [decide(client, decision=suggested).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(decisions(path)) == 1
    samples = client.get("/metrics").text
    assert 'eulerlora_decisions_total{kind="accept",model="tiny"} 1.0' in samples


def test_an_image_of_a_batch_is_named_by_its_index(client, path: Path, png) -> None:
    files = [("files", (name, png)) for name in "ab"]
    results = client.post("/triage/batch", files=files, headers={"X-Request-ID": "b"}).json()
    second = results["results"][1]
    answer = decide(client, "b", index=1, decision=second["disposition"]).json()
    assert (answer["index"], answer["item_id"]) == (1, "b:1")
    assert decisions(path)[0]["item_id"] == "b:1"
    for index, status in ((None, 422), (0, 200), (2, 404)):
        assert decide(client, "b", index=index, diagnosis="nv").status_code == status


def test_a_decision_belongs_to_the_last_answer_with_its_request_id(client, path, png) -> None:
    suggested = triaged(client, png)
    decide(client, decision=suggested)
    triaged(client, png)
    assert decide(client, diagnosis="nv").json()["decision"] is None


def test_an_answer_in_a_rotated_file_can_be_decided(client, path: Path, png) -> None:
    suggested = triaged(client, png)
    older = path.with_name("older.jsonl")
    path.rename(older)
    triaged(client, png, "r2")
    assert decide(client, decision=suggested).status_code == 200
    assert [one["request_id"] for one in verified(older, path) if one["kind"] == "decision"] == [
        "r1"
    ]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"request_id": "other", "diagnosis": "mel"}, 404, "unknown_request"),
        ({"request_id": "predicted", "diagnosis": "mel"}, 404, "unknown_request"),
        ({"index": 0, "diagnosis": "mel"}, 404, "unknown_request"),
        ({}, 422, "invalid_parameter"),
        ({"decision": None}, 422, "invalid_parameter"),
        ({"decision": SECRET_TEXT}, 422, "invalid_parameter"),
        ({"decision": "OTHER"}, 422, "invalid_parameter"),
        ({"decision": "OTHER", "reason": "  "}, 422, "invalid_parameter"),
        ({"decision": "OTHER", "reason": SECRET_TEXT * 50}, 422, "invalid_parameter"),
        ({"diagnosis": "mel", "reason": REASON}, 422, "invalid_parameter"),
        ({"diagnosis": ""}, 422, "invalid_parameter"),
        ({"diagnosis": SECRET_TEXT * 6}, 422, "invalid_parameter"),
        ({"index": "0", "diagnosis": "mel"}, 422, "invalid_parameter"),
        ({"request_id": f"{SECRET_TEXT}:0", "diagnosis": "mel"}, 422, "invalid_parameter"),
        ({"who": SECRET_TEXT, "diagnosis": "mel"}, 422, "invalid_parameter"),
    ],
)
def test_a_wrong_field_is_refused_without_its_value(
    client, path: Path, png, fields: dict[str, Any], status: int, code: str
) -> None:
    other = other_than(triaged(client, png))
    client.post("/predict", content=png, headers={**PNG, "X-Request-ID": "predicted"})
    if fields.get("decision") == "OTHER":
        fields = {**fields, "decision": other}
    answer = client.post("/decisions", json={"request_id": "r1", **fields})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert SECRET_TEXT not in answer.text
    assert decisions(path) == []


@pytest.mark.parametrize(
    ("request_of", "status", "code"),
    [
        ({"content": b"{", "headers": JSON}, 400, "malformed_body"),
        ({"content": b"[]", "headers": JSON}, 400, "malformed_body"),
        ({"content": b"", "headers": JSON}, 400, "malformed_body"),
        ({"content": b'{"diagnosis": "mel"}', "headers": JSON}, 422, "invalid_parameter"),
        ({"data": {"request_id": "r1"}}, 415, "unsupported_media"),
        ({"content": b" " * 20_000, "headers": JSON}, 413, "body_too_large"),
        ({"params": {"decision": "urgent"}, "json": {}}, 422, "invalid_parameter"),
    ],
)
def test_a_wrong_body_is_refused(
    client, request_of: dict[str, Any], status: int, code: str
) -> None:
    answer = client.post("/decisions", **request_of)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_client_decides_about_its_answers_only_and_is_recorded_by_name(
    model, path: Path, png
) -> None:
    keys = path.with_name("keys.jsonl")
    write_keys(keys, client_with("clinic", "clinic-key"), client_with("other", "other-key"))
    app = app_of(model, policy=mel_policy(), audit=AuditLog(path, SECRET), keys=keys)
    with TestClient(app) as client:
        key = {"X-API-Key": "clinic-key"}
        triaged(client, png, **key)
        answers = {
            name: client.post("/decisions", json={"request_id": request_id, "diagnosis": "mel"},
                              headers=headers)
            for name, request_id, headers in (
                ("other", "r1", {"X-API-Key": "other-key"}), ("unknown", "rx", key),
                ("none", "r1", {}), ("own", "r1", key),
            )
        }  # fmt: skip
    statuses = {name: answer.status_code for name, answer in answers.items()}
    assert statuses == {"other": 404, "unknown": 404, "none": 401, "own": 200}
    assert answers["other"].json()["detail"] == answers["unknown"].json()["detail"]
    assert [one["client"] for one in decisions(path)] == ["clinic"]
    assert b"clinic-key" not in path.read_bytes()


def test_contradictory_diagnoses_are_named_by_their_requests(client, path: Path, png) -> None:
    def counted() -> Any:
        outcomes = [logged.outcome for logged in read_logs([path])]
        return outcome_summary(outcomes, Promise(("mel",), 0.05, 0.95))

    triaged(client, png)
    decide(client, diagnosis="scc")
    assert (counted().others, counted().unknown) == ({"scc": 1}, {"scc": 1})
    decide(client, diagnosis="bkl")
    assert (counted().others, counted().unknown) == ({"bkl": 1}, {})
    client.post("/triage/batch", files=[("files", ("a", png))], headers={"X-Request-ID": "b"})
    decide(client, "b", index=0, diagnosis="mel")
    with pytest.raises(OutcomesError, match="bkl in r1; mel in b:0"):
        counted()


def test_a_service_without_an_audit_log_refuses_decisions(model) -> None:
    with TestClient(app_of(model, policy=mel_policy())) as client:
        answer = decide(client, decision="urgent")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_audit_log")


def test_decisions_and_diagnoses_are_counted(client, png) -> None:
    suggested = triaged(client, png)
    for fields in (
        {"decision": suggested}, {"decision": other_than(suggested), "reason": REASON},
        {"decision": "undo"}, {"diagnosis": "mel"}, {"diagnosis": "nv"},
    ):  # fmt: skip
        assert decide(client, **fields).status_code == 200
    lines = client.get("/metrics").text.splitlines()
    for kind in ("accept", "override", "undo"):
        assert f'eulerlora_decisions_total{{kind="{kind}",model="tiny"}} 1.0' in lines
    for critical in ("true", "false"):
        labels = f'critical="{critical}",disposition="{suggested}",model="tiny"'
        assert f"eulerlora_diagnoses_total{{{labels}}} 1.0" in lines
