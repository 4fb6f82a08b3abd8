"""Fit of decision margins: how far a value may move between a round and the last one.

The margin of a value and a round is a quantile, the level, of its absolute difference from the
largest number of samples. The level is the smallest one with which the answers of `samples="auto"`
have the label and flags of the largest number of samples in a share `TARGET_AGREEMENT` of the
images, where the margins come from the other half of the images.
"""

import math
from collections.abc import Mapping, Sequence

from eulerlora.sampling.adaptive import (
    MAX_AUTO_SAMPLES,
    ROUNDS,
    DecisionMargins,
    RoundAnswer,
    RoundMargins,
    StoppingRule,
    log_odds,
)

DET_ROUND = 0
MARGIN_ROUNDS = (DET_ROUND, *ROUNDS[:-1])
TARGET_AGREEMENT = 0.995
LEVELS = (0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0)
MIN_IMAGES = 100
"""With fewer images there are no margins."""

RoundAnswers = Mapping[int, Sequence[RoundAnswer]]
"""The answers of the same images by round: `DET_ROUND` and the numbers of `ROUNDS`."""


def fit_margins(answers: RoundAnswers, rule: StoppingRule, data: str) -> DecisionMargins | None:
    """Returns the margins; None for fewer than `MIN_IMAGES` images.

    rule: with the thresholds of the flags. data: describes the images.
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
    """Returns the margins at a level. agreement: as in `DecisionMargins`."""
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
    """Returns the round at which each image ends. rule: with margins."""
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
    with_margins = StoppingRule(
        rule.msp, rule.feature_distance, margins_at(fitted, level, data), rule.policy
    )
    ends = last_rounds(tested, with_margins)
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
