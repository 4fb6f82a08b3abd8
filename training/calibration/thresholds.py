"""Temperature, thresholds of OOD scores and prediction sets, and the margins of `samples=auto`.

A model predicts the images once: without samples, and with the largest number of samples. All
numbers of samples share these draws: the first s of the largest number have the distribution of s
samples with both samplers.

A threshold is a tolerance bound over lesions, because images of one lesion are not independent: at
least KEPT_SHARE of new lesions have no image beyond it, with 95% confidence.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.model_selection import GroupKFold
from torch import Tensor

from eulerlora.checkpoint.config import MAX_CHANGE, CheckpointConfig, PrecisionChange
from eulerlora.model import EulerLoRA
from eulerlora.sampling.adaptive import (
    MAX_AUTO_SAMPLES,
    ROUNDS,
    RoundAnswers,
    fit_margins,
    last_rounds,
    round_answers,
)
from eulerlora.scores.ood_scores import FeatureDistance, ScoreName, ood_scores
from eulerlora.scores.prediction_sets import (
    ALWAYS_INCLUDED,
    PredictionSetCalibration,
    class_threshold,
    lac_scores,
    min_units,
    unit_scores,
)
from eulerlora.settings import Temperatures
from eulerlora_contract.answers import ScoreThreshold, Threshold, Tolerance
from eulerlora_contract.errors import DataError
from eulerlora_contract.sampling import AUTO, DEFAULT_SAMPLES, Auto, Mode, Precision
from training.data.images import LabelledImage
from training.data.splits import SPLIT_SEED
from training.evaluation.inference import ModelOutputs, SamplingOptions, predict_all
from training.evaluation.intervals import (
    Floats,
    Ints,
    ToleranceBound,
    cluster_indices,
    tolerance_bound,
)
from training.evaluation.prediction_sets import Lesions

TEMPERATURE_FOLDS = 5
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.05, 20.0


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature of the softmax and its benefit for new lesions.

    The logits are divided by one number, which changes probabilities but no top label of a
    trajectory (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017).

    Attributes:
        fitted: The temperature of the lowest NLL.
        improvement: By how much it lowers the NLL of a lesion, in nats, the mean over lesions that
            were not in its fit; standard_error: of this mean.
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
        effect = (
            f"lowers the NLL of other lesions by {self.improvement:.3f} "
            f"(standard error {self.standard_error:.3f})"
        )
        return f"{self.fitted:g} {effect}" if self.helps else f"1; {self.fitted:g} {effect}"


def fit_temperature(log_probabilities: Tensor, labels: Tensor, groups: Ints) -> TemperatureFit:
    """Returns the temperature of the lowest mean NLL of a lesion.

    Args:
        log_probabilities: (n, trajectories, classes) at temperature 1.
        labels: (n,) class indices.
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
        fitted=round(_lowest_nll(log_probabilities, labels, groups), 3),
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

    bounds = (math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE))
    return math.exp(float(minimize_scalar(mean_nll, bounds=bounds, method="bounded").x))


def _group_means(values: Floats, groups: Ints) -> Floats:
    indices = np.unique(groups, return_inverse=True)[1]
    means: Floats = np.bincount(indices, weights=values) / np.bincount(indices)
    return means


KEPT_SHARE = 0.95
"""Share of new lesions that a threshold keeps."""


@dataclass(frozen=True)
class CalibrationOutputs:
    """The outputs of a model for n labelled images of a fit, without and with samples.

    Attributes:
        precision: Of the model.
        data: Name of the images.
    """

    det: ModelOutputs
    stoch: ModelOutputs
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
        options = [SamplingOptions("det"), SamplingOptions("stoch", max(_fixed(samples)))]
        det, stoch = predict_all(model, images, options, "calibrate")
        return cls(det, stoch, model.precision, images, data)

    @cached_property
    def lesions(self) -> Lesions:
        return Lesions.of(self.images)

    @property
    def groups(self) -> Ints:
        """(n,) index of each image's group, such as a patient; one without is one by itself."""
        return cluster_indices([image.cluster_name for image in self.images])

    @property
    def labels(self) -> Tensor:
        """(n,) class indices of the images."""
        return torch.tensor([image.label for image in self.images])

    def probabilities(self, samples: Sequence[int | Auto]) -> dict[SamplingOptions, Tensor]:
        """Returns the mean probabilities (n, classes) of `det` and of every number of samples."""
        return {
            SamplingOptions("det"): self.det.probabilities(),
            **{
                SamplingOptions("stoch", count): self.stoch.probabilities(count)
                for count in _fixed(samples)
            },
        }

    def temperature(self, mode: Mode, samples: int) -> TemperatureFit:
        """Returns the fit of a mode's temperature to outputs at temperature 1.

        `samples` is per adapter, for mode `stoch` only.
        """
        outputs, count = (self.det, 1) if mode == "det" else (self.stoch, samples)
        trajectories = outputs.log_probabilities[:, :, :count].flatten(1, 2)
        return fit_temperature(trajectories, self.labels, self.groups)

    def at(self, temperatures: Temperatures) -> "CalibrationOutputs":
        """Returns the outputs at the temperature of each mode; these are at temperature 1."""
        det, stoch = temperatures["det"], temperatures["stoch"]
        return replace(self, det=outputs_at(self.det, det), stoch=outputs_at(self.stoch, stoch))

    def bound(self, scores: Tensor) -> ToleranceBound:
        """Returns the threshold of a score that is high in distribution.

        Args:
            scores: (n,).
        """
        lowest = -unit_scores(-scores, self.lesions.indices)
        return tolerance_bound(lowest.double().numpy(), KEPT_SHARE)


def with_thresholds(
    config: CheckpointConfig,
    outputs: CalibrationOutputs,
    distance: FeatureDistance | None,
    samples: Sequence[int | Auto],
) -> CheckpointConfig:
    """Returns the config with the thresholds of `det` and of `stoch` with each of `samples`.

    With `auto`, also of the number of samples that it is compared with, and as
    `with_auto_threshold`. A `distance` of None leaves out its thresholds.
    """
    det = _threshold("det", 1, _scored(outputs.det, distance, 1), outputs)
    fixed = [
        _threshold("stoch", count, _scored(outputs.stoch, distance, count), outputs)
        for count in _fixed(samples)
    ]
    config = config.model_copy(update={"thresholds": (*config.thresholds, det, *fixed)})
    return with_auto_threshold(config, outputs, distance) if AUTO in samples else config


def with_auto_threshold(
    config: CheckpointConfig, outputs: CalibrationOutputs, distance: FeatureDistance | None
) -> CheckpointConfig:
    """Returns the config with the thresholds of `auto`, and with margins if it has none.

    The boundaries are those of `MAX_AUTO_SAMPLES`, for which the config has thresholds: rounds end
    when they are settled. Unchanged without margins, which fewer than `MIN_IMAGES` images do not
    give.
    """
    of_precision = config.in_precision(outputs.precision)
    rule, compared = of_precision.stopping_rule(), of_precision.threshold("stoch", MAX_AUTO_SAMPLES)
    answers = answers_by_round(outputs.stoch, distance)
    margins = config.margins or fit_margins(answers, rule, outputs.data)
    if margins is None:
        return config
    ends = last_rounds(answers, replace(rule, margins=margins))
    images = _at_rounds(outputs.stoch, distance, ends)
    thresholds = (*config.thresholds, _threshold("stoch", AUTO, images, outputs, compared))
    return config.model_copy(update={"thresholds": thresholds, "margins": margins})


def precision_changes(
    config: CheckpointConfig,
    exact: CalibrationOutputs,
    rounded: CalibrationOutputs,
    distance: FeatureDistance | None,
) -> tuple[PrecisionChange, ...]:
    """Returns how many answers change in bfloat16, for det and for `DEFAULT_SAMPLES` samples.

    Outputs with fewer samples are compared with all of theirs.

    Args:
        config: With the thresholds of both precisions.
        exact: In float32.
        rounded: In bfloat16, for the same images.
        distance: None leaves out its flag.
    """
    largest = exact.stoch.log_probabilities.shape[2]
    options: tuple[tuple[Mode, int], ...] = (("det", 1), ("stoch", min(DEFAULT_SAMPLES, largest)))
    changes = []
    for mode, samples in options:
        probabilities, flags = [], []
        for outputs in (exact, rounded):
            run = outputs.det if mode == "det" else outputs.stoch
            thresholds = config.in_precision(outputs.precision).threshold(mode, samples)
            scores = ood_scores(run.scores(distance, samples), thresholds).values()
            probabilities.append(run.probabilities(samples))
            flags.append([score.flagged for score in scores if score.flagged is not None])
        one, other = probabilities
        changed = [flag != after for flag, after in zip(*flags, strict=True)]
        changes.append(
            PrecisionChange(
                mode=mode,
                samples=samples,
                images=len(one),
                probabilities=int(((one - other).abs().amax(dim=-1) > MAX_CHANGE).sum()),
                labels=int((one.argmax(dim=-1) != other.argmax(dim=-1)).sum()),
                flags=int(torch.stack(changed).any(dim=0).sum()) if changed else 0,
                data=exact.data,
            )
        )
    return tuple(changes)


@dataclass(frozen=True)
class CoverageSettings:
    """The coverages of the prediction sets to calibrate, in (0, 1), none by default.

    Attributes:
        always_include_rare: A class with too few lesions for a coverage is in every set; otherwise
            it is an error.
    """

    coverages: tuple[float, ...] = ()
    always_include_rare: bool = False


NO_COVERAGE = CoverageSettings()
"""No prediction sets."""


def check_lesions(lesions: Lesions, classes: Sequence[str], settings: CoverageSettings) -> None:
    """With `always_include_rare`, only if this is true of every class.

    Raises:
        DataError: If a class has too few lesions for one of the coverages.
    """
    if not settings.coverages:
        return
    counts = dict(zip(classes, lesions.counts(len(classes)), strict=True))
    highest = max(settings.coverages)
    needed = min_units(highest)
    rare = {name: count for name, count in counts.items() if count < needed}
    if not rare or (settings.always_include_rare and len(rare) < len(classes)):
        return
    listed = ", ".join(f"{count} of {name}" for name, count in rare.items())
    advice = "" if len(rare) == len(classes) else "; --always-include-rare puts them in every set"
    raise DataError(
        f"coverage {highest:g}: expected at least {needed} calibration {lesions.unit}s of each "
        f"class, got {listed}{advice}"
    )


def with_prediction_sets(
    config: CheckpointConfig,
    outputs: CalibrationOutputs,
    samples: Sequence[int | Auto],
    settings: CoverageSettings,
) -> CheckpointConfig:
    """Returns the config with further prediction sets, for each coverage.

    They are those of `det` and of `stoch` with each fixed number of samples.

    Raises:
        DataError: As `check_lesions`.
    """
    lesions, classes = outputs.lesions, config.class_names
    check_lesions(lesions, classes, settings)
    digest = data_sha256(outputs.images, classes)
    fitted = [
        PredictionSetCalibration(
            coverage=coverage,
            mode=options.mode,
            samples=options.samples,
            sampler=config.sampler,
            precision=outputs.precision,
            thresholds=_class_thresholds(probabilities, outputs, coverage),
            unit=lesions.unit,
            units=lesions.counts(len(classes)),
            data=outputs.data,
            data_sha256=digest,
        )
        for options, probabilities in outputs.probabilities(samples).items()
        for coverage in settings.coverages
    ]
    return config.model_copy(update={"prediction_sets": (*config.prediction_sets, *fitted)})


def _class_thresholds(
    probabilities: Tensor, outputs: CalibrationOutputs, coverage: float
) -> tuple[float, ...]:
    lesions = outputs.lesions
    scores = unit_scores(lac_scores(probabilities, outputs.labels), lesions.indices)
    thresholds = (
        class_threshold(scores[lesions.labels == label], coverage)
        for label in range(probabilities.shape[1])
    )
    return tuple(ALWAYS_INCLUDED if limit is None else limit for limit in thresholds)


def data_sha256(images: Sequence[LabelledImage], classes: Sequence[str]) -> str:
    """Returns the digest of the images' names, class names and lesions, in any order."""
    rows = sorted((image.name, classes[image.label], image.cluster or "") for image in images)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def upper_quantile(scores: Tensor, share: float) -> float:
    """Returns the lowest limit that at least a share, in (0, 1], of scores (n,) does not exceed."""
    return float(scores.sort().values[math.ceil(share * len(scores)) - 1])


def answers_by_round(outputs: ModelOutputs, distance: FeatureDistance | None) -> RoundAnswers:
    """Returns the answers by round of `auto`.

    Args:
        outputs: With at least `MAX_AUTO_SAMPLES` samples.
        distance: None without feature statistics.
    """
    return {
        samples: round_answers(
            outputs.log_probabilities[:, :, :samples].exp(),
            samples,
            outputs.scores(distance, samples).get("feature_distance"),
        )
        for samples in ROUNDS
    }


def _fixed(samples: Sequence[int | Auto]) -> list[int]:
    """Returns the numbers of samples to calibrate, ascending; `auto` is compared with its last."""
    return sorted({MAX_AUTO_SAMPLES if count == AUTO else count for count in samples})


@dataclass(frozen=True)
class _ScoredImages:
    """scores: (n,) by name. labels: (n,) predicted class indices."""

    scores: Mapping[ScoreName, Tensor]
    labels: Tensor


def _scored(outputs: ModelOutputs, distance: FeatureDistance | None, samples: int) -> _ScoredImages:
    labels = outputs.probabilities(samples).argmax(dim=-1)
    return _ScoredImages(outputs.scores(distance, samples), labels)


def _at_rounds(
    outputs: ModelOutputs, distance: FeatureDistance | None, ends: Sequence[int]
) -> _ScoredImages:
    scored = [_scored(outputs, distance, samples) for samples in ROUNDS]
    last = torch.tensor([[ROUNDS.index(end) for end in ends]])  # (1, n)

    def at_last_round(values: Iterable[Tensor]) -> Tensor:
        return torch.stack(list(values)).gather(0, last)[0]

    return _ScoredImages(
        {
            name: at_last_round(images.scores[name] for images in scored)
            for name in scored[0].scores
        },
        at_last_round(images.labels for images in scored),
    )


def _threshold(
    mode: Mode,
    samples: int | Auto,
    images: _ScoredImages,
    outputs: CalibrationOutputs,
    compared: Threshold | None = None,
) -> Threshold:
    """Returns the thresholds of images, with the boundaries of `compared`; None fits them."""
    msp, distances = images.scores["msp"], images.scores.get("feature_distance")
    bound, classes = outputs.bound(msp), outputs.det.log_probabilities.shape[-1]
    limit = bound.threshold if compared is None else compared.msp
    energy = None if compared is None else compared.energy
    distance = None if compared is None else compared.feature_distance
    counts = torch.bincount(images.labels, minlength=classes)
    return Threshold(
        mode=mode,
        samples=samples,
        msp=limit,
        kept=_share(msp >= limit),
        images=len(msp),
        data=outputs.data,
        energy=_score_threshold(images.scores["energy"], outputs, energy),
        feature_distance=None
        if distances is None
        else _score_threshold(distances, outputs, distance),
        tolerance=Tolerance(
            share=bound.share,
            confidence=bound.confidence,
            units=bound.units,
            unit=outputs.lesions.unit,
        ),
        label_shares=tuple((counts.double() / len(images.labels)).tolist()),
        precision=outputs.precision,
    )


def _score_threshold(
    scores: Tensor, outputs: CalibrationOutputs, compared: ScoreThreshold | None
) -> ScoreThreshold:
    """Returns the threshold of a score (n,) that is low in distribution.

    `compared` is as in `_threshold`.
    """
    fitted = -outputs.bound(-scores).threshold
    threshold = fitted if compared is None else compared.threshold
    return ScoreThreshold(
        threshold=threshold,
        kept=_share(scores <= threshold),
        upper_quartile=upper_quantile(scores, 0.75),
    )


def _share(values: Tensor) -> float:
    return float(values.double().mean())
