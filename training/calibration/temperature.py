"""The temperature of the softmax: its fit to labelled images, and outputs at another one."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.model_selection import GroupKFold
from torch import Tensor

from training.data.splits import SPLIT_SEED
from training.evaluation.inference import ModelOutputs
from training.evaluation.intervals import Floats, Ints

TEMPERATURE_FOLDS = 5
LOWEST, HIGHEST = 0.05, 20.0
DECIMALS = 3


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature of the softmax and its benefit for new lesions.

    The logits are divided by one number, which changes probabilities but no top label of a
    trajectory (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017).

    fitted: the temperature of the lowest NLL. improvement: by how much it lowers the NLL of a
    lesion, in nats, the mean over lesions that were not in its fit; standard_error: of this mean.
    """

    fitted: float
    improvement: float
    standard_error: float

    @property
    def helps(self) -> bool:
        """True if it improves on temperature 1."""
        return self.improvement > 0

    @property
    def temperature(self) -> float:
        """The fitted temperature if it helps, and 1 otherwise."""
        return self.fitted if self.helps else 1.0

    @property
    def summary(self) -> str:
        """The result in words."""
        return (
            f"{self.temperature:g}: {self.fitted:g} lowers the NLL of other lesions by "
            f"{self.improvement:.3f} (standard error {self.standard_error:.3f})"
        )


def fit_temperature(log_probabilities: Tensor, labels: Tensor, groups: Ints) -> TemperatureFit:
    """Returns the temperature of the lowest mean NLL of a lesion.

    log_probabilities: (n, trajectories, classes) at temperature 1. labels: (n,) class indices.
    groups: (n,) lesion or patient of each image, at least TEMPERATURE_FOLDS of them; they stay
    together in the cross-validation.
    """
    folds = GroupKFold(TEMPERATURE_FOLDS, shuffle=True, random_state=SPLIT_SEED)
    benefits = np.zeros(len(labels))
    for rest, held_out in folds.split(groups, groups=groups):
        fitted = _lowest_nll(log_probabilities[rest], labels[rest], groups[rest])
        outputs, true = log_probabilities[held_out], labels[held_out]
        benefits[held_out] = image_nll(outputs, true, 1.0) - image_nll(outputs, true, fitted)
    by_group = _group_means(benefits, groups)
    return TemperatureFit(
        fitted=round(_lowest_nll(log_probabilities, labels, groups), DECIMALS),
        improvement=float(by_group.mean()),
        standard_error=float(by_group.std(ddof=1) / math.sqrt(len(by_group))),
    )


def outputs_at(outputs: ModelOutputs, temperature: float) -> ModelOutputs:
    """Returns the outputs of the logits divided by `temperature`."""
    logits = outputs.log_probabilities + outputs.log_partition.unsqueeze(-1)
    return replace(
        outputs,
        log_probabilities=at_temperature(outputs.log_probabilities, temperature),
        log_partition=(logits / temperature).logsumexp(dim=-1),
    )


def at_temperature(log_probabilities: Tensor, temperature: float) -> Tensor:
    """Returns the log-probabilities of the logits divided by `temperature`, over the last axis."""
    return (log_probabilities / temperature).log_softmax(dim=-1)


def image_nll(log_probabilities: Tensor, labels: Tensor, temperature: float) -> Floats:
    """Returns (n,) the NLL of the mean probability of each image's trajectories, in nats."""
    scaled = at_temperature(log_probabilities, temperature)
    true = scaled[torch.arange(len(labels)), :, labels]  # (n, trajectories)
    nll: Floats = (math.log(true.shape[1]) - true.logsumexp(dim=1)).numpy()
    return nll


def _lowest_nll(log_probabilities: Tensor, labels: Tensor, groups: Ints) -> float:
    def mean_nll(log_temperature: float) -> float:
        nll = image_nll(log_probabilities, labels, math.exp(log_temperature))
        return float(_group_means(nll, groups).mean())

    bounds = (math.log(LOWEST), math.log(HIGHEST))
    return math.exp(float(minimize_scalar(mean_nll, bounds=bounds, method="bounded").x))


def _group_means(values: Floats, groups: Ints) -> Floats:
    """Returns the mean value of each group. values, groups: (n,)."""
    indices = np.unique(groups, return_inverse=True)[1]
    means: Floats = np.bincount(indices, weights=values) / np.bincount(indices)
    return means
