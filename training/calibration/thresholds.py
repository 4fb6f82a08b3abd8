"""Temperature, thresholds of OOD scores and prediction sets, and the margins of `samples=auto`.

A model predicts the images once: without samples, and with the largest number of samples. All
numbers of samples share these draws: the first s of the largest number have the distribution of s
samples with both samplers.

A threshold is a tolerance bound over lesions, or other units where none are known
(`training.data.units`), because images of one lesion are not independent: at least KEPT_SHARE of
new lesions have no image beyond it, with 95% confidence.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.model_selection import GroupKFold
from torch import Tensor

from eulerlora.answer import Predictions
from eulerlora.checkpoint.config import MAX_CHANGE, CheckpointConfig, PrecisionChange
from eulerlora.model import EulerLoRA
from eulerlora.sampling.adaptive import fit_margins, last_rounds, summaries_by_round
from eulerlora.scores.ood_scores import FeatureDistance
from eulerlora.scores.prediction_sets import (
    ALWAYS_INCLUDED,
    PredictionSetCalibration,
    lac_scores,
    min_units,
)
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Temperatures
from eulerlora_contract.checkpoints import ScoreThreshold, Threshold, Tolerance, Unit
from eulerlora_contract.errors import DataError
from eulerlora_contract.sampling import (
    AUTO,
    DEFAULT_SAMPLES,
    MAX_AUTO_SAMPLES,
    Auto,
    Options,
    Precision,
)
from training.data.images import LabelledImage
from training.data.splits import SPLIT_SEED
from training.data.units import Units
from training.evaluation.inference import predict_all
from training.evaluation.intervals import (
    Floats,
    Ints,
    ToleranceBound,
    standard_error,
    tolerance_bound,
)

TEMPERATURE_FOLDS = 5
_PRIOR_DEVIATION = 0.5
"""Of the logarithm of a temperature from that of the prior."""


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature of the softmax and its benefit for new lesions.

    The logits are divided by one number, which changes probabilities but no top label of a
    trajectory (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017).

    Attributes:
        fitted: The most probable temperature.
        improvement: By how much it lowers the NLL of a lesion (or other `unit`) below that at
            `current`, in nats; the mean over lesions of groups that were not in its fit.
        standard_error: Of this mean, over groups.
        current: The temperature that stays unless the fitted one helps.
    """

    fitted: float
    improvement: float
    standard_error: float
    current: float
    unit: Unit

    @property
    def helps(self) -> bool:
        return self.improvement > 0

    @property
    def temperature(self) -> float:
        return self.fitted if self.helps else self.current

    @property
    def summary(self) -> str:
        effect = (
            f"lowers the NLL of other {self.unit}s by {self.improvement:.3f} "
            f"(standard error {self.standard_error:.3f})"
        )
        kept = "" if self.helps else f"{self.current:g}; "
        return f"{kept}{self.fitted:g} {effect}"


def fit_temperature(
    log_probabilities: Tensor, labels: Tensor, units: Units, current: float = 1.0
) -> TemperatureFit:
    """Fits the temperature of the softmax to lesions.

    `log_probabilities` are (n, trajectories, classes) at temperature 1. `units` are those of the n
    images, of TEMPERATURE_FOLDS groups or more, which stay together in the cross-validation.
    `current` is the temperature in use.
    """
    benefits, indices = np.zeros(len(labels)), units.indices
    for rest, held_out in group_folds(units.image_groups, TEMPERATURE_FOLDS):
        outputs, true = log_probabilities[rest], labels[rest]
        fitted = most_probable_temperature(outputs, true, indices[rest], current)
        outputs, true = log_probabilities[held_out], labels[held_out]
        benefits[held_out] = image_nll(outputs, true, current) - image_nll(outputs, true, fitted)
    by_unit = units.means(benefits)
    return TemperatureFit(
        fitted=round(most_probable_temperature(log_probabilities, labels, indices, current), 3),
        improvement=float(by_unit.mean()),
        standard_error=standard_error(by_unit, units.groups),
        current=current,
        unit=units.unit,
    )


def group_folds(groups: Ints, folds: int) -> Iterator[tuple[Ints, Ints]]:
    """Yields the indices outside and inside of each fold, always the same; groups stay together."""
    splitter = GroupKFold(folds, shuffle=True, random_state=SPLIT_SEED)
    yield from splitter.split(groups, groups=groups)


def image_nll(log_probabilities: Tensor, labels: Tensor, temperature: float) -> Floats:
    """The NLL of the mean probability of each image's trajectories, (n,), in nats."""
    scaled = (log_probabilities / temperature).log_softmax(dim=-1)
    true = scaled[torch.arange(len(labels)), :, labels]  # (n, trajectories)
    nll: Floats = (math.log(true.shape[1]) - true.logsumexp(dim=1)).numpy()
    return nll


def most_probable_temperature(
    log_probabilities: Tensor,
    labels: Tensor,
    units: Ints,
    current: float = 1.0,
    deviation: float = _PRIOR_DEVIATION,
) -> float:
    """The temperature with the highest posterior density; arguments as in `fit_temperature`.

    `units` (n,) has the lesion of each image; each counts once. The logarithm of the temperature
    has a normal prior of this deviation around that of `current`, infinite for the temperature of
    the lowest NLL. Without a prior, lesions that are all right would have none, and a few that are
    nearly all right one far too low.
    """

    def mean_loss(relative: float) -> float:
        nll = image_nll(log_probabilities, labels, current * math.exp(relative))
        by_unit = group_means(nll, units)
        return float(by_unit.mean() + (relative / deviation) ** 2 / 2 / len(by_unit))

    bound = math.log(20.0)
    fitted = minimize_scalar(mean_loss, bounds=(-bound, bound), method="bounded").x
    return current * math.exp(float(fitted))


def group_means(values: Floats, groups: Ints) -> Floats:
    """The mean of each group, (groups,), of values (n,)."""
    indices = np.unique(groups, return_inverse=True)[1]
    means: Floats = np.bincount(indices, weights=values) / np.bincount(indices)
    return means


KEPT_SHARE = 0.95
"""Share of new lesions that a threshold keeps."""


@dataclass(frozen=True)
class CalibrationOutputs:
    """The outputs of a model for n labelled images of a fit, without and with samples."""

    det: Trajectories
    stoch: Trajectories
    precision: Precision
    images: Sequence[LabelledImage]
    data: str

    @classmethod
    def of(
        cls,
        model: EulerLoRA,
        images: Sequence[LabelledImage],
        data: str,
        samples: Sequence[int | Auto],
    ) -> "CalibrationOutputs":
        """Predicts the images, with the largest of `samples`."""
        options = [model.options("det"), model.options("stoch", max(_fixed(samples)))]
        det, stoch = predict_all(model, images, options, "calibrate")
        return cls(det, stoch, model.precision, images, data)

    @cached_property
    def units(self) -> Units:
        return Units.of(self.images)

    @property
    def labels(self) -> Tensor:
        return torch.tensor([image.label for image in self.images])

    def trajectories(self, options: Options) -> Trajectories:
        """The trajectories of these options, with a number of samples."""
        if options.mode == "det":
            return self.det
        assert options.samples != AUTO
        return self.stoch.first(options.samples)

    def temperature(self, options: Options, current: float = 1.0) -> TemperatureFit:
        """Fits the temperature of a mode, `current` before, to outputs at temperature 1."""
        return fit_temperature(
            self.trajectories(options).flat_log_probabilities,
            self.labels,
            self.units,
            current,
        )

    def at(self, temperatures: Temperatures) -> "CalibrationOutputs":
        """The outputs at the temperature of each mode; these are at temperature 1."""
        det, stoch = temperatures["det"], temperatures["stoch"]
        return replace(self, det=self.det.at(det), stoch=self.stoch.at(stoch))

    def bound(self, scores: Tensor) -> ToleranceBound:
        """The threshold of a score (n,) that is high in distribution."""
        lowest = self.units.combine(scores.double().numpy(), np.minimum)
        return tolerance_bound(lowest, KEPT_SHARE, self.units.groups)


def with_thresholds(
    config: CheckpointConfig,
    outputs: CalibrationOutputs,
    distance: FeatureDistance | None,
    samples: Sequence[int | Auto],
) -> CheckpointConfig:
    """Adds the thresholds of `det` and of `stoch` with each of `samples`.

    With `auto`, also of the number of samples that it is compared with, and as
    `_with_auto_threshold`. A `distance` of None leaves out its thresholds.
    """
    fitted = [
        _threshold(options, Predictions.of(outputs.trajectories(options), distance), outputs)
        for options in _calibrated(config, outputs.precision, samples)
    ]
    config = config.model_copy(update={"thresholds": (*config.thresholds, *fitted)})
    return _with_auto_threshold(config, outputs, distance) if AUTO in samples else config


def _with_auto_threshold(
    config: CheckpointConfig, outputs: CalibrationOutputs, distance: FeatureDistance | None
) -> CheckpointConfig:
    """Adds the thresholds of `auto`, and margins if the config has none.

    The boundaries are those of `MAX_AUTO_SAMPLES`, for which the config has thresholds: rounds end
    when they are settled. Unchanged without margins, which fewer than `MIN_IMAGES` images do not
    give.
    """
    options = config.options("stoch", MAX_AUTO_SAMPLES, precision=outputs.precision)
    rule, compared = config.stopping_rule(outputs.precision), config.threshold(options)
    margins = config.margins or fit_margins(
        outputs.stoch, outputs.units.image_groups, distance, rule, options, outputs.data
    )
    if margins is None:
        return config
    rounds = summaries_by_round(outputs.stoch, distance)
    ends = last_rounds(rounds, replace(rule, margins=margins))
    summary = Predictions.of(outputs.stoch.first(ends), distance)
    fitted = _threshold(replace(options, samples=AUTO), summary, outputs, compared)
    thresholds = (*config.thresholds, fitted)
    return config.model_copy(update={"thresholds": thresholds, "margins": margins})


def precision_changes(
    config: CheckpointConfig,
    exact: CalibrationOutputs,
    rounded: CalibrationOutputs,
    distance: FeatureDistance | None,
) -> tuple[PrecisionChange, ...]:
    """How many answers change in bfloat16, for det and for `DEFAULT_SAMPLES` samples.

    Outputs with fewer samples are compared with all of theirs. `exact` is float32, `rounded` is
    bfloat16, for the same images; the config has the thresholds of both. A `distance` of None
    leaves out its flag.
    """
    largest = exact.stoch.views.shape[2]
    changes = []
    for options in _calibrated(config, rounded.precision, [min(DEFAULT_SAMPLES, largest)]):
        one, other = (
            Predictions.of(
                outputs.trajectories(options),
                distance,
                config.threshold(options.in_precision(outputs.precision)),
            )
            for outputs in (exact, rounded)
        )
        changed = [flag != other.flags[name] for name, flag in one.flags.items()]
        difference = (one.probabilities - other.probabilities).abs().amax(dim=-1)
        changes.append(
            PrecisionChange(
                options=options,
                images=len(difference),
                probabilities=int((difference > MAX_CHANGE).sum()),
                labels=int((one.predicted != other.predicted).sum()),
                flags=int(torch.stack(changed).any(dim=0).sum()) if changed else 0,
                data=exact.data,
            )
        )
    return tuple(changes)


@dataclass(frozen=True)
class CoverageSettings:
    """The prediction sets to calibrate.

    Attributes:
        coverages: In (0, 1).
        always_include_rare: A class with too few units for a coverage is in every set; otherwise it
            is an error.
    """

    coverages: tuple[float, ...] = ()
    always_include_rare: bool = False


NO_COVERAGE = CoverageSettings()
"""No prediction sets."""


def check_units(units: Units, classes: Sequence[str], settings: CoverageSettings) -> None:
    """Refuses a class with too few units for one of the coverages.

    With `always_include_rare`, only if this is true of every class.

    Raises:
        DataError: There is such a class.
    """
    if not settings.coverages:
        return
    counts = dict(zip(classes, units.counts(len(classes)), strict=True))
    highest = max(settings.coverages)
    needed = min_units(highest)
    rare = {name: count for name, count in counts.items() if count < needed}
    if not rare or (settings.always_include_rare and len(rare) < len(classes)):
        return
    listed = ", ".join(f"{count} of {name}" for name, count in rare.items())
    advice = "" if len(rare) == len(classes) else "; --always-include-rare puts them in every set"
    raise DataError(
        f"coverage {highest:g}: expected at least {needed} calibration {units.unit}s of each "
        f"class, got {listed}{advice}"
    )


def with_prediction_sets(
    config: CheckpointConfig,
    outputs: CalibrationOutputs,
    samples: Sequence[int | Auto],
    settings: CoverageSettings,
) -> CheckpointConfig:
    """Adds sets of `det` and of `stoch` with each fixed number of samples, for each coverage.

    Raises:
        DataError: As `check_units`.
    """
    units, classes = outputs.units, config.class_names
    check_units(units, classes, settings)
    digest = data_sha256(outputs.images, classes)
    fitted = []
    for options in _calibrated(config, outputs.precision, samples):
        probabilities = Predictions.of(outputs.trajectories(options)).probabilities
        for coverage in settings.coverages:
            bounds = _class_bounds(probabilities, outputs, coverage)
            calibration = PredictionSetCalibration(
                coverage=coverage,
                options=options,
                thresholds=tuple(
                    ALWAYS_INCLUDED if bound is None else -bound.threshold for bound in bounds
                ),
                unit=units.unit,
                units=units.counts(len(classes)),
                data=outputs.data,
                data_sha256=digest,
                confidences=tuple(1.0 if bound is None else bound.confidence for bound in bounds),
            )
            fitted.append(calibration)
    return config.model_copy(update={"prediction_sets": (*config.prediction_sets, *fitted)})


def _class_bounds(
    probabilities: Tensor, outputs: CalibrationOutputs, coverage: float
) -> list[ToleranceBound | None]:
    """The bound of each class's negative scores; None for fewer than `min_units`."""
    units = outputs.units
    scores = units.combine(lac_scores(probabilities, outputs.labels).numpy(), np.maximum)
    of_classes = (units.labels == label for label in range(probabilities.shape[1]))
    return [
        None
        if of_class.sum() < min_units(coverage)
        else tolerance_bound(-scores[of_class], coverage, units.groups[of_class])
        for of_class in of_classes
    ]


def data_sha256(images: Sequence[LabelledImage], classes: Sequence[str]) -> str:
    """Digest of the images' names, class names, groups and lesions, in any order."""
    rows = sorted(
        (
            image.name,
            classes[image.label],
            image.cluster or "",
            *([image.lesion] if image.lesion not in (None, image.cluster) else []),
        )
        for image in images
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def upper_quantile(scores: Tensor, share: float) -> float:
    """The lowest limit that at least a share, in (0, 1], of scores (n,) does not exceed."""
    return float(scores.sort().values[math.ceil(share * len(scores)) - 1])


def _calibrated(
    config: CheckpointConfig, precision: Precision, samples: Sequence[int | Auto]
) -> list[Options]:
    stoch = (config.options("stoch", count, precision=precision) for count in _fixed(samples))
    return [config.options("det", precision=precision), *stoch]


def _fixed(samples: Sequence[int | Auto]) -> list[int]:
    """The numbers of samples to calibrate, ascending; `auto` is compared with its last."""
    return sorted({MAX_AUTO_SAMPLES if count == AUTO else count for count in samples})


def _threshold(
    options: Options,
    summary: Predictions,
    outputs: CalibrationOutputs,
    compared: Threshold | None = None,
) -> Threshold:
    """The thresholds of images, with the boundaries of `compared`; None fits them."""
    msp, scores = summary.msp, summary.ood_scores
    bound, classes = outputs.bound(msp), summary.probabilities.shape[-1]
    limit = bound.threshold if compared is None else compared.msp
    energy = None if compared is None else compared.energy
    distance = None if compared is None else compared.feature_distance
    counts = torch.bincount(summary.predicted, minlength=classes)
    return Threshold(
        options=options,
        msp=limit,
        kept=_share(msp >= limit),
        images=len(msp),
        data=outputs.data,
        energy=_score_threshold(scores["energy"].value, outputs, energy),
        feature_distance=None
        if "feature_distance" not in scores
        else _score_threshold(scores["feature_distance"].value, outputs, distance),
        tolerance=Tolerance(
            share=bound.share,
            confidence=bound.confidence,
            units=bound.units,
            unit=outputs.units.unit,
        ),
        label_shares=tuple((counts.double() / len(msp)).tolist()),
    )


def _score_threshold(
    scores: Tensor, outputs: CalibrationOutputs, compared: ScoreThreshold | None
) -> ScoreThreshold:
    """The threshold of a score (n,) that is low in distribution; `compared` as in `_threshold`."""
    fitted = -outputs.bound(-scores).threshold
    threshold = fitted if compared is None else compared.threshold
    return ScoreThreshold(
        threshold=threshold,
        kept=_share(scores <= threshold),
        upper_quartile=upper_quantile(scores, 0.75),
    )


def _share(values: Tensor) -> float:
    return float(values.double().mean())
