"""Client of the EulerLoRA service.

Names are imported on first use (PEP 562), so that importing the package and the `eulerlora`
program is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eulerlora_client.contract.models import (
        ClassName,
        ImageLimits,
        ModelDetails,
        ModelShift,
        ModelSummary,
        PredictionSetOptions,
        ScoreThreshold,
        ShiftSignal,
        Threshold,
    )
    from eulerlora_client.contract.predictions import (
        Prediction,
        PredictionBatch,
        PredictionWarning,
        ProblemDocument,
        WarningCode,
    )
    from eulerlora_client.contract.problems import (
        AuditUnavailable,
        BadRequest,
        BodyTooLarge,
        ConnectionLost,
        DeadlinePassed,
        ForeignOrigin,
        HeadersTooLarge,
        InternalError,
        InvalidParameter,
        InvalidUpload,
        MalformedBody,
        MalformedRequest,
        MetadataNotRemoved,
        MethodNotAllowed,
        MisdirectedRequest,
        ModelFailure,
        NoAnswer,
        NotAcceptable,
        NotAuthenticated,
        NotFound,
        NotReady,
        OutOfMemory,
        Overloaded,
        PolicyNotApplicable,
        Problem,
        QuotaExceeded,
        RequestRefused,
        ServiceFailed,
        TimedOut,
        Unavailable,
        UnexpectedAnswer,
        UnknownModel,
        Unprocessable,
        Unreachable,
        UnreadableFile,
        UnsupportedMedia,
        UnusableImage,
        UploadTooSlow,
    )
    from eulerlora_client.contract.scores import OodScore, OodScores, PredictionSet, StandardError
    from eulerlora_client.contract.triage import (
        Disposition,
        DispositionText,
        ImageQuality,
        MalignantGroup,
        PolicyDescription,
        PolicyPerformance,
        PolicyReference,
        Reason,
        TriageBatch,
        TriageReason,
        TriageResult,
    )
    from eulerlora_client.errors import ClientError, SettingsError
    from eulerlora_client.sdk.async_client import AsyncTriageClient
    from eulerlora_client.sdk.client import TriageClient
    from eulerlora_client.sdk.images import ImageFile
    from eulerlora_client.sdk.retry import RetryPolicy, Timeouts

__all__ = [
    "AsyncTriageClient",
    "AuditUnavailable",
    "BadRequest",
    "BodyTooLarge",
    "ClassName",
    "ClientError",
    "ConnectionLost",
    "DeadlinePassed",
    "Disposition",
    "DispositionText",
    "ForeignOrigin",
    "HeadersTooLarge",
    "ImageFile",
    "ImageLimits",
    "ImageQuality",
    "InternalError",
    "InvalidParameter",
    "InvalidUpload",
    "MalformedBody",
    "MalformedRequest",
    "MalignantGroup",
    "MetadataNotRemoved",
    "MethodNotAllowed",
    "MisdirectedRequest",
    "ModelDetails",
    "ModelFailure",
    "ModelShift",
    "ModelSummary",
    "NoAnswer",
    "NotAcceptable",
    "NotAuthenticated",
    "NotFound",
    "NotReady",
    "OodScore",
    "OodScores",
    "OutOfMemory",
    "Overloaded",
    "PolicyDescription",
    "PolicyNotApplicable",
    "PolicyPerformance",
    "PolicyReference",
    "Prediction",
    "PredictionBatch",
    "PredictionSet",
    "PredictionSetOptions",
    "PredictionWarning",
    "Problem",
    "ProblemDocument",
    "QuotaExceeded",
    "Reason",
    "RequestRefused",
    "RetryPolicy",
    "ScoreThreshold",
    "ServiceFailed",
    "SettingsError",
    "ShiftSignal",
    "StandardError",
    "Threshold",
    "TimedOut",
    "Timeouts",
    "TriageBatch",
    "TriageClient",
    "TriageReason",
    "TriageResult",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownModel",
    "Unprocessable",
    "Unreachable",
    "UnreadableFile",
    "UnsupportedMedia",
    "UnusableImage",
    "UploadTooSlow",
    "WarningCode",
]

MODULES = (
    "contract.models", "contract.predictions", "contract.problems", "contract.scores",
    "contract.triage", "errors", "sdk.async_client", "sdk.client", "sdk.images", "sdk.retry",
)  # fmt: skip


def __getattr__(name: str) -> object:
    """Imports a public name from the module that defines it."""
    if name in __all__:
        for module in MODULES:
            value: object = vars(import_module(f"{__name__}.{module}")).get(name)
            if value is not None:
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
