"""Where the report's bars and points stand: numbers for its SVG, all in per cent of a chart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eulerlora_client.contract.predictions import Prediction

FULL = 100.0
HIGHEST, SPREAD = 20.0, 60.0  # where points lie: the first and the range, so that none is cut
GOLDEN = 0.618  # spreads points over their row, the same way every time


@dataclass(frozen=True)
class ClassBar:
    """One class: its probability as a bar, that of each trajectory as a point.

    probability, lowest, highest: in [0, 1]; the last two over trajectories, None without them.
    malignant: whether it is of the malignant group. points: data of an SVG path, "" for none.
    """

    name: str
    malignant: bool
    probability: float
    lowest: float | None
    highest: float | None
    points: str

    @property
    def length(self) -> float:
        """The bar's length."""
        return round(FULL * self.probability, 2)


@dataclass(frozen=True)
class EntropySplit:
    """Entropy's two parts as lengths, of the entropy of a model that knows nothing.

    expected: within trajectories. mutual: between them. Together at most 100.
    """

    expected: float
    mutual: float


def class_bars(prediction: Prediction, malignant: Sequence[str]) -> tuple[ClassBar, ...]:
    """A bar for each class, the most probable first; equal ones in the model's order."""
    by_trajectory = prediction.trajectory_probabilities or ()
    bars = [
        _bar(name, name in malignant, probability, [each[index] for each in by_trajectory])
        for index, (name, probability) in enumerate(prediction.probabilities.items())
    ]
    return tuple(sorted(bars, key=lambda bar: -bar.probability))


def entropy_split(prediction: Prediction) -> EntropySplit:
    """The two parts of a prediction's entropy. A model of one class has none to draw."""
    most = math.log(len(prediction.probabilities))
    if most == 0:
        return EntropySplit(0.0, 0.0)
    expected = _within(prediction.expected_entropy / most)
    mutual = min(_within(prediction.mutual_information / most), FULL - expected)
    return EntropySplit(expected, round(mutual, 2))


def points_path(values: Sequence[float]) -> str:
    """SVG path data of one dot for each value in [0, 1], to be stroked with round caps.

    Each trajectory keeps its own height, so that dots of equal values stay apart.
    """
    return "".join(
        f"M{_within(value):g} {HIGHEST + SPREAD * (GOLDEN * (index + 0.5) % 1):.4g}h0"
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


def _within(share: float) -> float:
    """A share in per cent; rounding in the server's sums may put it a little outside [0, 1]."""
    return round(FULL * min(max(share, 0.0), 1.0), 2)
