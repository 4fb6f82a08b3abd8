"""Classification heads refitted to a site's own lesions; backbone and adapters stay.

Every head has new logits a (W h + b) + D h + d. W and b are the shipped ones, h is what the head
reads, and the factor a, D and d are shared by all heads. This is one multinomial logistic
regression that starts from the shipped heads and is shrunk towards them by a ridge penalty, which
cross-validation over lesions chooses.

Its probabilities are those among the classes that the site has. D and d are zero for the others,
and sum to zero over the present ones: that a site has no picture of a class does not make it rarer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import t as student
from torch import Tensor

from eulerlora.nn.method import AdapterHeads
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.checkpoints import Unit
from training.calibration.thresholds import (
    group_folds,
    image_nll,
    most_probable_temperature,
)
from training.data.units import Units
from training.evaluation.intervals import CONFIDENCE, Floats, Ints, standard_error

_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, math.inf)
"""To choose from; the loss is a sum over lesions. The last one changes the factor alone."""
_FOLDS = 5
_FACTOR_PENALTY = 1.0
_MAX_ITERATIONS = 200


@dataclass(frozen=True)
class HeadChange:
    """A change of all heads: a, D and d in float64.

    Attributes:
        factor: a.
        weight: D, (classes, width).
        bias: d, (classes,).
    """

    factor: float
    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def apply(self, heads: AdapterHeads) -> None:
        """Changes heads in place."""
        heads.weight.mul_(self.factor).add_(self.weight.to(heads.weight))
        heads.bias.mul_(self.factor).add_(self.bias.to(heads.bias))


@dataclass(frozen=True)
class HeadFit:
    """Refitted heads.

    Attributes:
        cross_fitted: For each fold, its images and the change that was fitted without their
            groups.
    """

    change: HeadChange
    cross_fitted: Sequence[tuple[Ints, HeadChange]]


@dataclass(frozen=True)
class _Rows:
    """Images for the regression, (n, rows of an image, ...): one for each mode and adapter.

    Attributes:
        logits: Of the shipped heads.
        inputs: What the heads read.
        labels: (n,).
        units: (n,) the unit of each image, which counts once.
    """

    logits: Floats
    inputs: Floats
    labels: Ints
    units: Ints

    @classmethod
    def of(
        cls, modes: Sequence[Trajectories], heads: AdapterHeads, labels: Tensor, units: Ints
    ) -> "_Rows":
        """Takes the means over the samples of each adapter."""
        logits = torch.cat([_logits(outputs).mean(dim=2) for outputs in modes], dim=1)
        inputs = torch.cat([_head_inputs(outputs, heads).mean(dim=2) for outputs in modes], dim=1)
        return cls(logits.numpy(), inputs.numpy(), labels.numpy(), units)

    def images(self, indices: Ints) -> "_Rows":
        return _Rows(*(values[indices] for values in vars(self).values()))


def _head_inputs(trajectories: Trajectories, heads: AdapterHeads) -> Tensor:
    """What the heads read, (n, adapters, samples, width) float64, from logits at temperature 1.

    The features of trajectories begin with it, scaled to unit length
    (`eulerlora.nn.network.NetworkOutput`); the length follows from the logits, which are linear
    in it.
    """
    weight, bias = heads.weight.detach().double().cpu(), heads.bias.detach().double().cpu()
    directions = trajectories.features[..., : weight.shape[-1]].double()
    slopes = torch.einsum("nasd,acd->nasc", directions, weight)
    offsets = _logits(trajectories) - bias[None, :, None]
    lengths = (slopes * offsets).sum(dim=-1) / slopes.square().sum(dim=-1)
    return directions * lengths.unsqueeze(-1)


def _logits(trajectories: Trajectories) -> Tensor:
    return trajectories.log_probabilities + trajectories.log_partition.unsqueeze(-1)


def refit_heads(
    modes: Sequence[Trajectories],
    heads: AdapterHeads,
    labels: Tensor,
    units: Units,
    temperature: float,
) -> HeadFit | None:
    """Fits a change of the heads, with the penalty of the lowest NLL of other groups.

    None if that penalty is infinite: no change but that of the factor lowers it.

    Args:
        modes: Outputs in each mode for n images, at temperature 1; all of them weigh alike in a
            fit, and the NLL is that of the first.
        heads: That gave them.
        labels: (n,).
        units: Of the images; each counts once. Their groups, at least _FOLDS, stay together.
        temperature: By which the logits are divided; the penalty is relative to it.
    """
    rows, outputs = _Rows.of(modes, heads, labels, units.indices), modes[0]
    folds = list(group_folds(units.image_groups, _FOLDS))
    cross_fitted = {
        penalty: [
            (held_out, _fit(rows.images(rest), penalty, temperature)) for rest, held_out in folds
        ]
        for penalty in _PENALTIES
    }

    present = labels.unique()

    def nll(penalty: float) -> float:
        changed = with_changed_heads(outputs, heads, cross_fitted[penalty]).at(temperature)
        among, true = _among(present, changed.flat_log_probabilities, labels)
        return float(units.means(image_nll(among, true, 1.0)).mean())

    best = min(_PENALTIES, key=nll)
    if math.isinf(best):
        return None
    return HeadFit(_fit(rows, best, temperature), cross_fitted[best])


def with_changed_heads(
    trajectories: Trajectories, heads: AdapterHeads, changes: Sequence[tuple[Ints, HeadChange]]
) -> Trajectories:
    """The trajectories, at temperature 1, of other heads; each change has its images."""
    inputs, logits = _head_inputs(trajectories, heads), _logits(trajectories)
    for indices, change in changes:
        learned = inputs[indices] @ change.weight.T + change.bias
        logits[indices] = change.factor * logits[indices] + learned
    changed = Trajectories.of(logits, trajectories.features, trajectories.views)
    return replace(changed, samples=trajectories.samples)


def _among(present: Tensor, log_probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities among the present classes, and labels by their positions."""
    return log_probabilities[..., present].log_softmax(dim=-1), torch.searchsorted(present, labels)


@dataclass(frozen=True)
class HeadComparison:
    """New heads on held-out lesions (or other units), against the old ones.

    Attributes:
        improvement: By how much they lower the NLL of a lesion, in nats, among the classes of the
            images and at the best temperature of both, so that scaling the logits is no gain.
        bound: One-sided 95% lower bound of it (Student's t, over groups).
        units: Their number.
        unit: What they are.
    """

    improvement: float
    bound: float
    units: int
    unit: Unit

    @property
    def summary(self) -> str:
        return (
            f"{'lower' if self.improvement > 0 else 'no lower'} NLL of {self.units:,} "
            f"held-out {self.unit}s, by {self.improvement:.3f} (with 95% confidence by "
            f"{self.bound:.3f} or more)"
        )

    @classmethod
    def of(cls, old: Tensor, new: Tensor, labels: Tensor, units: Units) -> "HeadComparison":
        """From log-probabilities (n, trajectories, classes), labels (n,) and units of n images."""
        by_image = []
        for outputs in (old, new):
            among, true = _among(labels.unique(), outputs, labels)
            best = most_probable_temperature(among, true, units.indices, deviation=math.inf)
            by_image.append(image_nll(among, true, best))
        gains = units.means(by_image[0] - by_image[1])
        groups = len(np.unique(units.groups))
        width = student.ppf(CONFIDENCE, groups - 1) * standard_error(gains, units.groups)
        return cls(float(gains.mean()), float(gains.mean() - width), len(gains), units.unit)


def _fit(rows: _Rows, penalty: float, temperature: float) -> HeadChange:
    """Minimises the sum over units of the mean NLL, plus the penalties.

    The inputs are centred and scaled to a mean square of one, with a constant 1 for d.
    """
    _, of_image, classes = rows.logits.shape
    width = rows.inputs.shape[-1]
    present, labels = np.unique(rows.labels.repeat(of_image), return_inverse=True)
    logits = rows.logits.reshape(-1, classes)[:, present] / temperature
    mean = rows.inputs.reshape(-1, width).mean(axis=0)
    centred = rows.inputs.reshape(-1, width) - mean
    scale = math.sqrt((centred**2).sum(axis=1).mean())
    inputs = np.hstack([centred / scale, np.ones((len(centred), 1))])
    sizes = np.unique(rows.units, return_inverse=True, return_counts=True)
    weights = (1 / (of_image * sizes[2][sizes[1]])).repeat(of_image)
    true = np.eye(len(present))[labels]
    learns = math.isfinite(penalty)

    def loss(parameters: Floats) -> tuple[float, Floats]:
        factor, learned = parameters[0], parameters[1:].reshape(len(present), -1)
        log_p = log_softmax((1 + factor) * logits + inputs @ learned.T, axis=1)
        residuals = weights[:, None] * (np.exp(log_p) - true)
        value = -(weights[:, None] * true * log_p).sum() + _FACTOR_PENALTY / 2 * factor**2
        of_factor = (residuals * logits).sum() + _FACTOR_PENALTY * factor
        if not learns:
            return value, np.concatenate([[of_factor], np.zeros(learned.size)])
        of_learned = residuals.T @ inputs + penalty * learned
        value += penalty / 2 * (learned**2).sum()
        return value, np.concatenate([[of_factor], of_learned.ravel()])

    start = np.zeros(1 + len(present) * inputs.shape[1])
    result = minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _MAX_ITERATIONS}
    )
    learned = temperature * result.x[1:].reshape(len(present), -1)
    weight, bias = np.zeros((classes, width)), np.zeros(classes)
    weight[present] = learned[:, :-1] / scale
    bias[present] = learned[:, -1] - weight[present] @ mean
    return HeadChange(1 + float(result.x[0]), torch.from_numpy(weight), torch.from_numpy(bias))
