"""Class weights from the effective number of samples (Cui et al., CVPR 2019)."""

from torch import Tensor


def effective_number_weights(counts: Tensor, beta: float) -> Tensor:
    """Weights proportional to (1 - beta) / (1 - beta^n), summing to 1.

    counts: (classes,) training images of each class, all at least 1. beta: in [0, 1); 0 weighs
    all classes alike. Returns (classes,) float64.
    """
    weights = (1 - beta) / (1 - beta ** counts.double())
    return weights / weights.sum()
