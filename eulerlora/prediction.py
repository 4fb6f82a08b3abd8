"""Trajectories of images -> what a user gets of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora.adaptive_sampling import StandardErrors, standard_errors
from eulerlora.errors import NonFiniteError
from eulerlora.uncertainty import Uncertainty, summarise_all


@dataclass(frozen=True)
class Prediction(Uncertainty):
    """The answer for n images; tensors are on the CPU, float64 unless they say otherwise.

    ood: (n,) bool, MSP below the checkpoint's threshold; None without a threshold for this mode,
    number of samples and sampler. samples: (n,) int64, of each adapter, as run.
    standard_errors: of the means over the samples, (n,) each, where `auto` chose their number.
    trajectories: (n, adapters * samples, classes) probabilities, adapter by adapter; where images
    took different numbers of samples, NaN up to the most of them.
    labels: the class name with the highest mean probability, one for each image.
    """

    ood: Tensor | None
    samples: Tensor
    standard_errors: StandardErrors | None
    trajectories: Tensor
    labels: tuple[str, ...]


def prediction_of(
    blocks: Sequence[Tensor], threshold: float | None, classes: Sequence[str], auto: bool
) -> Prediction:
    """The answer for all images of some blocks, each (n, adapters, samples, classes) probabilities.

    auto: whether `auto` chose the numbers of samples. Raises NonFiniteError.
    """
    if not all(each.isfinite().all() for each in blocks):
        raise NonFiniteError("the network gave logits that are NaN or infinite")
    summary = summarise_all([each.flatten(1, 2) for each in blocks])
    most = max(each.shape[2] for each in blocks)
    filled = [F.pad(each, (0, 0, 0, most - each.shape[2]), value=torch.nan) for each in blocks]
    return Prediction(
        **vars(summary),
        ood=None if threshold is None else summary.msp < threshold,
        samples=torch.cat([torch.full(each.shape[:1], each.shape[2]) for each in blocks]),
        standard_errors=_standard_errors(blocks) if auto else None,
        trajectories=torch.cat(filled).flatten(1, 2),
        labels=tuple(classes[k] for k in summary.probabilities.argmax(dim=-1).tolist()),
    )


def _standard_errors(blocks: Sequence[Tensor]) -> StandardErrors:
    found = [standard_errors(each) for each in blocks]
    return StandardErrors(
        msp=torch.cat([each.msp for each in found]),
        margin=torch.cat([each.margin for each in found]),
        entropy=torch.cat([each.entropy for each in found]),
    )
