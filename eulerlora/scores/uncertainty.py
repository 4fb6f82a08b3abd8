"""Mean over trajectories: its entropy, mutual information, maximum and standard errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora_contract.sampling import VIEWS


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


@dataclass(frozen=True)
class Variance:
    """The parts of the variance of a class drawn from the mean probabilities; (n,), float64.

    Their sum is 1 minus the sum of the squared mean probabilities, 0 to 1 (law of total variance,
    summed over the indicators of the classes). between_adapters: variance of the adapters' mean
    probabilities. between_views: variance of the views' mean probabilities, after those of the
    adapters are subtracted; with one sample of a view it contains the part between samples.
    between_samples: the rest between trajectories. within: variance of a class that is drawn from
    the probabilities of one trajectory.
    """

    between_adapters: Tensor
    between_views: Tensor
    between_samples: Tensor
    within: Tensor


def variance_of(trajectories: Tensor, views: Tensor) -> Variance:
    """Returns the parts of the variance.

    trajectories: (n, adapters, samples, classes) probabilities. views: (n, adapters, samples),
    the view of each trajectory; a part between views needs several.
    """
    exact = trajectories.double()
    of_adapters = exact.mean(dim=2, keepdim=True)
    deviations = of_adapters - of_adapters.mean(dim=1, keepdim=True)
    rest = (exact - of_adapters).flatten(1, 2)  # (n, trajectories, classes)
    seen = F.one_hot(views.flatten(1), VIEWS[-1]).double()  # (n, trajectories, views)
    sums, counts = seen.mT @ rest, seen.sum(dim=1)  # (n, views, classes), (n, views)
    count = rest.shape[1]
    between_views = (sums.square().sum(dim=-1) / counts.clamp_min(1)).sum(dim=-1) / count
    between_views *= (counts > 0).sum(dim=-1) > 1  # exactly 0 for a single view
    within_adapters = rest.square().sum(dim=(1, 2)) / count
    return Variance(
        between_adapters=deviations.square().sum(dim=-1).mean(dim=(1, 2)),
        between_views=between_views,
        between_samples=(within_adapters - between_views).clamp_min(0),
        within=(exact * (1 - exact)).sum(dim=-1).mean(dim=(1, 2)).clamp_min(0),
    )


INTERVAL_ERRORS = 2.0
"""Half the width of a stated 95% interval, in standard errors."""
REPEATED_Z = 2.447
"""Normal quantile of 95% intervals that hold at all `ROUNDS` together (Pocock's bound; Jennison and
Turnbull, Group Sequential Methods, 1999, chapter 9), for information proportional to the samples.
"""
ANGLES = 1025
"""Number of points of a numerical integral."""


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors of statistics of the mean over samples, all of shape (...), float64.

    msp: of the probability of the most probable class. margin: of its difference to the
    probability of the second class. entropy: in nats, by the delta method.
    """

    msp: Tensor
    margin: Tensor
    entropy: Tensor


Summary = TypeVar("Summary", Uncertainty, Variance, StandardErrors)


def joined(parts: Sequence[Summary]) -> Summary:
    """Returns the summary of the images of all parts, of which there is at least one."""
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    )


def standard_errors(trajectories: Tensor) -> StandardErrors:
    """Returns the standard errors of the mean over all trajectories, corrected for `auto`.

    A statistic plus and minus `INTERVAL_ERRORS` errors is a 95% interval for independent normal
    samples at whatever round the image stops: the errors are widened by Student's quantile at
    `REPEATED_Z`, because the choice of the round depends on the samples, and few samples estimate
    their variance badly. Balanced samples have smaller errors; the measured coverage is in
    docs/explanation/sampling.md. trajectories: (..., adapters, samples, classes) probabilities;
    one sample has no error, NaN.
    """
    exact = trajectories.double()
    mean = exact.mean(dim=(-3, -2))
    first, second = _probabilities_of(exact, mean.topk(2, dim=-1).indices)
    slope = torch.xlogy(exact, mean[..., None, None, :]).sum(dim=-1)  # of the entropy, negative
    return StandardErrors(
        msp=_error_of_mean(first),
        margin=_error_of_mean(first - second),
        entropy=_error_of_mean(slope),
    )


def _probabilities_of(trajectories: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
    """Returns the probabilities (..., adapters, samples) of each of the classes (..., n)."""
    indices = classes[..., None, None, :].expand(*trajectories.shape[:-1], -1)
    return trajectories.gather(-1, indices).unbind(dim=-1)


def _error_of_mean(values: Tensor) -> Tensor:
    """Returns (...): the widened standard error of the mean of values (..., adapters, samples).

    The adapters are fixed and their samples are random: Var = sum over a of v_a with
    v_a = s_a^2 / (adapters^2 samples). This is unbiased for independent samples and on average too
    large for balanced ones. The variances s_a^2 may differ between adapters, so that the degrees of
    freedom are (sum of v_a)^2 / sum of v_a^2 / (samples - 1) (Welch, Biometrika 34, 28, 1947;
    Satterthwaite, Biometrics Bulletin 2, 110, 1946).
    """
    adapters, samples = values.shape[-2:]
    centred = values - values.mean(dim=-1, keepdim=True)
    variances = centred.square().sum(dim=-1) / (samples - 1) / (adapters**2 * samples)
    total, squares = variances.sum(dim=-1), variances.square().sum(dim=-1)
    degrees = torch.where(squares > 0, (samples - 1) * total.square() / squares, 1)
    return student_t_quantile(REPEATED_Z, degrees) / INTERVAL_ERRORS * total.sqrt()


def student_t_quantile(normal_quantile: float, degrees_of_freedom: Tensor) -> Tensor:
    """Returns the quantiles of Student's t at the probability of a positive normal quantile.

    degrees_of_freedom: of any shape, at least 1, not necessarily whole.
    With t = sqrt(degrees) tan(angle), the density of the angle is proportional to
    cos(angle)^(degrees - 1), which is integrated by the trapezoidal rule.
    """
    degrees = degrees_of_freedom.double()
    angles = torch.linspace(0, math.pi / 2, ANGLES, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(angles.cos() ** (degrees[..., None] - 1), angles)
    wanted = math.erf(normal_quantile / math.sqrt(2)) * mass[..., -1:]
    above = torch.searchsorted(mass, wanted).clamp(1, ANGLES - 2)
    low, high = mass.gather(-1, above - 1), mass.gather(-1, above)
    angle = angles[above] + (wanted - low) / (high - low) * angles[1]
    return degrees.sqrt() * angle[..., 0].tan()
