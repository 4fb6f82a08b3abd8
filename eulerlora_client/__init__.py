# ruff: noqa: F403, F405
"""Client of the EulerLoRA service.

Names are imported on first use (PEP 562), so that importing the package and the `eulerlora`
program is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from eulerlora_contract import __version__

if TYPE_CHECKING:
    from eulerlora_client.client import *
    from eulerlora_client.images import *
    from eulerlora_client.retries import *
    from eulerlora_contract.answers import *
    from eulerlora_contract.checkpoints import *
    from eulerlora_contract.errors import *
    from eulerlora_contract.problems import *

__all__ = [
    "AsyncTriageClient",
    "AuditUnavailable",
    "BadRequest",
    "BodyTooLarge",
    "ClassGroup",
    "ClassName",
    "ConnectionLost",
    "DeadlinePassed",
    "DecisionOptions",
    "Disposition",
    "DispositionText",
    "EulerLoRAError",
    "ForeignOrigin",
    "HeadersTooLarge",
    "ImageEmbedding",
    "ImageFile",
    "ImageLimits",
    "ImageQuality",
    "InternalError",
    "InvalidParameter",
    "InvalidUpload",
    "LesionResult",
    "MalformedBody",
    "MalformedRequest",
    "MetadataNotRemoved",
    "MethodNotAllowed",
    "MisdirectedRequest",
    "ModelDetails",
    "ModelFailure",
    "ModelShift",
    "ModelSummary",
    "NoAnswer",
    "NoAuditLog",
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
    "PredictOptions",
    "Prediction",
    "PredictionBatch",
    "PredictionSet",
    "PredictionSetOptions",
    "PredictionWarning",
    "Problem",
    "ProblemDocument",
    "QuotaExceeded",
    "Reason",
    "RecordedDecision",
    "RequestRefused",
    "RetryPolicy",
    "ScoreThreshold",
    "ServiceFailed",
    "SettingsError",
    "ShiftSignal",
    "ShownResult",
    "TargetClasses",
    "TargetGroup",
    "Threshold",
    "TimedOut",
    "Timeouts",
    "Tolerance",
    "TriageBatch",
    "TriageClient",
    "TriageReason",
    "TriageResult",
    "TriagedLesion",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownModel",
    "UnknownRequest",
    "Unprocessable",
    "Unreachable",
    "UnreadableFile",
    "UnsupportedMedia",
    "UnusableImage",
    "UploadTooSlow",
    "Variance",
    "WarningCode",
    "__version__",
]

_MODULES = (
    "eulerlora_client.client",
    "eulerlora_client.images",
    "eulerlora_client.retries",
    "eulerlora_contract.errors",
    "eulerlora_contract.answers",
    "eulerlora_contract.checkpoints",
    "eulerlora_contract.problems",
)


def __getattr__(name: str) -> object:
    if name in __all__:
        for module in _MODULES:
            value: object = vars(import_module(module)).get(name)
            if value is not None:
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
