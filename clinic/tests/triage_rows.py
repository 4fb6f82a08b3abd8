"""Triage rows of every status, as a run over a folder returns them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from eulerlora_clinic.policy.policy import AnswerSummary, Policy, default_policy
from eulerlora_clinic.policy.results import triage_result
from eulerlora_clinic.report.ranking import RowProblem, TriageRow
from eulerlora_contract.answers import ImageQuality, Prediction
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
HOSTILE = '"><img src=x onerror=alert(1)>&amp;\u202egpj.\x07.jpg'
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


def fixed_policy() -> Policy:
    """The packaged policy with thresholds that do not change when it is fitted again."""
    content = default_policy().model_dump() | {"evidence": ()}
    content["target"] = {
        "name": "malignant", "classes": ("mel", "bcc", "akiec"), "routine": 0.1, "urgent": 0.4
    }  # fmt: skip
    content["uncertainty"] = {"entropy_nats": 1.2}
    return Policy.model_validate(content)


def picture(path: Path, seed: int, size: tuple[int, int] = (400, 300)) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


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


def triaged(path: Path, prediction: Prediction, quality: ImageQuality, policy: Policy) -> TriageRow:
    decision = policy.decide(AnswerSummary(prediction), quality)
    return TriageRow(path, triage_result(prediction, quality, decision, policy, CLASS_NAMES))


def failed(path: Path, code: str = "unusable_image", detail: str = "it is broken") -> TriageRow:
    return TriageRow(path, problem=RowProblem(code, detail))


def rows_of_all_kinds(folder: Path, policy: Policy) -> list[TriageRow]:
    """Images are written to the folder."""

    def image(name: str, seed: int, **shape: tuple[int, int]) -> Path:
        return picture(folder / name, seed, **shape)

    def row(path: Path, prediction: Prediction, quality: ImageQuality = SHARP) -> TriageRow:
        return triaged(path, prediction, quality, policy)

    broken = folder / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff this is not an image")
    return [
        row(image("routine.jpg", 1), make_prediction(passes("nv", 7, 0.4, 1))),
        row(image("urgent.jpg", 2), make_prediction(passes("mel", 4, 0.8, 2))),
        row(
            image(HOSTILE, 3),
            make_prediction(
                passes("bkl", 1.5, 1.4, 3), warnings=({"code": "a_code", "message": "<b>note</b>"},)
            ),
        ),
        row(
            image("fixed.png", 4),
            make_prediction(passes("nv", 6, 0.2, 4, 2), mode="det", samples=1, detail=False),
        ),
        row(image("blurred.jpg", 5), make_prediction(passes("nv", 7, 0.3, 5)), BLURRED),
        row(image("blurred urgent.jpg", 6), make_prediction(passes("bcc", 3, 0.6, 6)), BLURRED),
        row(
            image("no threshold.jpg", 7, size=(300, 500)),
            make_prediction(passes("vasc", 6, 0.3, 7), ood=None, ood_threshold=None),
        ),
        row(image("ood.jpg", 8), make_prediction(passes("nv", 0, 0.1, 8))),
        row(image("unfamiliar.jpg", 9), make_prediction(passes("nv", 1, 0.1, 9), **UNFAMILIAR)),
        failed(broken, "unusable_image", "the JPEG data is broken or truncated"),
        failed(folder / "gone.jpg", "unreadable_file", "cannot be read (No such file)"),
    ]


def _entropy(probabilities: np.ndarray) -> float:
    return -math.fsum(value * math.log(value) for value in probabilities.tolist() if value > 0)
