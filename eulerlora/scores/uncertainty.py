"""Mean over trajectories: its entropy, mutual information, maximum and parts of its variance."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import VIEWS


@dataclass(frozen=True)
class Uncertainty:
    """Summary of the trajectories of n images; float64, entropies in nats.

    Attributes:
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


_SUM_TOLERANCE = 0.01
"""Of probabilities from 1, for those in bfloat16."""


def summarise(trajectories: Tensor) -> Uncertainty:
    """The uncertainty of n images.

    Args:
        trajectories: (n, trajectories, classes) probabilities, such as `logits.softmax(-1)`.

    Raises:
        SettingsError: For other shapes, and for values that are no probabilities; NaN stays NaN.
    """
    expected = "trajectories: expected probabilities (n, trajectories, classes)"
    shape = shape_of(trajectories)
    if len(shape) != 3 or not shape[1] or not trajectories.is_floating_point():
        raise SettingsError(f"{expected}, got {kind_of(trajectories)}")
    exact = trajectories.double()
    if ((exact.sum(dim=-1) - 1).abs() > _SUM_TOLERANCE).any() or (exact < 0).any():
        raise SettingsError(f"{expected}, got other values; pass logits.softmax(-1)")
    return uncertainty_of(exact)


def uncertainty_of(trajectories: Tensor) -> Uncertainty:
    """As `summarise`, of float64 probabilities that need no check."""
    mean = trajectories.mean(dim=1)
    entropy = torch.special.entr(mean).sum(dim=-1)
    expected = torch.special.entr(trajectories).sum(dim=-1).mean(dim=-1)
    return Uncertainty(
        probabilities=mean,
        entropy=entropy,
        expected_entropy=expected,
        mutual_information=(entropy - expected).clamp_min(0),
        msp=mean.amax(dim=-1),
    )


def shape_of(value: object) -> tuple[int, ...]:
    """The shape of a tensor, () for another value."""
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def kind_of(value: object) -> str:
    """Data type and shape of a tensor or array, or the type of another value."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    return type(value).__name__


@dataclass(frozen=True)
class Variance:
    """The parts of the variance of a class drawn from the mean probabilities; (n,), float64.

    Their sum is 1 minus the sum of the squared mean probabilities, 0 to 1 (law of total variance,
    summed over the indicators of the classes).

    Attributes:
        between_adapters: Variance of the adapters' mean probabilities.
        between_views: Variance of the views' mean probabilities, after those of the adapters are
            subtracted; with one sample of a view it contains the part between samples.
        between_samples: The rest between trajectories.
        within: Variance of a class that is drawn from the probabilities of one trajectory.
    """

    between_adapters: Tensor
    between_views: Tensor
    between_samples: Tensor
    within: Tensor


def variance_of(trajectories: Tensor, views: Tensor) -> Variance:
    """The parts of the variance.

    Args:
        trajectories: (n, adapters, samples, classes) probabilities.
        views: (n, adapters, samples), the view of each trajectory; a part between views needs
            several.
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
