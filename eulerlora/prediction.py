"""Trajectories of images -> class probabilities and uncertainty for the user."""

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
    """The prediction for n images; tensors are on the CPU, float64 unless stated otherwise.

    ood: (n,) bool, True if the MSP is below the checkpoint's threshold; None without a threshold
    for this mode, number of samples and sampler.
    samples: (n,) int64, samples per adapter that were run.
    standard_errors: of the means over samples, (n,) each; None unless samples="auto".
    trajectories: (n, adapters * samples, classes) probabilities, adapter by adapter. If images have
    different numbers of samples, those with fewer are filled with NaN.
    labels: the class name with the highest mean probability, one per image.
    """

    ood: Tensor | None
    samples: Tensor
    standard_errors: StandardErrors | None
    trajectories: Tensor
    labels: tuple[str, ...]


def prediction_of(
    blocks: Sequence[Tensor], threshold: float | None, classes: Sequence[str], adaptive: bool
) -> Prediction:
    """Returns the prediction for all images of at least one block.

    blocks: (n, adapters, samples, classes) probabilities each. threshold: OOD threshold on the MSP.
    adaptive: True to compute standard errors. Raises NonFiniteError.
    """
    if not all(block.isfinite().all() for block in blocks):
        raise NonFiniteError("expected finite logits from the network, got NaN or infinity")
    summary = summarise_all([block.flatten(1, 2) for block in blocks])
    most = max(block.shape[2] for block in blocks)
    padded = [F.pad(block, (0, 0, 0, most - block.shape[2]), value=torch.nan) for block in blocks]
    return Prediction(
        **vars(summary),
        ood=None if threshold is None else summary.msp < threshold,
        samples=torch.cat([torch.full(block.shape[:1], block.shape[2]) for block in blocks]),
        standard_errors=_standard_errors(blocks) if adaptive else None,
        trajectories=torch.cat(padded).flatten(1, 2),
        labels=tuple(classes[k] for k in summary.probabilities.argmax(dim=-1).tolist()),
    )


def _standard_errors(blocks: Sequence[Tensor]) -> StandardErrors:
    errors = [standard_errors(block) for block in blocks]
    return StandardErrors(
        msp=torch.cat([part.msp for part in errors]),
        margin=torch.cat([part.margin for part in errors]),
        entropy=torch.cat([part.entropy for part in errors]),
    )
