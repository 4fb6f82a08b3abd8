"""Adaptive sampling, `samples="auto"`: rounds of samples until an image's answer converges.

An answer is converged when its label, its OOD flag and its entropy are known to a given standard
error. The rule depends on the image's trajectories only; docs/sampling.md has its derivation.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eulerlora.feature_distance import FeatureDistance
from eulerlora.round_answer import MAX_ENTROPY_ERROR_NATS, round_answers
from eulerlora.settings import Draw
from eulerlora.stopping_rule import StoppingRule
from eulerlora.student_t import student_t_quantile

ROUNDS = (2, 4, 8, 12, 16)
"""Samples per adapter after each round. With balanced samples the variance of the mean is lowest at
2 and at multiples of 4.
"""

MAX_SAMPLES = ROUNDS[-1]

DECISION_Z = 2.0
"""Normal quantile: the standard errors by which the most probable class must lead, and by which the
MSP must differ from the threshold.
"""

INTERVAL_ERRORS = 2.0
"""Half the width of a stated 95% interval, in standard errors."""

REPEATED_Z = 2.447
"""Normal quantile of 95% intervals that hold at all `ROUNDS` together (Pocock's bound; Jennison and
Turnbull, Group Sequential Methods, 1999, chapter 9), for information proportional to the samples.
"""


class RoundOutput(Protocol):
    """The output of a round; see `eulerlora.inference.ImageOutput`."""

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
    rule: when the rounds end. distance: of the features, None without statistics. det_first: for
    mode adaptive, which begins with a pass in mode det and needs a rule with margins.
    """

    def __init__(
        self,
        draw: Draw,
        adapters: int,
        rule: StoppingRule,
        distance: FeatureDistance | None = None,
        det_first: bool = False,
    ) -> None:
        assert not det_first or rule.margins is not None
        self._adapters, self._rule, self._distance = adapters, rule, distance
        det = draw.model_copy(update={"mode": "det", "samples": 1, "first": 0})
        self._remaining = itertools.chain([det] * det_first, round_draws(draw))
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
        if self._rule.margins is None:
            return bool(is_converged(trajectories, self._rule.msp))
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
        """The number of rows of all rounds, also of a first pass in mode det."""
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


def is_converged(trajectories: Tensor, threshold: float | None) -> Tensor:
    """True where no more samples are needed: (...), bool. Trajectories with NaN are converged.

    trajectories: as in `standard_errors`. threshold: OOD threshold on the MSP; None if the image
    gets no OOD flag.
    """
    mean = trajectories.double().mean(dim=(-3, -2))
    errors = _errors_of_mean(trajectories)
    first, second = mean.topk(2, dim=-1).values.unbind(dim=-1)
    quantile = student_t_quantile(DECISION_Z, _degrees_of_freedom(trajectories))
    converged = errors.entropy * quantile / DECISION_Z <= MAX_ENTROPY_ERROR_NATS
    converged &= first - second >= quantile * errors.margin
    if threshold is not None:
        converged &= (first - threshold).abs() >= quantile * errors.msp
    return converged | mean.isnan().any(dim=-1)


def samples_until_converged(trajectories: Tensor, threshold: float | None) -> Tensor:
    """Returns the samples per adapter that `AdaptiveSampling` runs: (...), int64, from `ROUNDS`.

    trajectories: (..., adapters, samples, classes) with at least `MAX_SAMPLES` samples, in the
    order in which the rounds run them. threshold: as in `is_converged`.
    """
    counts = torch.full(trajectories.shape[:-3], MAX_SAMPLES)
    for samples in reversed(ROUNDS[:-1]):
        counts[is_converged(trajectories[..., :samples, :], threshold)] = samples
    return counts


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
