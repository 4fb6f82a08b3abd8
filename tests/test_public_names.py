"""The public names: what docs/reference/stability.md promises to keep."""

from importlib import import_module

import pytest

import eulerlora_client
from eulerlora_contract import answers, problems

PUBLIC = {
    "eulerlora": """
        AdaptedClassifier CheckpointError DataError EulerLoRA EulerLoRAError HubError ImageError
        NonFiniteError OutputPathError Predictions SettingsError StorageError Uncertainty
        __version__ adapt summarise trajectory_loss
    """,
    "eulerlora.nn": """
        AdaptedVisionTransformer AdapterHeads AttentionAdapters EncoderBlock NetworkOutput RowDraws
        Rows VisionTransformer adapted_attention adapted_linear
    """,
    "eulerlora.peft": "EulerLoraConfig draw_coefficients sampling",
    "eulerlora.sampling": """
        PROJECTIONS det_coefficients draw_balanced_masks draw_balanced_trajectories draw_masks
        draw_trajectories on_stacked_ranks terminal_coefficients
    """,
    "eulerlora_client": """
        AsyncTriageClient AuditUnavailable BadRequest BodyTooLarge ClassGroup ClassName
        ConnectionLost DeadlinePassed Disposition DispositionText EulerLoRAError ForeignOrigin
        HeadersTooLarge ImageFile ImageLimits ImageQuality InternalError InvalidParameter
        InvalidUpload MalformedBody MalformedRequest MetadataNotRemoved MethodNotAllowed
        MisdirectedRequest ModelDetails ModelFailure ModelShift ModelSummary NoAnswer
        NotAcceptable NotAuthenticated NotFound NotReady OodScore OodScores OutOfMemory
        Overloaded PolicyDescription PolicyNotApplicable PolicyPerformance PolicyReference
        PredictOptions Prediction PredictionBatch PredictionSet PredictionSetOptions
        PredictionWarning Problem ProblemDocument QuotaExceeded Reason RequestRefused RetryPolicy
        ScoreThreshold ServiceFailed SettingsError ShiftSignal ShownResult TargetClasses
        TargetGroup Threshold TimedOut Timeouts Tolerance TriageBatch TriageClient TriageOptions
        TriageReason TriageResult Unavailable UnexpectedAnswer UnknownModel Unprocessable
        Unreachable UnreadableFile UnsupportedMedia UnusableImage UploadTooSlow Variance
        WarningCode __version__
    """,
}
INNER = {"ModelList", "ServiceStatus", "WireModel"}  # not what a method of the clients returns


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_those_that_are_promised(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == PUBLIC[package].split()
    assert "__dir__" not in vars(module) or dir(module) == module.__all__
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_problem_and_wire_model_is_public() -> None:
    for module in (problems, answers):
        defined = {
            name
            for name, kind in vars(module).items()
            if isinstance(kind, type) and kind.__module__ == module.__name__
        }
        assert defined - INNER <= set(eulerlora_client.__all__)
