"""A model on a device: runs prepared inputs with the options of its checkpoint.

The service holds one for each checkpoint and prepares the inputs in decoders; `eulerlora.model`
reads checkpoints and pictures.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eulerlora.answer import Predictions
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.nn.device import upload_stack
from eulerlora.nn.network import FEATURES_PER_WIDTH, AdaptedVisionTransformer, predict_images
from eulerlora.nn.runtime import Runtime, predict_adaptively
from eulerlora.precision import decide_runtime
from eulerlora.sampling.adaptive import StoppingRule
from eulerlora.scores.ood_scores import FeatureDistance, ScoredByName, flagged_scores
from eulerlora.scores.prediction_sets import PredictionSets, prediction_sets
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw, RuntimeSettings
from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.checkpoints import Threshold, missing_threshold
from eulerlora_contract.sampling import AUTO, Auto, Mode, Options, Precision, Sampler, Views

_MAX_BATCH_IMAGES = 32
"""Limits the memory of a batch on a device without a limit of rows per pass."""


class InferenceModel:
    """A network on a device, with the config of its checkpoint.

    Attributes:
        classes: The class names, in the order of the probabilities.
        precision: Of the matrix products.
        precision_reason: Why it was chosen.
        runtime_reason: Why the runtime was chosen.
    """

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        config: CheckpointConfig,
        revision: str,
        feature_distance: FeatureDistance | None,
        device: torch.device,
        runtime: RuntimeSettings,
        precision_reason: str,
    ) -> None:
        decision = decide_runtime(network, device, runtime, revision)
        self.runtime: Runtime = decision.runtime
        self.runtime_reason = decision.reason
        self.config = config.in_precision(runtime.precision)
        self.revision = revision
        self.feature_distance = feature_distance
        self.device = device
        self.precision: Precision = runtime.precision
        self.precision_reason = precision_reason
        self.classes: tuple[str, ...] = config.class_names

    @property
    def network(self) -> AdaptedVisionTransformer:
        return self.runtime.network

    def options(
        self,
        mode: Mode = "det",
        samples: int | Auto | None = None,
        sampler: Sampler | None = None,
        views: Views | None = None,
    ) -> Options:
        """Options of a prediction, as `CheckpointConfig.options`."""
        return self.config.options(mode, samples, sampler, views, self.precision)

    def run(
        self,
        inputs: Iterable[tuple[Tensor, int]],
        options: Sequence[Options],
        batch_size: int | None = None,
        rule: StoppingRule | None = None,
    ) -> list[Trajectories]:
        """Runs the same images with each of `options`, of which there is at least one.

        `inputs` has the network's input (3, size, size) of each image, in [0, 1], and its seed; it
        is read batch by batch. `batch_size` of None is as many as run in one pass, up to
        `_MAX_BATCH_IMAGES`; `rule` of None is `CheckpointConfig.stopping_rule`.

        Raises:
            SettingsError: For a seed or an option out of range.
        """
        for choice in options:
            Draw.of(choice)  # raises before an image is read
        rule = rule or self.config.stopping_rule(self.precision)
        size = batch_size or max(self._images_per_pass(choice) for choice in options)
        parts: list[list[Trajectories]] = [[] for _ in options]
        remaining = iter(inputs)
        while batch := list(itertools.islice(remaining, size)):
            pixels = upload_stack([image for image, _ in batch], self.device)
            seeds = [seed for _, seed in batch]
            for choice, of_choice in zip(options, parts, strict=True):
                step = batch_size or self._images_per_pass(choice)
                for start in range(0, len(seeds), step):
                    part = slice(start, start + step)
                    draws = [Draw.of(choice, seed) for seed in seeds[part]]
                    of_choice.extend(self._batch(pixels[part], draws, choice, rule))
        return [
            Trajectories.cat(of_choice) if of_choice else self._empty(choice)
            for choice, of_choice in zip(options, parts, strict=True)
        ]

    def answer(
        self,
        trajectories: Trajectories,
        options: Options,
        coverage: float | None = None,
        summary: Predictions | None = None,
    ) -> Predictions:
        """Uncertainty, scores, flags and sets of n images, predicted with these options.

        Args:
            trajectories: Of the images.
            options: Of the predictions.
            coverage: Adds prediction sets.
            summary: Of the trajectories, without thresholds, if it is known.

        Raises:
            NonFiniteError: For NaN or infinite logits.
        """
        config = self.config
        if summary is None:
            summary = Predictions.of(trajectories, self.feature_distance)
        values = {name: score.value for name, score in summary.ood_scores.items()}
        scores = flagged_scores(values, config.threshold(options))
        warnings = list(_missing_thresholds(scores, options, config.thresholds))
        sets = None
        if coverage is not None:
            sets, of_sets = _calibrated_sets(summary.probabilities, coverage, options, config)
            warnings += of_sets
        samples, adapters = trajectories.samples, trajectories.views.shape[1]
        return replace(
            summary,
            ood_scores=scores,
            classes=self.classes,
            options=options,
            runtime=self.runtime.name,
            samples=torch.ones_like(samples) if options.mode == "det" else samples,
            rows=adapters * samples if options.samples == AUTO else None,
            coverage=coverage,
            prediction_sets=sets,
            warnings=tuple(warnings),
        )

    def _batch(
        self, pixels: Tensor, draws: list[Draw], options: Options, rule: StoppingRule
    ) -> list[Trajectories]:
        network, temperatures = self.runtime, self.config.temperatures
        if options.samples != AUTO:
            return predict_images(network, pixels, draws, temperatures)
        distance = self.feature_distance
        return predict_adaptively(network, pixels, draws, rule, temperatures, distance)

    def _images_per_pass(self, options: Options) -> int:
        rows = self.network.settings.adapters * Draw.of(options).count
        return max(1, min(_MAX_BATCH_IMAGES, self.runtime.max_rows_per_pass // rows))

    def _empty(self, options: Options) -> Trajectories:
        shape = (0, self.network.settings.adapters, Draw.of(options).count)
        width = FEATURES_PER_WIDTH * self.config.backbone.settings.width
        return Trajectories.of(
            torch.empty(*shape, len(self.classes), dtype=torch.float64),
            torch.empty(*shape, width),
            torch.empty(shape, dtype=torch.int64),
        )


def _missing_thresholds(
    scores: ScoredByName, options: Options, thresholds: Sequence[Threshold]
) -> Iterator[PredictionWarning]:
    """The reason of every null flag; a missing threshold of the MSP explains all of them."""
    missing = [name for name, score in scores.items() if score.flagged is None]
    sampled = f" with samples={options.samples}" if options.mode == "stoch" else ""
    if "msp" in missing:
        message = missing_threshold(thresholds, options)
        assert message is not None  # every threshold has one of the MSP
    elif missing:
        names = ", ".join(missing)
        message = f"the checkpoint has no threshold of {names} for mode {options.mode}{sampled}"
    else:
        return
    yield PredictionWarning(code=WarningCode.NO_OOD_THRESHOLD, message=message)


def _calibrated_sets(
    probabilities: Tensor, coverage: float, options: Options, config: CheckpointConfig
) -> tuple[PredictionSets | None, list[PredictionWarning]]:
    """Prediction sets of n images, and why they are missing or hold only nearly."""
    calibration = config.prediction_set_calibration(options, coverage)
    if calibration is None:
        available: dict[Options, list[str]] = {}
        for entry in config.prediction_sets:
            available.setdefault(entry.options, []).append(f"{entry.coverage:g}")
        known = "; ".join(f"{' and '.join(of)} for {fitted}" for fitted, of in available.items())
        reason = (
            f"the checkpoint has no prediction sets with coverage {coverage:g} for {options}; it "
            f"has {known or 'none'}"
        )
        return None, [PredictionWarning(code=WarningCode.NO_PREDICTION_SET, message=reason)]
    sets = prediction_sets(probabilities, calibration, config.class_names)
    if calibration.options == options:
        return sets, []
    mismatch = (
        f"the prediction sets were calibrated in {calibration.options.precision} and the "
        f"prediction is in {options.precision}: their coverage holds up to the difference between "
        "both"
    )
    return sets, [PredictionWarning(code=WarningCode.OTHER_PRECISION, message=mismatch)]
