"""Predictions and qualities with just what a policy reads, to be changed one field at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from eulerlora_client.policy.quality import Quality

GOOD = Quality(
    width=600, height=450, brightness=0.6, dark_share=0.0, bright_share=0.0, sharpness=50.0
)


@dataclass(frozen=True)
class FakePrediction:
    """A prediction that every rule leaves alone, unless told otherwise."""

    model: str = "ham10000"
    revision: str = "sha256:00"
    mode: str = "stoch"
    samples: int | None = 4
    standard_error: object | None = None
    trajectories: int = 8
    probabilities: Mapping[str, float] = field(
        default_factory=lambda: {"nv": 1.0, "mel": 0.0, "bcc": 0.0, "akiec": 0.0}
    )
    entropy: float = 0.0
    ood: bool | None = False
    trajectory_labels: tuple[str, ...] = ("nv",) * 8
