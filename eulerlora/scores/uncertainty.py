"""Entropy, mutual information and maximum probability of the mean over trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


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
