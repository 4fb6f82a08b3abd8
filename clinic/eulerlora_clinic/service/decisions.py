"""`POST /decisions`: what a person decided about an answer of `/triage`."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from eulerlora_clinic.audit.file import DECISION
from eulerlora_clinic.audit.log import AuditLog
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.service.metrics import ClinicMetrics
from eulerlora_contract.answers import UNDO, RecordedDecision
from eulerlora_contract.problems import (
    AuditUnavailable,
    DeadlinePassed,
    InvalidParameter,
    MalformedBody,
    NoAuditLog,
    UnknownRequest,
    UnsupportedMedia,
    UploadTooSlow,
)
from eulerlora_contract.queries import DecisionRequest, NoQuery
from service.decoding.formats import without_parameters
from service.fair_sharing import ClientTurns
from service.http.requests import parsed_query, query_errors, while_connected
from service.http.responses import JSON, json_response
from service.routes.openapi import KEYED_PROBLEMS, TRIAGE, documented

DECISIONS_PATH = "/decisions"
MAX_DECISION_BYTES = 16 * 1024
_PROBLEMS = (
    *KEYED_PROBLEMS, AuditUnavailable, DeadlinePassed, InvalidParameter, MalformedBody, NoAuditLog,
    UnknownRequest, UnsupportedMedia, UploadTooSlow,
)  # fmt: skip
_EXAMPLES = {
    "accept": {"decision": "urgent"},
    "override": {"decision": "routine", "reason": "seborrhoeic keratosis, unchanged for years"},
    "undo": {"decision": "undo"},
    "diagnosis": {"diagnosis": "mel"},
}
_REQUEST_ID = "3c9d5fb0b2f64c55a7a54c1a1d5f7a11"
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {"$ref": f"#/components/schemas/{DecisionRequest.__name__}"},
                "examples": {
                    name: {"value": {"request_id": _REQUEST_ID, **fields}}
                    for name, fields in _EXAMPLES.items()
                },
            }
        },
    }
}


def decision_routes(
    audit: AuditLog | None, policy: Policy, metrics: ClinicMetrics, deadline_s: float
) -> APIRouter:
    """The route that records decisions in the audit log, one after another.

    A decision that changes nothing is neither recorded nor counted, so that it may be repeated.
    Clients take turns, and a client that disconnects while it waits gives up its own.

    Args:
        audit: None refuses every request.
        policy: Has the critical classes of the metrics.
        metrics: Counts decisions and diagnoses.
        deadline_s: In which the turn of a request must come.
    """
    critical = policy.target.critical.classes
    turns, deciding = ClientTurns(), asyncio.Lock()
    router = APIRouter(tags=[TRIAGE])

    @router.post(
        DECISIONS_PATH,
        response_model=RecordedDecision,
        responses=documented("decide", _PROBLEMS, ["Cache-Control"]),
        openapi_extra=_BODY,
    )
    async def decide(request: Request) -> Response:
        """Records a person's decision on an answer of `/triage`, or its diagnosis.

        Returns all that was recorded about the answer: a later decision replaces an earlier one.
        """
        parsed_query(request, NoQuery)
        if audit is None:
            raise NoAuditLog("expected a service that runs with --audit")
        asked = await _body_of(request)
        client = getattr(request.state, "key_name", None)
        async with AsyncExitStack() as turn:
            try:
                async with while_connected(request), asyncio.timeout(deadline_s):
                    await turn.enter_async_context(turns.of(request.scope))
                    await turn.enter_async_context(deciding)
            except TimeoutError as error:
                raise DeadlinePassed("other decisions took until the deadline") from error
            found = await audit.answered(asked.request_id, asked.index, client)
            _check_reason(asked, found.decided)
            fields = asked.model_dump(include={"request_id", "decision", "reason", "diagnosis"})
            decided = found.decided.after(fields)
            if decided != found.decided:
                await audit.record(_record(found.answer, fields))
                metrics.count_decision(found.answer["model"], asked, decided, critical)
        return json_response(decided, headers={"Cache-Control": "no-store"})

    return router


async def _body_of(request: Request) -> DecisionRequest:
    """The decision in the body.

    Raises:
        UnsupportedMedia: For another content type than JSON.
        MalformedBody: For a body that is no JSON object.
        InvalidParameter: For a body without decision and diagnosis.
        RequestValidationError: For a wrong field.
    """
    if without_parameters(request.headers.get("content-type", "")) != JSON:
        raise UnsupportedMedia(f"expected the content type {JSON}")
    content = await request.body()
    with query_errors():
        try:
            asked = DecisionRequest.model_validate_json(content)
        except ValidationError as error:
            if not error.errors()[0]["loc"]:
                raise MalformedBody("expected a JSON object") from error
            raise
    if asked.decision is None and asked.diagnosis is None:
        raise InvalidParameter("decision: expected a decision, a diagnosis, or both")
    return asked


def _check_reason(asked: DecisionRequest, decided: RecordedDecision) -> None:
    """Checks that a decision has the reason that it needs.

    Raises:
        InvalidParameter: For an override without a reason, or a reason without a decision.
    """
    if asked.decision is None:
        if asked.reason is not None:
            raise InvalidParameter("reason: expected with a decision only")
    elif asked.reason is None and asked.decision not in (decided.disposition, UNDO):
        raise InvalidParameter("reason: expected for another decision than the suggested one")


def _record(answer: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a decision, with what it shares with the one of its answer."""
    shared = {name: answer[name] for name in ("client", "image", "item_id", "model", "revision")}
    return {
        "kind": DECISION,
        **shared,
        "answer": answer["mac"],
        "disposition": answer["triage"]["disposition"],
        **fields,
    }
