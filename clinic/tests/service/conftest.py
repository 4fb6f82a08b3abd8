"""Services with the clinic, and fixtures that the tests of the core's service have too."""

from typing import Any

from fastapi import FastAPI

from eulerlora import EulerLoRA
from eulerlora_clinic.audit.log import AuditLog
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.service.extension import Clinic
from service.extensions import load_extensions
from service.inference.engine import ServedModel
from tests.service import conftest as core
from tests.service.conftest import (
    bombs,
    client,
    current_metrics,
    keyed,
    live,
    model,
    photo,
    png,
    post_image,
    refused,
)

__all__ = [
    "bombs", "client", "current_metrics", "keyed", "live", "model", "photo", "png", "post_image",
    "refused",
]  # fmt: skip


def app_of(
    *models: EulerLoRA | ServedModel,
    policy: Policy | None = None,
    audit: AuditLog | None = None,
    **others: Any,
) -> FastAPI:
    """An app as that of `tests.service.conftest`, with a policy and an audit log."""
    extensions = load_extensions() | {"clinic": Clinic(policy, audit)}
    return core.app_of(*models, extensions=extensions, **others)
