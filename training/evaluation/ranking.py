"""Sums over images in the order of a score, ties kept together."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def sums_by_score(scores: Floats, amounts: Floats) -> Floats:
    """(..., distinct scores): what the images of each distinct score have, the highest first.

    scores: (n,), finite. amounts: (..., n).
    """
    order = np.argsort(-scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=np.inf))
    sums: Floats = np.add.reduceat(amounts[..., order], starts, axis=-1)
    return sums
