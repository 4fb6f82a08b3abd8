"""Mean over trajectories: its entropy, mutual information, maximum and standard errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

INTERVAL_ERRORS = 2.0
"""Half the width of a stated 95% interval, in standard errors."""
REPEATED_Z = 2.447
"""Normal quantile of 95% intervals that hold at all `ROUNDS` together (Pocock's bound; Jennison and
Turnbull, Group Sequential Methods, 1999, chapter 9), for information proportional to the samples.
"""
BISECTIONS = 60


@dataclass(frozen=True)
class Uncertainty:
    """Summary of the trajectories of n images; float64, entropies in nats.

    probabilities: (n, classes), the arithmetic mean of the trajectories' softmax.
    entropy: (n,), predictive entropy H of that mean.
    expected_entropy: (n,), mean of the trajectories' entropies.
    mutual_information: (n,), the difference of the two, at least 0.
    msp: (n,), maximum softmax probability: the maximum of the mean.
    """

    probabilities: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    msp: Tensor


def summarise(trajectories: Tensor) -> Uncertainty:
    """Returns the uncertainty of n images.

    trajectories: (n, trajectories, classes) probabilities.
    """
    exact = trajectories.double()
    mean = exact.mean(dim=1)
    entropy = torch.special.entr(mean).sum(dim=-1)
    expected = torch.special.entr(exact).sum(dim=-1).mean(dim=-1)
    return Uncertainty(
        probabilities=mean,
        entropy=entropy,
        expected_entropy=expected,
        mutual_information=(entropy - expected).clamp_min(0),
        msp=mean.amax(dim=-1),
    )


def summarise_all(blocks: Sequence[Tensor]) -> Uncertainty:
    """Returns the uncertainty of all images of blocks with different numbers of trajectories.

    blocks: at least one, each as in `summarise`.
    """
    summaries = [summarise(block) for block in blocks]
    names = [field.name for field in fields(Uncertainty)]
    return Uncertainty(
        **{name: torch.cat([getattr(part, name) for part in summaries]) for name in names}
    )


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
