"""A policy for the tests' tiny model, and results with fixed values."""

from pathlib import Path

from eulerlora_clinic.policy.policy import Decision, Policy, default_policy, default_policy_text
from eulerlora_clinic.policy.results import triage_result
from eulerlora_clinic.report.ranking import TriageRow
from eulerlora_contract.answers import Disposition, Prediction, Reason, TriageResult
from tests.eulerlora_contract.policy_inputs import GOOD, PREDICTION

NAMES = {"mel": "melanoma", "nv": "melanocytic nevus (mole)"}


def mel_policy() -> Policy:
    """The packaged policy with mel alone, routine below 0.04 and urgent from 0.05 on."""
    policy = default_policy()
    thresholds = {"classes": ("mel",), "routine": 0.04, "urgent": 0.05}
    malignant = policy.target.model_copy(update=thresholds)
    return policy.model_copy(update={"target": malignant})


def mel_policy_file(path: Path) -> Path:
    path.write_text(default_policy_text().replace('["mel", "bcc", "akiec"]', '["mel"]'))
    return path


def result_of(disposition: Disposition, mel: float = 0.2, *reasons: Reason) -> TriageResult:
    """Under `mel_policy`."""
    prediction = Prediction.model_validate(
        PREDICTION
        | {
            "probabilities": {"mel": mel, "nv": 1 - mel},
            "warnings": [
                {"code": "a_code", "message": "one"},
                {"code": "a_code", "message": "two"},
            ],
        }
    )
    decision = Decision(disposition, reasons, 3, "sha256:1")
    return triage_result(prediction, GOOD, decision, mel_policy(), NAMES)


def decided(name: str, disposition: Disposition, mel: float = 0.2, *reasons: Reason) -> TriageRow:
    return TriageRow(Path(name), result_of(disposition, mel, *reasons))
