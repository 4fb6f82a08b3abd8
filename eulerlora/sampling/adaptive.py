"""Adaptive sampling, `samples="auto"`: when the rounds of an image end, and the fit of the margins.

The rounds (`AUTO_ROUNDS`) run the first samples of a request for `MAX_AUTO_SAMPLES`, none of them
twice: `AdaptiveSampling` holds those of an image, and `StoppingRule` ends them.

A decision is settled if the value behind it is further from its boundary than the margin that
`eulerlora calibrate` fitted for the round. The rule depends on the image's trajectories only.

The margin of a value and a round is a quantile, the level, of its absolute difference from
`MAX_AUTO_SAMPLES` samples. The level is the smallest one with which the answers of `samples="auto"`
have the label and flags of that number of samples in a share of 99.8% of the images,
where the margins come from the other half of the images.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from eulerlora.answer import MIN_PROBABILITY, Predictions
from eulerlora.scores.ood_scores import FeatureDistance
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw
from eulerlora_contract.errors import NonFiniteError
from eulerlora_contract.sampling import AUTO_ROUNDS, MAX_AUTO_SAMPLES, Options
from eulerlora_contract.settings import Count, NotNegative, PositiveInt, Probability, Settings

_Bools = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float64]

__all__ = [
    "MIN_IMAGES",
    "AdaptiveSampling",
    "DecisionMargins",
    "RoundComparisons",
    "RoundMargins",
    "StoppingRule",
    "fit_margins",
    "last_rounds",
    "summaries_by_round",
]

_MARGIN_ROUNDS = AUTO_ROUNDS[:-1]
_TARGET_AGREEMENT = 0.998
"""Of the label and flags, so that with the disposition of a policy 99.5% remain."""
_LEVELS = (0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0)
MIN_IMAGES = 100
"""With fewer images there are no margins."""


class RoundMargins(Settings):
    """The margins of a round of samples: a decision is settled if its value is further from its
    boundary than that (`eulerlora.sampling.adaptive`).

    Attributes:
        samples: Per adapter, so far.
        lead: Log-odds of the first class against the second.
        log_odds: Of the probability of a class or of several.
        entropy: In nats.
        agreement: Least log-odds of the label among trajectories.
        feature_distance: None if it was not calibrated.
    """

    samples: Count
    lead: NotNegative
    log_odds: NotNegative
    entropy: NotNegative
    agreement: NotNegative
    feature_distance: NotNegative | None = None


class DecisionMargins(Settings):
    """The margins by which `samples=auto` decides (`fit_margins`).

    Attributes:
        level: Share of the images within each margin.
        agreement: Share of the images whose label and flags are those with `options`.
        options: Of the predictions that the rounds were compared with.
        images: Number of images that they were fitted to.
        data: Where these come from.
    """

    level: Probability
    agreement: Probability
    options: Options
    rounds: tuple[RoundMargins, ...]
    images: PositiveInt
    data: str

    def of_round(self, samples: int) -> RoundMargins | None:
        return next((entry for entry in self.rounds if entry.samples == samples), None)


Rounds = Mapping[int, Predictions]
"""The summaries of the same images after every round, by samples per adapter."""


def summaries_by_round(trajectories: Trajectories, distance: FeatureDistance | None) -> Rounds:
    """Summaries after every round of trajectories with all of their samples."""
    return {count: Predictions.of(trajectories.first(count), distance) for count in AUTO_ROUNDS}


@dataclass(frozen=True)
class RoundComparisons:
    """On which side of their boundaries the values of a round are, with the margins of the round.

    Every comparison is (n,): 1 if it holds, 0 if not, and NaN if a later round may change that.

    Attributes:
        ood: Whether an image is flagged as out of distribution; None without a threshold.
        unfamiliar: Whether its features are flagged; None without a threshold.
    """

    summary: Predictions
    margins: RoundMargins
    ood: _Floats | None
    unfamiliar: _Floats | None

    def probability(self, classes: Sequence[int], threshold: float) -> _Floats:
        """Whether the summed probability of these classes is at least the threshold."""
        value = _log_odds(self.summary.probabilities[:, list(classes)].sum(dim=-1))
        return _reaches(value, _log_odds(threshold), self.margins.log_odds)

    def entropy(self, threshold: float) -> _Floats:
        """Whether the entropy is at least the threshold in nats."""
        return _reaches(self.summary.entropy.numpy(), threshold, self.margins.entropy)

    def feature_distance(self, threshold: float) -> _Floats:
        """Whether the feature distance is at least the threshold; only if `unfamiliar` is known."""
        distance, margin = self.summary.feature_distance, self.margins.feature_distance
        assert distance is not None and margin is not None
        return _reaches(distance.numpy(), threshold, margin)

    def disagreement(self) -> _Floats:
        """Whether the labels of the trajectories differ, which more samples never undo."""
        agreement = self.summary.agreement.numpy()
        return np.where(
            agreement < 0, 1.0, np.where(agreement >= self.margins.agreement, 0.0, np.nan)
        )


Settled = Callable[[RoundComparisons], _Bools]
"""(n,) Whether a decision about an image can no longer change."""


@dataclass(frozen=True)
class StoppingRule:
    """What must be settled: the label, the flags, and what else depends on the answer.

    Attributes:
        msp: Threshold of its flag; None for none.
        feature_distance: Likewise.
        margins: Without them no round ends early.
        settled: Of a decision beyond label and flags, such as that of a policy.
    """

    msp: float | None = None
    feature_distance: float | None = None
    margins: DecisionMargins | None = None
    settled: Settled | None = None

    def ends(self, summary: Predictions, samples: int) -> _Bools:
        """(n,) True for an image that needs no more samples; False without margins.

        `summary` is that after a round of `samples` per adapter.
        """
        margins = None if self.margins is None else self.margins.of_round(samples)
        if margins is None:
            return np.zeros(len(summary.msp), bool)
        compared = self._compared(summary, margins)
        ends: _Bools = _lead(summary) >= margins.lead
        for flag in (compared.ood, compared.unfamiliar):
            if flag is not None:
                ends &= ~np.isnan(flag)
        if self.settled is not None:
            ends &= self.settled(compared)
        return ends

    def _compared(self, summary: Predictions, margins: RoundMargins) -> RoundComparisons:
        ood = unfamiliar = None
        if self.msp is not None:
            ood = 1 - _reaches(_log_odds(summary.msp), _log_odds(self.msp), margins.log_odds)
        distance, boundary = summary.ood_scores.get("feature_distance"), self.feature_distance
        if distance is not None and boundary is not None and margins.feature_distance is not None:
            unfamiliar = _reaches(distance.value.numpy(), boundary, margins.feature_distance)
        return RoundComparisons(summary, margins, ood, unfamiliar)

    def decisions(self, summary: Predictions) -> npt.NDArray[Any]:
        """(n, 3): the label and both flags, without margins."""
        flags = [np.zeros(len(summary.msp), bool)] * 2
        if self.msp is not None:
            flags[0] = summary.msp.numpy() < self.msp
        if self.feature_distance is not None and "feature_distance" in summary.ood_scores:
            flags[1] = summary.ood_scores["feature_distance"].value.numpy() > self.feature_distance
        return np.stack([summary.predicted.numpy(), *flags], axis=1)


class AdaptiveSampling:
    """The rounds of one image, without I/O: the caller runs each draw and adds its trajectories.

        sampling = AdaptiveSampling(draw, rule, distance)
        while sampling.next_draw is not None:
            sampling.add(run(sampling.next_draw))

    Args:
        draw: Of all samples that may run; each round runs those that follow the previous one.
        rule: With margins.
        distance: Of the features, None without statistics.

    Attributes:
        summary: Of the rounds so far, if they ended early; else None.
    """

    def __init__(
        self, draw: Draw, rule: StoppingRule, distance: FeatureDistance | None = None
    ) -> None:
        self._rule, self._distance = rule, distance
        self._remaining = iter(draw.rounds())
        self._trajectories: Trajectories | None = None
        self.summary: Predictions | None = None
        self.next_draw: Draw | None = next(self._remaining)

    def add(self, trajectories: Trajectories) -> None:
        """Adds the trajectories of `next_draw` and selects the next round."""
        assert self.next_draw is not None
        earlier = self._trajectories
        self._trajectories = trajectories if earlier is None else earlier.then(trajectories)
        following = next(self._remaining, None)
        self.next_draw = None if following is None or self._ends() else following

    def _ends(self) -> bool:
        try:
            summary = Predictions.of(self.trajectories, self._distance)
        except NonFiniteError:  # which the answer reports
            return True
        ends = bool(self._rule.ends(summary, int(self.trajectories.samples)))
        self.summary = summary if ends else None
        return ends

    @property
    def trajectories(self) -> Trajectories:
        """Those of the rounds so far, with their samples in order."""
        assert self._trajectories is not None
        return self._trajectories


def _log_odds(probability: Tensor | float) -> Any:
    """The logarithm of p / (1 - p), finite for every probability; a number or an array."""
    limited = np.clip(np.asarray(probability), MIN_PROBABILITY, 1 - 2**-53)
    return np.log(limited) - np.log1p(-limited)


def _lead(summary: Predictions) -> _Floats:
    """(n,) log-odds of the first class against the second."""
    first, second = summary.probabilities.clamp_min(MIN_PROBABILITY).topk(2).values.T
    lead: _Floats = (first.log() - second.log()).numpy()
    return lead


def _reaches(value: _Floats, boundary: float, margin: float) -> _Floats:
    """1 for a value of at least the boundary, else 0, and NaN within the margin of it."""
    return np.where(np.abs(value - boundary) < margin, np.nan, value >= boundary)


def last_rounds(rounds: Rounds, rule: StoppingRule) -> Tensor:
    """(n,) int64, the samples per adapter with which each image ends."""
    ends = np.full(len(rounds[MAX_AUTO_SAMPLES].msp), MAX_AUTO_SAMPLES)
    for samples in reversed(_MARGIN_ROUNDS):
        ends[rule.ends(rounds[samples], samples)] = samples
    return torch.from_numpy(ends)


def fit_margins(
    trajectories: Trajectories,
    groups: npt.NDArray[np.int64],
    distance: FeatureDistance | None,
    rule: StoppingRule,
    options: Options,
    data: str,
) -> DecisionMargins | None:
    """Fits the margins to trajectories with `MAX_AUTO_SAMPLES` samples; None for too few images.

    `groups` (n,) has the lesion of each image, `rule` the thresholds of the flags, `options` are
    those of the trajectories, and `data` describes the images.
    """
    count, names = len(trajectories.samples), np.unique(groups)
    if count < MIN_IMAGES or len(names) < 2:
        return None
    # Images come in the order of their names, which may be that of their classes.
    chosen = np.random.default_rng(0).permutation(names)[: len(names) // 2]
    first = torch.from_numpy(np.isin(groups, chosen))
    halves = [
        summaries_by_round(trajectories.images(part), distance and distance.images(part))
        for part in (first, ~first)
    ]
    for level in _LEVELS:
        agreeing = (
            _agreeing(tested, replace(rule, margins=_margins_at(fitted, level, options, data)))
            for fitted, tested in (halves, reversed(halves))
        )
        agreement = sum(agreeing) / count
        if agreement >= _TARGET_AGREEMENT:
            break
    return _margins_at(summaries_by_round(trajectories, distance), level, options, data, agreement)


def _agreeing(rounds: Rounds, rule: StoppingRule) -> int:
    ends = last_rounds(rounds, rule).numpy()
    last = rule.decisions(rounds[MAX_AUTO_SAMPLES])
    return sum(
        int((rule.decisions(summary) == last).all(axis=1)[ends == samples].sum())
        for samples, summary in rounds.items()
    )


def _margins_at(
    rounds: Rounds, level: float, options: Options, data: str, agreement: float = 0.0
) -> DecisionMargins:
    """Margins that contain a share `level` of the images each."""
    last = rounds[MAX_AUTO_SAMPLES]
    return DecisionMargins(
        level=level,
        agreement=agreement,
        options=options,
        rounds=tuple(_round(rounds[samples], last, samples, level) for samples in _MARGIN_ROUNDS),
        images=len(last.msp),
        data=data,
    )


def _round(summary: Predictions, last: Predictions, samples: int, level: float) -> RoundMargins:
    label = summary.predicted
    same = (label == last.predicted).numpy()
    lead = np.where(same, 1, -1) * _lead(summary)  # negative if the last label is another one
    of_label = last.probabilities.gather(1, label[:, None])[:, 0]
    agreement = np.maximum(0, (summary.agreement - last.agreement).numpy())
    distances = [
        of.ood_scores["feature_distance"].value
        for of in (summary, last)
        if "feature_distance" in of.ood_scores
    ]

    def margin(differences: _Floats) -> float:
        """A share `level` of the absolute differences does not exceed it."""
        ordered = np.sort(np.abs(differences))
        return float(ordered[max(0, math.ceil(level * len(ordered)) - 1)])

    return RoundMargins(
        samples=samples,
        lead=margin(lead - _lead(last)),
        log_odds=margin(_log_odds(summary.msp) - _log_odds(of_label)),
        entropy=margin((summary.entropy - last.entropy).numpy()),
        agreement=margin(agreement),
        feature_distance=margin((distances[0] - distances[1]).numpy()) if distances else None,
    )
