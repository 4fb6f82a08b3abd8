"""Triage rows, as a run over a folder returns them, and the packaged policy."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eulerlora_clinic.policy.policy import AnswerSummary, Policy, default_policy
from eulerlora_clinic.policy.results import triage_result
from eulerlora_clinic.report.ranking import RowProblem, TriageRow
from eulerlora_contract.answers import ImageQuality, Prediction
from eulerlora_contract.sampling import PRECISIONS
from tests.eulerlora_contract.policy_inputs import GOOD, PREDICTION

CLASS_NAMES = {
    "akiec": "actinic keratosis (or Bowen's disease)",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevus",
    "vasc": "vascular lesion",
}
CLASSES = tuple(CLASS_NAMES)
REVISION = "sha256:" + "5f" * 32
IN_BOTH_PRECISIONS = default_policy().model_copy(
    update={
        "evidence": tuple(
            entry.model_copy(update={"options": entry.options.in_precision(precision)})
            for entry in default_policy().evidence[:1]
            for precision in PRECISIONS
        )
    }
)
"""The packaged policy, with the evidence of its first precision for each."""
SHARP, BLURRED = (GOOD.model_copy(update={"sharpness": value}) for value in (85.0, 0.4))


UNFAMILIAR: dict[str, Any] = {
    "unfamiliar": True,
    "ood_scores": {
        "msp": {"value": 0.4, "threshold": 0.5, "flagged": True},
        "energy": {"value": -1.5, "threshold": -2.5, "flagged": True},
        "feature_distance": {"value": 36.0, "threshold": 24.0, "flagged": True},
    },
}
"""The changes of a prediction of an unfamiliar image."""


def make_prediction(
    trajectories: Sequence[Sequence[float]], detail: bool = True, **changes: object
) -> Prediction:
    """Values are computed from the trajectories."""
    rows = np.asarray(trajectories, dtype=float)
    mean = rows.mean(axis=0)
    entropy = _entropy(mean)
    expected = float(np.mean([_entropy(row) for row in rows]))
    values: dict[str, object] = {
        "model": "ham10000",
        "revision": REVISION,
        "samples": len(rows) // 2,
        "trajectories": len(rows),
        "seed": 1234567,
        "label": CLASSES[int(mean.argmax())],
        "probabilities": dict(zip(CLASSES, mean.tolist(), strict=True)),
        "entropy": entropy,
        "expected_entropy": expected,
        "mutual_information": max(entropy - expected, 0.0),
        "msp": float(mean.max()),
        "ood": bool(mean.max() < 0.5),
        "ood_threshold": 0.5,
        "trajectory_probabilities": rows.tolist() if detail else None,
    }
    return Prediction.model_validate(PREDICTION | values | changes)


def passes(label: str, margin: float, spread: float, seed: int, count: int = 8) -> np.ndarray:
    """(count, 7) probabilities. margin: of the label; spread: between passes; in logits."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 0.5, 7) + spread * draw.normal(size=(count, 7))
    logits[:, CLASSES.index(label)] += margin
    exponentials = np.exp(logits)
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def triaged(
    path: Path, prediction: Prediction, policy: Policy, quality: ImageQuality = SHARP
) -> TriageRow:
    decision = policy.decide(AnswerSummary(prediction), quality)
    return TriageRow(path, triage_result(prediction, quality, decision, policy, CLASS_NAMES))


def failed(path: Path, code: str = "unusable_image", detail: str = "it is broken") -> TriageRow:
    return TriageRow(path, problem=RowProblem(code, detail))


def _entropy(probabilities: np.ndarray) -> float:
    return -math.fsum(value * math.log(value) for value in probabilities.tolist() if value > 0)
