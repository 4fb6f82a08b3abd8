"""The answer of an image after a round of samples, and which decisions on it are settled.

A decision is settled if the value behind it is further from its boundary than the margin that
`eulerlora calibrate` fitted for the round (`eulerlora.decision_margins`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from eulerlora.calibration_schema import RoundMargins
from eulerlora.uncertainty import summarise

MIN_PROBABILITY = 1e-30
"""Lower limit of a probability in log-odds."""
MAX_ENTROPY_ERROR_NATS = 0.06
"""An entropy that may change by more is not settled."""


@dataclass(frozen=True)
class RoundAnswer:
    """The answer of one image after a round.

    samples: per adapter; 0 for the pass in mode det. probabilities: of the classes. lead: log-odds
    of the first class against the second. entropy: in nats. agreement: the least log-odds of the
    label against another class among the trajectories; negative if a trajectory has another label.
    distance: feature distance; None without feature statistics.
    """

    samples: int
    probabilities: tuple[float, ...]
    lead: float
    entropy: float
    agreement: float
    distance: float | None

    @property
    def label(self) -> int:
        """Index of the most probable class."""
        return self.probabilities.index(self.msp)

    @property
    def msp(self) -> float:
        """The largest probability."""
        return max(self.probabilities)


def round_answers(
    trajectories: Tensor, samples: int, distances: Tensor | None
) -> list[RoundAnswer]:
    """Returns the answers of n images after a round.

    trajectories: (n, adapters, samples, classes) probabilities, one sample in mode det. samples,
    distances: as in `RoundAnswer`; distances (n,).
    """
    exact = trajectories.double().flatten(1, 2).clamp_min(MIN_PROBABILITY)  # (n, rows, classes)
    summary = summarise(exact)
    first, second = summary.probabilities.topk(2, dim=-1).values.unbind(dim=-1)
    label = summary.probabilities.argmax(dim=-1)[:, None, None].expand(*exact.shape[:2], 1)
    others = exact.scatter(-1, label, 0).amax(dim=-1)
    agreement = (exact.gather(-1, label)[..., 0].log() - others.log()).amin(dim=-1)
    values = zip(
        summary.probabilities.tolist(),
        (first.log() - second.log()).tolist(),
        summary.entropy.tolist(),
        agreement.tolist(),
        [None] * len(exact) if distances is None else distances.tolist(),
        strict=True,
    )
    return [RoundAnswer(samples, tuple(probabilities), *rest) for probabilities, *rest in values]


def log_odds(probability: float) -> float:
    """Returns the logarithm of p / (1 - p), finite for every probability."""
    limited = min(max(probability, MIN_PROBABILITY), 1 - 2**-53)
    return math.log(limited) - math.log1p(-limited)


@dataclass(frozen=True)
class SettledDecisions:
    """What is known about the decisions on an answer: True, False, or None if more samples might
    change it. margins: of the answer's round.
    """

    answer: RoundAnswer
    margins: RoundMargins

    @property
    def label_is_settled(self) -> bool:
        """True if the first class leads by at least the margin."""
        return self.answer.lead >= self.margins.lead

    @property
    def entropy_is_settled(self) -> bool:
        """True if the margin of the entropy is at most `MAX_ENTROPY_ERROR_NATS`."""
        return self.margins.entropy <= MAX_ENTROPY_ERROR_NATS

    def reaches(self, classes: Sequence[int], probability: float) -> bool | None:
        """Whether the summed probability of some classes is at least `probability`."""
        total = math.fsum(self.answer.probabilities[index] for index in classes)
        return _reaches(log_odds(total), log_odds(probability), self.margins.log_odds)

    def msp_reaches(self, threshold: float) -> bool | None:
        """Whether the MSP is at least the threshold."""
        return _reaches(log_odds(self.answer.msp), log_odds(threshold), self.margins.log_odds)

    def entropy_reaches(self, nats: float) -> bool | None:
        """Whether the entropy is at least `nats`."""
        return _reaches(self.answer.entropy, nats, self.margins.entropy)

    def distance_reaches(self, threshold: float) -> bool | None:
        """Whether the feature distance is at least the threshold; False without a distance."""
        if self.answer.distance is None or self.margins.feature_distance is None:
            return False
        return _reaches(self.answer.distance, threshold, self.margins.feature_distance)

    @property
    def trajectories_disagree(self) -> bool | None:
        """Whether two trajectories have different labels; more samples never undo it."""
        if self.answer.agreement < 0:
            return True
        return False if self.answer.agreement >= self.margins.agreement else None


def _reaches(value: float, boundary: float, margin: float) -> bool | None:
    return None if abs(value - boundary) < margin else value >= boundary
