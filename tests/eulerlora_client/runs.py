"""Results with fixed values, and a policy for the tests' tiny model."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from eulerlora_clinic.policy.policy import Decision, Policy, default_policy, default_policy_text
from eulerlora_clinic.policy.results import triage_result
from eulerlora_contract.answers import Disposition, Prediction, Reason, TriageResult
from tests.eulerlora_client.conftest import Reply
from tests.eulerlora_contract.policy_inputs import GOOD, PREDICTION

NAMES = {"mel": "melanoma", "nv": "melanocytic nevus (mole)"}

DETAILS = {
    "name": "tiny",
    "revision": "sha256:0",
    "classes": [{"name": name, "description": name.upper()} for name in ("mel", "nv")],
    "adapters": 2,
    "input_size": 32,
    "image_limits": {
        "min_side": 32,
        "max_side": 8192,
        "max_pixels": 24_000_000,
        "max_jpeg_pixels": 64_000_000,
        "max_request_pixels": 512_000_000,
        "media_types": ["image/jpeg", "image/png", "image/webp"],
    },
    "max_body_bytes": 100_000,
    "max_samples": 64,
    "thresholds": [],
    "provenance": {},
}
"""The answer of `/models/tiny`."""


def mel_policy() -> Policy:
    """The packaged policy with mel alone, routine below 0.04 and urgent from 0.05 on."""
    policy = default_policy()
    thresholds = {"classes": ("mel",), "routine": 0.04, "urgent": 0.05}
    malignant = policy.target.model_copy(update=thresholds)
    return policy.model_copy(update={"target": malignant})


def mel_policy_file(path: Path) -> Path:
    path.write_text(default_policy_text().replace('["mel", "bcc", "akiec"]', '["mel"]'))
    return path


def random_png(seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


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


def triage_reply(result: TriageResult) -> Reply:
    return 200, {"Content-Type": "application/json"}, result.model_dump_json().encode()
