"""Adaptive sampling, `samples="auto"`: a pass in mode det, then rounds of samples until settled.

A decision is settled if the value behind it is further from its boundary than the margin that
`eulerlora calibrate` fitted for the round (`eulerlora.sampling.decision_margins`). The rule depends
on the image's trajectories only.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor

from eulerlora.scores.feature_distance import FeatureDistance
from eulerlora.scores.uncertainty import summarise
from eulerlora.settings import Draw, Margin
from eulerlora_client.settings import PositiveInt, Probability, Settings

MIN_PROBABILITY = 1e-30
"""Lower limit of a probability in log-odds."""
MAX_ENTROPY_ERROR_NATS = 0.06
"""An entropy that may change by more is not settled."""


class RoundMargins(Settings):
    """The margins of a round of samples: a decision is settled if its value is further from its
    boundary than that (`eulerlora.sampling.adaptive`).

    samples: per adapter, 0 for the pass in mode det. lead: log-odds of the first class against the
    second. log_odds: of the probability of a class or of several. entropy: in nats. agreement:
    least log-odds of the label among trajectories. feature_distance: None without statistics.
    """

    samples: Annotated[int, Field(ge=0)]
    lead: Margin
    log_odds: Margin
    entropy: Margin
    agreement: Margin
    feature_distance: Margin | None = None


class DecisionMargins(Settings):
    """The margins by which `samples=auto` decides, for the checkpoint's sampler.

    level: share of the images within each margin. agreement: share of the images whose label and
    flags are those of `compared_with` samples. They were fitted on the `images` images of `data`
    (`eulerlora.sampling.decision_margins`).
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


PolicyIsSettled = Callable[[SettledDecisions], bool]


@dataclass(frozen=True)
class StoppingRule:
    """What must be settled: the label, the flags, the entropy, and the decision of a policy.

    msp, feature_distance: thresholds of the flags; None if there is no flag. margins: None while
    they are not fitted; no round then ends early.
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
        return settled.label_is_settled and settled.entropy_is_settled and all(known) and decided


ROUNDS = (2, 4, 8, 12, 16)
"""Samples per adapter after each round. With balanced samples the variance of the mean is lowest at
2 and at multiples of 4.
"""

MAX_AUTO_SAMPLES = ROUNDS[-1]

INTERVAL_ERRORS = 2.0
"""Half the width of a stated 95% interval, in standard errors."""

REPEATED_Z = 2.447
"""Normal quantile of 95% intervals that hold at all `ROUNDS` together (Pocock's bound; Jennison and
Turnbull, Group Sequential Methods, 1999, chapter 9), for information proportional to the samples.
"""


class RoundOutput(Protocol):
    """The output of a round; see `eulerlora.nn.runtime.ImageOutput`."""

    @property
    def log_probabilities(self) -> Tensor: ...

    @property
    def features(self) -> Tensor: ...


class AdaptiveSampling:
    """The rounds of one image, without I/O: the caller runs each draw and adds its output.

        sampling = AdaptiveSampling(draw, adapters, rule, distance)
        while sampling.next_draw is not None:
            sampling.add(run(sampling.next_draw))

    draw: in mode `stoch`; its number of samples is ignored. adapters: number of adapters.
    rule: with margins. distance: of the features, None without statistics.
    """

    def __init__(
        self,
        draw: Draw,
        adapters: int,
        rule: StoppingRule,
        distance: FeatureDistance | None = None,
    ) -> None:
        assert rule.margins is not None
        self._adapters, self._rule, self._distance = adapters, rule, distance
        det = draw.model_copy(update={"mode": "det", "samples": 1, "first": 0})
        self._remaining = itertools.chain([det], round_draws(draw))
        self._rounds: list[RoundOutput] = []
        self._draw = draw
        self._rows = 0
        self.next_draw: Draw | None = next(self._remaining)

    def add(self, output: RoundOutput) -> None:
        """Adds the output of `next_draw` and selects the next round."""
        assert self.next_draw is not None
        if self._draw.mode == "det":  # its rows are not part of a sampled answer
            self._rounds.clear()
        self._draw = self.next_draw
        self._rounds.append(output)
        self._rows += len(output.log_probabilities)
        self.next_draw = None if self._ends() else next(self._remaining, None)

    def _ends(self) -> bool:
        trajectories = self.log_probabilities.exp()
        if trajectories.isnan().any():
            return True
        distances = None
        if self._distance is not None:
            features = [part.features.unflatten(0, (self._adapters, -1)) for part in self._rounds]
            distances = self._distance(torch.cat(features, dim=1).flatten(0, 1).mean(dim=0)[None])
        samples = 0 if self._draw.mode == "det" else self._draw.samples
        (answer,) = round_answers(trajectories[None], samples, distances)
        return self._rule.ends(answer)

    @property
    def log_probabilities(self) -> Tensor:
        """The output of the answer's rounds so far, (adapters, samples, classes)."""
        parts = [part.log_probabilities for part in self._rounds]
        return torch.cat([part.unflatten(0, (self._adapters, -1)) for part in parts], dim=1)

    @property
    def draw(self) -> Draw:
        """The draw of all samples of the answer so far."""
        return self._draw.model_copy(update={"first": 0})

    @property
    def kept(self) -> int:
        """The number of last rounds that the answer consists of."""
        return len(self._rounds)

    @property
    def rows(self) -> int:
        """The number of rows of all rounds, with those of the pass in mode det."""
        return self._rows


def round_draws(draw: Draw) -> Iterator[Draw]:
    """Yields the draw of each round; a round runs the samples that follow the previous round's.

    draw: in mode `stoch`; its number of samples is ignored.
    """
    for first, samples in itertools.pairwise((0, *ROUNDS)):
        yield draw.model_copy(update={"first": first, "samples": samples})


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors of statistics of the mean over samples, all of shape (...), float64.

    msp: of the probability of the most probable class. margin: of its difference to the
    probability of the second class. entropy: in nats, by the delta method.
    """

    msp: Tensor
    margin: Tensor
    entropy: Tensor


def standard_errors(trajectories: Tensor) -> StandardErrors:
    """Returns the standard errors of the mean over all trajectories, corrected for `auto`.

    A statistic plus and minus `INTERVAL_ERRORS` errors is a 95% interval for independent normal
    samples at whatever round the image stops: the errors are widened by Student's quantile at
    `REPEATED_Z`, because the choice of the round depends on the samples, and few samples estimate
    their variance badly. Balanced samples have smaller errors. docs/sampling.md has the measured
    coverage. trajectories: (..., adapters, samples, classes) probabilities, at least two samples.
    """
    errors = _errors_of_mean(trajectories)
    widening = student_t_quantile(REPEATED_Z, _degrees_of_freedom(trajectories)) / INTERVAL_ERRORS
    return StandardErrors(
        msp=widening * errors.msp,
        margin=widening * errors.margin,
        entropy=widening * errors.entropy,
    )


def _errors_of_mean(trajectories: Tensor) -> StandardErrors:
    """Returns the standard errors of the mean, by the variance of the samples of each adapter.

    trajectories: as in `standard_errors`. The adapters are fixed and their samples are random:
    Var = sum over a of s_a^2 / (adapters^2 samples). This is unbiased for independent samples and
    on average too large for balanced ones.
    """
    exact = trajectories.double()
    mean = exact.mean(dim=(-3, -2))
    first, second = _probabilities_of(exact, mean.topk(2, dim=-1).indices)
    slope = torch.xlogy(exact, mean[..., None, None, :]).sum(dim=-1)  # of the entropy, negative
    return StandardErrors(
        msp=_error_of_values(first),
        margin=_error_of_values(first - second),
        entropy=_error_of_values(slope),
    )


def _degrees_of_freedom(trajectories: Tensor) -> int:
    """Returns those of the variance over samples. trajectories: as in `standard_errors`."""
    adapters, samples = trajectories.shape[-3:-1]
    return adapters * (samples - 1)


def _probabilities_of(trajectories: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
    """Returns the probabilities (..., adapters, samples) of each of the classes (..., n)."""
    indices = classes[..., None, None, :].expand(*trajectories.shape[:-1], -1)
    return trajectories.gather(-1, indices).unbind(dim=-1)


def _error_of_values(values: Tensor) -> Tensor:
    """Returns (...): the standard error of the mean of values (..., adapters, samples)."""
    adapters, samples = values.shape[-2:]
    variance = (values - values.mean(dim=-1, keepdim=True)).square().sum(dim=-1) / (samples - 1)
    return (variance.mean(dim=-1) / (adapters * samples)).sqrt()


BISECTIONS = 60


@cache
def student_t_quantile(normal_quantile: float, degrees_of_freedom: int) -> float:
    """Returns the quantile of Student's t at the probability of a positive normal quantile.

    degrees_of_freedom: at least 1.
    """
    wanted = math.erf(normal_quantile / math.sqrt(2))
    low, high = 0.0, math.pi / 2
    for _ in range(BISECTIONS):
        angle = (low + high) / 2
        if _central_probability(angle, degrees_of_freedom) < wanted:
            low = angle
        else:
            high = angle
    return math.sqrt(degrees_of_freedom) * math.tan(low)


def _central_probability(angle: float, degrees_of_freedom: int) -> float:
    """Returns P(|T| < sqrt(degrees_of_freedom) tan(angle)); Abramowitz and Stegun, 26.7.3-4."""
    odd = degrees_of_freedom % 2
    sine, cosine = math.sin(angle), math.cos(angle)
    series, term = 0.0, cosine**odd
    for power in range(odd, degrees_of_freedom - 1, 2):
        series += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return (angle + sine * series) * 2 / math.pi if odd else sine * series
