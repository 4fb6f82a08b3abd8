"""The thresholds of a triage policy, fitted to a required sensitivity to its critical classes.

The score of an image is the summed probability of the target classes. An image is urgent if its
score is at or above the threshold. Images of one lesion are not independent, so sensitivity counts
lesions: a lesion is a hit if all of its images are urgent. Bounds are exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from numpy.typing import NDArray

from eulerlora.model import EulerLoRA
from eulerlora_client.contract.answers import TargetClasses
from eulerlora_client.errors import DataError
from eulerlora_client.output_files import atomic_write
from eulerlora_client.policy.policy import (
    DEFAULT_FILE,
    Policy,
    TargetRules,
    UncertaintyRules,
    default_policy_text,
    parse_policy,
    read_policy_text,
)
from training.data.images import OUTSIDE, LabelledImage
from training.evaluation.evaluated_sets import SetPredictions
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import Bools, Floats, lower_bound, tolerance_bound

SIGNIFICANT_DIGITS = 4
UNCERTAIN_SHARE = 0.05
"""Default share of the images that may reach the entropy threshold."""

Names = NDArray[np.str_]


@dataclass(frozen=True)
class Sensitivity:
    """Hits of a number of lesions, and the required sensitivity.

    lower_bound: one-sided exact 95% lower confidence bound of a threshold set on the same lesions.
    established: True if it reaches `required`.
    """

    hits: int
    lesions: int
    required: float
    lower_bound: float

    @property
    def established(self) -> bool:
        return self.lower_bound >= self.required


def by_lesion(values: Floats | Bools, lesions: Names, combine: np.ufunc) -> NDArray[Any]:
    """Returns one value for each lesion, from the values of its images.

    values, lesions: (n,), n > 0. combine: such as np.minimum, or np.logical_and for flags.
    """
    order = np.argsort(lesions, kind="stable")
    starts = np.unique(lesions[order], return_index=True)[1]
    combined: NDArray[Any] = combine.reduceat(values[order], starts)
    return combined


def fit_urgent(critical: Floats, required: float) -> tuple[float, Sensitivity]:
    """Returns the highest threshold whose lower bound reaches `required`, and its sensitivity.

    critical: (m,) scores of lesions, m > 0. With too few lesions, returns the highest threshold
    without a miss. It is rounded down to four significant digits, so that rounding of scores
    elsewhere does not turn a tie into a miss. The bound is that of the permitted number of misses,
    which depends on m only: fewer misses by a tie or by the rounding do not raise it.
    """
    bound = tolerance_bound(critical, required)
    threshold = round_down(bound.threshold)
    hits = int((critical >= threshold).sum())
    lower = lower_bound(bound.units - bound.misses, bound.units)
    return threshold, Sensitivity(hits, bound.units, required, lower)


def round_down(value: float) -> float:
    """Returns a positive number rounded down to four significant digits."""
    exact = Decimal(value)
    return float(exact.quantize(_unit(exact), ROUND_FLOOR))


def round_up(value: float) -> float:
    """Returns the next larger number with four significant digits; 0.001 for 0."""
    exact = Decimal(value)
    rounded = exact.quantize(_unit(exact), ROUND_CEILING)
    return float(rounded if rounded > exact else rounded + _unit(exact))


def _unit(value: Decimal) -> Decimal:
    """Returns the unit of the last significant digit."""
    return Decimal(1).scaleb(value.adjusted() - SIGNIFICANT_DIGITS + 1)


@dataclass(frozen=True)
class PolicyInputs:
    """The inputs of a policy for n images.

    scores, critical_scores: (n,) summed probability of the target and of the critical classes.
    entropy: (n,) predictive entropy in nats. unfamiliar: (n,) flag of the feature
    distance; all False without one. doubtful: (n,) True if an image is referred whatever its
    entropy: out of distribution, no OOD threshold, or trajectories with different labels.
    critical, target: (n,) by the true label. outside: (n,) target lesions of none of the
    model's classes. lesions: (n,) names.
    """

    scores: Floats
    critical_scores: Floats
    entropy: Floats
    unfamiliar: Bools
    doubtful: Bools
    critical: Bools
    target: Bools
    outside: Bools
    lesions: Names


def check_classes(model: EulerLoRA, target: TargetClasses) -> None:
    """Raises DataError for a model without one of the target classes."""
    missing = [name for name in target.classes if name not in model.classes]
    if missing:
        raise DataError(
            f"expected a model with the target classes {', '.join(missing)}, got "
            f"{model.config.name} with {', '.join(model.classes)}"
        )


def score_images(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: SamplingOptions,
    target: TargetClasses,
    label: str,
) -> PolicyInputs:
    """Returns a model's scores of labelled images.

    label: name of the progress bar. Raises DataError as `check_classes`.
    """
    check_classes(model, target)
    (outputs,) = predict_all(model, images, [options], label)
    thresholds = model.config.threshold(options.mode, options.samples)
    predictions = SetPredictions.of(outputs, model.feature_distance, thresholds)
    return policy_inputs(model, predictions, images, target)


def policy_inputs(
    model: EulerLoRA,
    predictions: SetPredictions,
    images: Sequence[LabelledImage],
    target: TargetClasses,
) -> PolicyInputs:
    """Returns the scores from a model's predictions for labelled images.

    An image without a cluster is a lesion by itself. Images labelled OUTSIDE show target lesions
    of none of the classes.
    """
    group = [model.classes.index(name) for name in target.classes]
    critical = [model.classes.index(name) for name in target.critical.classes]
    probabilities = predictions.uncertainty.probabilities
    labels = predictions.log_probabilities.argmax(dim=-1)  # (n, trajectories)
    disagree = (labels != labels[:, :1]).any(dim=1).numpy()
    true_labels = np.array([image.label for image in images])
    no_flags, flags = np.zeros(len(images), bool), predictions.flags
    return PolicyInputs(
        scores=probabilities[:, group].sum(dim=1).numpy(),
        critical_scores=probabilities[:, critical].sum(dim=1).numpy(),
        entropy=predictions.uncertainty.entropy.numpy(),
        unfamiliar=flags.get("feature_distance", no_flags),
        doubtful=flags.get("msp", ~no_flags) | disagree,
        critical=np.isin(true_labels, critical),
        target=np.isin(true_labels, group),
        outside=true_labels == OUTSIDE,
        lesions=np.array([image.cluster or image.name for image in images]),
    )


@dataclass(frozen=True)
class PolicyFit:
    """The thresholds of a policy, and what is known about them from the images of the fit.

    urgent: of the target probability. entropy_nats: of the entropy. images, lesions: all of
    them. critical: sensitivity by lesion. uncertain: share of the images at or above
    `entropy_nats`.
    """

    urgent: float
    entropy_nats: float
    images: int
    lesions: int
    critical: Sensitivity
    uncertain: float


def fit_policy(
    images: PolicyInputs, required: float, uncertain_share: float = UNCERTAIN_SHARE
) -> PolicyFit:
    """Returns the thresholds for a required sensitivity to the critical classes.

    uncertain_share: largest share of the images that may reach the entropy threshold. The feature
    distance has no influence: a lesion is a hit by its target probability, also if an image of
    it is unfamiliar. Raises DataError if no image is critical.
    """
    if not images.critical.any():
        raise DataError("expected images of the critical classes, got none")
    scores, lesions = images.scores[images.critical], images.lesions[images.critical]
    urgent, sensitivity = fit_urgent(by_lesion(scores, lesions, np.minimum), required)
    entropy_nats = entropy_threshold(images.entropy, uncertain_share)
    return PolicyFit(
        urgent=urgent,
        entropy_nats=entropy_nats,
        images=len(images.scores),
        lesions=len(np.unique(images.lesions)),
        critical=sensitivity,
        uncertain=float((images.entropy >= entropy_nats).mean()),
    )


def entropy_threshold(entropy: Floats, share: float) -> float:
    """Returns the lowest threshold that at most a share of the entropies reach, rounded up.

    entropy: (n,) in nats. The value has four significant digits.
    """
    reaching = math.floor(share * len(entropy))
    if reaching == len(entropy):
        return round_up(0.0)
    return round_up(float(np.sort(entropy)[::-1][reaching]))


@dataclass(frozen=True)
class PolicyFile:
    """A policy and its text, whose comments stay when thresholds change. name: in errors."""

    name: str
    text: str
    policy: Policy

    @classmethod
    def read(cls, path: Path | None, target: TargetClasses | None = None) -> "PolicyFile":
        """Reads a policy file; None for the packaged one. Raises SettingsError with the path.

        target: replaces that of the file.
        """
        name = DEFAULT_FILE if path is None else str(path)
        text = default_policy_text() if path is None else read_policy_text(path)
        policy = parse_policy(text, name)
        if target is not None:
            rules = TargetRules(**target.model_dump(), urgent=policy.target.urgent)
            policy = policy.model_copy(update={"target": rules})
        return cls(name, text, policy)

    def fitted(self, fit: PolicyFit) -> Policy:
        """Returns the next version of the policy, with fitted thresholds and without evidence."""
        urgent = {"urgent": fit.urgent}
        return self.policy.model_copy(
            update={
                "version": self.policy.version + 1,
                "target": self.policy.target.model_copy(update=urgent),
                "uncertainty": UncertaintyRules(entropy_nats=fit.entropy_nats),
                "evidence": None,
            }
        )

    def write(self, path: Path, policy: Policy) -> None:
        """Writes a fitted policy atomically; comments and all other values of the text stay.

        policy: of `fitted`, with evidence.
        """
        document: Any = tomlkit.parse(self.text)
        document["version"] = policy.version
        for key, value in policy.target.model_dump(mode="json").items():
            if document["target"].get(key) != value:
                document["target"][key] = value
        document["uncertainty"]["entropy_nats"] = policy.uncertainty.entropy_nats
        if policy.evidence is not None:
            document["evidence"] = policy.evidence.model_dump(mode="json", exclude_defaults=True)
        with atomic_write(path) as partial:
            partial.write_text(tomlkit.dumps(document), encoding="utf-8")
