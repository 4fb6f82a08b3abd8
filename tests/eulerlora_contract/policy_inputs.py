"""A prediction and an image quality to which no rule of a policy applies, to be varied by tests."""

from collections.abc import Mapping
from typing import Any

from eulerlora_contract.answers import ImageQuality, Prediction

PREDICTION: dict[str, Any] = {
    "request_id": "r1",
    "model": "tiny",
    "revision": "sha256:0",
    "mode": "stoch",
    "samples": 2,
    "trajectories": 2,
    "seed": 7,
    "label": "nv",
    "probabilities": {"mel": 0.2, "nv": 0.8},
    "entropy": 0.5,
    "expected_entropy": 0.4,
    "mutual_information": 0.1,
    "msp": 0.8,
    "ood": False,
    "ood_threshold": 0.3,
    "warnings": [],
    "trajectory_probabilities": [[0.6, 0.4], [0.1, 0.9]],
}

GOOD = ImageQuality(
    width=600, height=450, brightness=0.6, dark_share=0.0, bright_share=0.0, sharpness=50.0
)
PROBABILITIES = {"nv": 1.0, "mel": 0.0, "bcc": 0.0, "akiec": 0.0}
FIELDS = PREDICTION | {
    "model": "ham10000", "samples": 4, "trajectories": 8, "entropy": 0.0, "expected_entropy": 0.0,
    "mutual_information": 0.0, "msp": 1.0,
}  # fmt: skip


def make_prediction(
    probabilities: Mapping[str, float] = PROBABILITIES,
    trajectory_labels: tuple[str, ...] = ("nv",) * 8,
    **changes: Any,
) -> Prediction:
    """trajectory_labels: () leaves out the trajectories' probabilities."""
    rows = [[float(name == label) for name in probabilities] for label in trajectory_labels]
    return Prediction.model_validate(
        FIELDS
        | {"probabilities": probabilities, "trajectory_probabilities": rows or None}
        | changes
    )
