"""The clinic's part of the service: triage, its page, decisions, audit log and shift monitor."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from fastapi import APIRouter, Request
from pydantic import BaseModel

from eulerlora_clinic.audit.log import SECRET_VARIABLE, AuditEntry, AuditLog, read_secret
from eulerlora_clinic.language import accepted, languages
from eulerlora_clinic.policy.policy import Decision, Policy, default_policy, read_policy
from eulerlora_clinic.service.decisions import DECISIONS_PATH, MAX_DECISION_BYTES, decision_routes
from eulerlora_clinic.service.dicom import DICOM
from eulerlora_clinic.service.fhir import FHIR, FHIR_JSON
from eulerlora_clinic.service.metrics import ClinicMetrics
from eulerlora_clinic.service.page import page_files, page_name
from eulerlora_clinic.service.shift_monitor import ShiftMonitors
from eulerlora_clinic.service.triage import (
    TRIAGE_BATCH_PATH,
    TRIAGE_PATH,
    Triage,
    policy_routes,
    triage_routes,
)
from eulerlora_contract.answers import PredictionWarning, TriageResult
from eulerlora_contract.processes import forget_variable
from eulerlora_contract.queries import DecisionRequest
from service.extensions import AnsweredImage, Extension, Service
from service.inference.engine import ServedModel, ServedModels
from service.routes.files import PageFile, file_routes
from service.settings import ServiceSettings


class Clinic(Extension):
    """Triage, its page, decisions, audit log and shift monitor.

    Args:
        policy: None for the packaged one.
        audit: Records every prediction before it is returned; None for no log.
    """

    uploads = (TRIAGE_PATH, TRIAGE_BATCH_PATH)
    formats = MappingProxyType({FHIR_JSON: FHIR})
    schemas = MappingProxyType(
        {
            FHIR.schema_name: FHIR.schema,
            DecisionRequest.__name__: DecisionRequest.model_json_schema(),
        }
    )

    def __init__(self, policy: Policy | None = None, audit: AuditLog | None = None) -> None:
        self.policy = policy or default_policy()
        self.audit = audit
        self.reads_files = audit is not None
        self._models = ServedModels()  # those of the service, once its routes are made
        self._shift = ShiftMonitors(
            lambda: {name: served.model for name, served in self._models.items()}
        )
        self._metrics = ClinicMetrics(lambda: self._models, self._shift.states)

    @classmethod
    def of_options(
        cls,
        policy: Path | None = None,
        audit: Path | None = None,
        audit_secret: Path | None = None,
        audit_retention_months: int = 0,
    ) -> Self:
        """The extension of `eulerlora serve` (`eulerlora_clinic.service.options`)."""
        log = None
        if audit is not None:
            secret = read_secret(audit_secret, os.environ, "--audit-secret")
            forget_variable(SECRET_VARIABLE)
            log = AuditLog(audit, secret, audit_retention_months)
        return cls(None if policy is None else read_policy(policy), log)

    def running(self) -> AbstractContextManager[object]:
        return nullcontext() if self.audit is None else self.audit

    def fault(self) -> str | None:
        if self.audit is not None and not self.audit.is_writable:
            return "the audit log cannot be written, so that every decision is refused"
        return None

    def routes(self, service: Service) -> APIRouter:
        models, settings = service.models, service.settings
        self._models = models
        service.registry.register(self._metrics)
        routers = [
            triage_routes(service.pipeline, models, self.policy, self.formats),
            decision_routes(self.audit, self.policy, self._metrics, settings.deadline_s),
            policy_routes(self.policy),
        ]

        def read_page() -> Mapping[str, PageFile]:
            model = models[models.default].model
            return page_files(
                self.policy,
                model.classes,
                model.precision,
                is_audited=self.audit is not None,
                reads_dicom=DICOM in settings.images.containers,
                by_code=languages(),
            )

        routers.append(file_routes("/", "/page", read_page, _page_name))
        return APIRouter(routes=[route for router in routers for route in router.routes])

    def body_limits(self, settings: ServiceSettings) -> Mapping[str, int]:
        return {
            TRIAGE_BATCH_PATH: settings.bodies.max_batch_bytes,
            DECISIONS_PATH: MAX_DECISION_BYTES,
        }

    def warnings(self, served: ServedModel) -> tuple[PredictionWarning, ...]:
        return self._shift.warnings(served.name, served.model.revision)

    async def answered(self, image: AnsweredImage, body: BaseModel) -> None:
        """Records an answer in the audit log, the metrics and the shift monitors.

        Raises:
            AuditUnavailable: If the prediction cannot be recorded.
        """
        if image.prediction is None:
            return
        request, triage = image.request, body if isinstance(body, TriageResult) else None
        if self.audit is not None:
            interpretation, lesion = request.interpretation, None
            if isinstance(interpretation, Triage) and image.index is not None:
                lesion = interpretation.lesions.get(image.index)
            entry = AuditEntry(
                image.prediction,
                key_name=getattr(request.state, "key_name", None),
                image=image.file,
                triage=None if triage is None else _decision(triage),
                samples_asked=request.query.samples,
                lesion=lesion,
            )
            await self.audit.record(entry)
        self._shift.record(image.prediction)
        if triage is not None:
            self._metrics.count_disposition(request.served.name, triage.disposition)

    def model_details(self, served: ServedModel) -> Mapping[str, Any]:
        return {"shift": self._shift.states().get(served.name)}


def _page_name(request: Request) -> str:
    """The page in the language of the parameter `language`, or else in one that is accepted."""
    code = request.query_params.get("language", "")
    if code not in languages():
        code = accepted(request.headers.get("accept-language", ""))
    return page_name(code)


def _decision(result: TriageResult) -> Decision:
    reasons = tuple(reason.code for reason in result.reasons)
    return Decision(result.disposition, reasons, result.policy.version, result.policy.hash)
