"""Geometry of the report's bars and points: numbers for its SVG, in per cent of a chart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.scores import OodScore
from eulerlora_client.contract.triage import TriageResult

FULL = 100.0
TOP, SPREAD = 20.0, 60.0  # vertical range of points, so that none is cut off
GOLDEN_RATIO = 0.618  # spreads points over their row, deterministically


@dataclass(frozen=True)
class ClassBar:
    """One class: its probability as a bar, the probability of each trajectory as a point.

    probability, lowest, highest: in [0, 1]; the last two over trajectories, None without them.
    malignant: whether the class is in the malignant group. points: SVG path data, "" for none.
    """

    name: str
    malignant: bool
    probability: float
    lowest: float | None
    highest: float | None
    points: str

    @property
    def length(self) -> float:
        """The length of the bar."""
        return round(FULL * self.probability, 2)


@dataclass(frozen=True)
class EntropySplit:
    """The two parts of the entropy as lengths, relative to the maximum entropy.

    expected: within trajectories. mutual: between trajectories. Their sum is at most 100.
    """

    expected: float
    mutual: float


def class_bars(result: TriageResult) -> tuple[ClassBar, ...]:
    """Returns a bar per class, the most probable first; ties are in the model's order."""
    prediction, malignant = result.prediction, result.malignant.classes
    trajectories = prediction.trajectory_probabilities or ()
    bars = [
        _bar(
            result.name_of(code),
            code in malignant,
            probability,
            [row[index] for row in trajectories],
        )
        for index, (code, probability) in enumerate(prediction.probabilities.items())
    ]
    return tuple(sorted(bars, key=lambda bar: -bar.probability))


def entropy_split(prediction: Prediction) -> EntropySplit:
    """Returns the two parts of the entropy of a prediction; 0 for a model of one class."""
    maximum = math.log(len(prediction.probabilities))
    if maximum == 0:
        return EntropySplit(0.0, 0.0)
    expected = _percent(prediction.expected_entropy / maximum)
    mutual = min(_percent(prediction.mutual_information / maximum), FULL - expected)
    return EntropySplit(expected, round(mutual, 2))


def relative_distance(distance: OodScore) -> float:
    """Returns a score of at least 0 as a share of twice its threshold, at most 1."""
    if not distance.threshold:
        return 1.0
    return min(max(distance.value, 0.0) / (2 * distance.threshold), 1.0)


def points_path(values: Sequence[float]) -> str:
    """Returns SVG path data with one dot per value in [0, 1], to be stroked with round caps.

    The dots have different heights, so that dots of equal values do not overlap.
    """
    return "".join(
        f"M{_percent(value):g} {TOP + SPREAD * (GOLDEN_RATIO * (index + 0.5) % 1):.4g}h0"
        for index, value in enumerate(values)
    )


def _bar(name: str, malignant: bool, probability: float, values: Sequence[float]) -> ClassBar:
    return ClassBar(
        name=name,
        malignant=malignant,
        probability=probability,
        lowest=min(values, default=None),
        highest=max(values, default=None),
        points=points_path(values),
    )


def _percent(share: float) -> float:
    """Returns a share in per cent, clamped: rounding may move a sum slightly out of [0, 1]."""
    return round(FULL * min(max(share, 0.0), 1.0), 2)
