"""Adaptive sampling, `samples="auto"`: when the rounds of an image end, and the fit of the margins.

The rounds run the first samples of a request for `MAX_AUTO_SAMPLES` (`ROUNDS`), none of them twice.

A decision is settled if the value behind it is further from its boundary than the margin that
`eulerlora calibrate` fitted for the round. The rule depends on the image's trajectories only.

The margin of a value and a round is a quantile, the level, of its absolute difference from
`MAX_AUTO_SAMPLES` samples. The level is the smallest one with which the answers of `samples="auto"`
have the label and flags of that number of samples in a share `TARGET_AGREEMENT` of the images,
where the margins come from the other half of the images.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from eulerlora.scores.uncertainty import summarise
from eulerlora_contract.answers import Reason
from eulerlora_contract.sampling import DEFAULT_SAMPLES
from eulerlora_contract.settings import NotNegative, PositiveInt, Probability, Settings

MAX_AUTO_SAMPLES = DEFAULT_SAMPLES
ROUNDS = (1, 2, MAX_AUTO_SAMPLES)
"""Samples per adapter after each round."""
MARGIN_ROUNDS = ROUNDS[:-1]
MIN_PROBABILITY = 1e-30
"""Lower limit of a probability in log-odds."""
TARGET_AGREEMENT = 0.998
"""Of the label and flags, so that with the disposition of a policy 99.5% remain."""
LEVELS = (0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0)
MIN_IMAGES = 100
"""With fewer images there are no margins."""


class RoundMargins(Settings):
    """The margins of a round of samples: a decision is settled if its value is further from its
    boundary than that (`eulerlora.sampling.adaptive`).

    Attributes:
        samples: Per adapter.
        lead: Log-odds of the first class against the second.
        log_odds: Of the probability of a class or of several.
        entropy: In nats.
        agreement: Least log-odds of the label among trajectories.
        feature_distance: None without statistics.
    """

    samples: Annotated[int, Field(ge=0)]
    lead: NotNegative
    log_odds: NotNegative
    entropy: NotNegative
    agreement: NotNegative
    feature_distance: NotNegative | None = None


class DecisionMargins(Settings):
    """The margins by which `samples=auto` decides, for the checkpoint's sampler.

    Attributes:
        level: Share of the images within each margin.
        agreement: Share of the images whose label and flags are those of `compared_with` samples.
            They were fitted on the `images` images of `data` (`eulerlora.sampling.adaptive`).
    """

    level: Probability
    agreement: Probability
    compared_with: PositiveInt
    rounds: tuple[RoundMargins, ...]
    images: PositiveInt
    data: str

    def of_round(self, samples: int) -> RoundMargins | None:
        """Returns the margins after a number of samples per adapter, or None."""
        return next((entry for entry in self.rounds if entry.samples == samples), None)


@dataclass(frozen=True)
class RoundAnswer:
    """The answer of one image after a round.

    Attributes:
        samples: Per adapter.
        probabilities: Of the classes.
        lead: Log-odds of the first class against the second.
        entropy: In nats.
        agreement: The least log-odds of the label against another class among the trajectories;
            negative if a trajectory has another label.
        distance: Feature distance; None without feature statistics.
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

    Args:
        trajectories: (n, adapters, samples, classes) probabilities.
        samples: As in `RoundAnswer`.
        distances: (n,), as in `RoundAnswer`.
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
    change it.

    Attributes:
        margins: Of the answer's round.
    """

    answer: RoundAnswer
    margins: RoundMargins

    @property
    def label_is_settled(self) -> bool:
        """True if the first class leads by at least the margin."""
        return self.answer.lead >= self.margins.lead

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


PolicyIsSettled = Callable[[SettledDecisions], bool]


@dataclass(frozen=True)
class StoppingRule:
    """What must be settled: the label, the flags, and the decision of a policy.

    Attributes:
        msp: Thresholds of the flags; None if there is no flag.
        feature_distance: Thresholds of the flags; None if there is no flag.
        margins: None while they are not fitted; no round then ends early.
        policy: True if the decision of a policy is settled.
    """

    msp: float | None = None
    feature_distance: float | None = None
    margins: DecisionMargins | None = None
    policy: PolicyIsSettled | None = None

    def ends(self, answer: RoundAnswer) -> bool:
        """True if no more samples are needed; False for a round without margins."""
        margins = None if self.margins is None else self.margins.of_round(answer.samples)
        if margins is None:
            return False
        settled = SettledDecisions(answer, margins)
        known = [
            threshold is None or reaches(threshold) is not None
            for threshold, reaches in (
                (self.msp, settled.msp_reaches),
                (self.feature_distance, settled.distance_reaches),
            )
        ]
        decided = self.policy is None or self.policy(settled)
        return settled.label_is_settled and all(known) and decided

    def states(
        self, decisions: SettledDecisions, target: Sequence[int], urgent: float, entropy_nats: float
    ) -> dict[Reason, bool | None]:
        """Returns which reasons of a triage policy apply: True, False, or None if not settled.

        Args:
            decisions: On the answer after a round.
            target: Indices of the target classes.
            urgent: The policy's threshold of the summed probability of the target classes.
            entropy_nats: The policy's threshold of the entropy.
        """
        familiar = True if self.msp is None else decisions.msp_reaches(self.msp)
        return {
            Reason.UNFAMILIAR: self.feature_distance is not None
            and decisions.distance_reaches(self.feature_distance),
            Reason.OOD_UNKNOWN: self.msp is None,
            Reason.OUT_OF_DISTRIBUTION: None if familiar is None else not familiar,
            Reason.TARGET_CLASSES: decisions.reaches(target, urgent),
            Reason.HIGH_ENTROPY: decisions.entropy_reaches(entropy_nats),
            Reason.TRAJECTORIES_DISAGREE: decisions.trajectories_disagree,
        }


RoundAnswers = Mapping[int, Sequence[RoundAnswer]]
"""The answers of the same images by the number of samples of the round (`ROUNDS`)."""


def fit_margins(answers: RoundAnswers, rule: StoppingRule, data: str) -> DecisionMargins | None:
    """Returns the margins; None for fewer than `MIN_IMAGES` images.

    Args:
        answers: To the same images after every round, by samples per adapter.
        rule: With the thresholds of the flags.
        data: Describes the images.
    """
    count = len(answers[MAX_AUTO_SAMPLES])
    if count < MIN_IMAGES:
        return None
    half = count // 2
    folds = [(slice(half), slice(half, None)), (slice(half, None), slice(half))]
    for level in LEVELS:
        agreeing = (
            _agreeing(_part(answers, test), _part(answers, fit), level, rule, data)
            for fit, test in folds
        )
        agreement = sum(agreeing) / count
        if agreement >= TARGET_AGREEMENT:
            break
    return margins_at(answers, level, data, agreement)


def margins_at(
    answers: RoundAnswers, level: float, data: str, agreement: float = 0.0
) -> DecisionMargins:
    """Returns the margins, each of which contains a share `level` of the images.

    `agreement` and `data` are as in `DecisionMargins`.
    """
    last = answers[MAX_AUTO_SAMPLES]
    return DecisionMargins(
        level=level,
        agreement=agreement,
        compared_with=MAX_AUTO_SAMPLES,
        rounds=tuple(_round(answers[samples], last, samples, level) for samples in MARGIN_ROUNDS),
        images=len(last),
        data=data,
    )


def last_rounds(answers: RoundAnswers, rule: StoppingRule) -> list[int]:
    """Returns the round at which each image ends, by a rule with margins."""
    return [
        next(
            (samples for samples in MARGIN_ROUNDS if rule.ends(answers[samples][index])),
            MAX_AUTO_SAMPLES,
        )
        for index in range(len(answers[MAX_AUTO_SAMPLES]))
    ]


def _agreeing(
    tested: RoundAnswers,
    fitted: RoundAnswers,
    level: float,
    rule: StoppingRule,
    data: str,
) -> int:
    """Returns the number of tested images with the decisions of the last round."""
    ends = last_rounds(tested, replace(rule, margins=margins_at(fitted, level, data)))
    return sum(
        _decisions(tested[samples][index], rule) == _decisions(last, rule)
        for index, (samples, last) in enumerate(zip(ends, tested[MAX_AUTO_SAMPLES], strict=True))
    )


def _decisions(answer: RoundAnswer, rule: StoppingRule) -> tuple[int, bool, bool]:
    return (
        answer.label,
        rule.msp is not None and answer.msp < rule.msp,
        rule.feature_distance is not None
        and answer.distance is not None
        and answer.distance > rule.feature_distance,
    )


def _part(answers: RoundAnswers, part: slice) -> RoundAnswers:
    return {samples: values[part] for samples, values in answers.items()}


def _round(
    answers: Sequence[RoundAnswer], last: Sequence[RoundAnswer], samples: int, level: float
) -> RoundMargins:
    pairs = list(zip(answers, last, strict=True))
    distances = [
        abs(one.distance - other.distance)
        for one, other in pairs
        if one.distance is not None and other.distance is not None
    ]
    return RoundMargins(
        samples=samples,
        lead=_quantile([abs(_lead(one, other) - other.lead) for one, other in pairs], level),
        log_odds=_quantile(
            [
                abs(log_odds(one.msp) - log_odds(other.probabilities[one.label]))
                for one, other in pairs
            ],
            level,
        ),
        entropy=_quantile([abs(one.entropy - other.entropy) for one, other in pairs], level),
        agreement=_quantile(
            [max(0.0, one.agreement - other.agreement) for one, other in pairs], level
        ),
        feature_distance=_quantile(distances, level) if distances else None,
    )


def _lead(answer: RoundAnswer, last: RoundAnswer) -> float:
    """Returns the lead of an answer, negative if the last answer has another label."""
    return answer.lead if answer.label == last.label else -answer.lead


def _quantile(values: Sequence[float], level: float) -> float:
    """Returns the value that a share `level` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(level * len(values)) - 1)]
