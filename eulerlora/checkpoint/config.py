"""The schema of `config.json`, the description of a checkpoint."""

import hashlib
from collections.abc import Hashable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eulerlora.methods.registry import DEFAULT_METHOD, NamedMethod
from eulerlora.sampling.adaptive import MIN_IMAGES, DecisionMargins, StoppingRule
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.scores.prediction_sets import PredictionSetCalibration
from eulerlora.settings import BackboneSettings, Preprocessing, Provenance, Temperatures
from eulerlora_contract.checkpoints import ClassName, TargetClasses, Threshold
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import (
    AUTO,
    DEFAULT_SAMPLES,
    MAX_AUTO_SAMPLES,
    Auto,
    Mode,
    Options,
    Precision,
    Sampler,
    Views,
    applying,
)
from eulerlora_contract.settings import Count, PositiveInt, Probability, Settings, Sha256, optional

_MAX_PARAMETERS = 2**33
"""Of a backbone: 34 GB in float32."""
_MAX_TOKENS = 2**14 + 1

MODEL_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"


class BackboneConfig(Settings):
    """The frozen backbone that the adapters were trained on.

    Attributes:
        published: Name of torchvision's weights; None if they are in `backbone.safetensors`.
        sha256: As `eulerlora.checkpoint.weights.tensors_sha256`.
        provenance: Origin of weights that are not published ones.
    """

    settings: BackboneSettings
    published: str | None
    sha256: Sha256
    provenance: Provenance = {}

    @model_validator(mode="after")
    def _fits_a_machine(self) -> Self:
        shape = self.settings
        if shape.tokens > _MAX_TOKENS:
            raise ValueError(f"expected at most {_MAX_TOKENS:,} tokens, got {shape.tokens:,}")
        block = 4 * shape.width**2 + 2 * shape.width * shape.mlp_width
        embedding = (shape.tokens + 3 * shape.patch_size**2) * shape.width
        parameters = shape.layers * block + embedding
        if parameters > _MAX_PARAMETERS:
            raise ValueError(f"expected at most {_MAX_PARAMETERS:,} weights, got {parameters:,}")
        return self


class AdapterConfig(Settings):
    """The settings of the adapters.

    Attributes:
        sha256: Of the tensors in `adapters.safetensors`.
    """

    settings: AdapterSettings
    sha256: Sha256


class FeatureConfig(Settings):
    """The statistics of features in mode `det`, in `ood.safetensors`.

    Attributes:
        sha256: Of the tensors in this file.
        shrinkage: Weight of the diagonal in the covariance.
        components: Number of means.
        images: Number of training images.
        data: Where these come from.
    """

    sha256: Sha256
    shrinkage: Probability
    components: Annotated[PositiveInt, Field(le=65_536)]
    images: PositiveInt
    data: str


MAX_CHANGE = 0.01
"""A probability that changes by more counts as changed: people read the first two digits."""
_MAX_CHANGED_DECISIONS, _MAX_CHANGED_PROBABILITIES = 0.01, 0.02
"""Largest shares of the calibration images that `precision=auto` accepts to change in bfloat16:
those with another label or another flag, and those with a changed probability. A decision changes
only next to its boundary, where another seed would change it too; a probability changes by little
more than `MAX_CHANGE`.
"""


class PrecisionChange(Settings):
    """How many answers change between float32 and bfloat16.

    Attributes:
        options: Of the answers in bfloat16.
        images: Number of calibration images.
        probabilities: Images with a probability that changes by more than `MAX_CHANGE`.
        labels: Images with another label.
        flags: Images with another OOD flag of any score.
        data: Where the images come from.
    """

    options: Options
    images: PositiveInt
    probabilities: Count
    labels: Count
    flags: Count
    data: str

    @property
    def admissible(self) -> bool:
        """True if few enough answers change for `precision=auto`."""
        decisions = max(self.labels, self.flags) <= _MAX_CHANGED_DECISIONS * self.images
        return decisions and self.probabilities <= _MAX_CHANGED_PROBABILITIES * self.images

    @property
    def summary(self) -> str:
        """The counts in words."""
        mode, samples = self.options.mode, self.options.samples
        sampled = "" if mode == "det" else f" with {samples} sample{'s' * (samples != 1)}"
        return (
            f"bfloat16 in mode {mode}{sampled} changes a probability of {self.probabilities}, "
            f"the label of {self.labels} and a flag of {self.flags} of {self.images:,} images"
        )


class CheckpointConfig(Settings):
    """The content of `config.json`; its digest, the revision, covers all that an answer depends on.

    Attributes:
        method: How rows are drawn and computed; `adapters` has the settings that all methods share.
        target: The classes that count for triage; None if none were named.
        sampler: The default of mode stoch.
        views: As `sampler`; in mode det the default is 1.
        temperature: The logits are divided by it before the softmax.
        stoch_temperature: The same for mode stoch; None for `temperature`.
        thresholds: Of the OOD scores.
        margins: When `samples=auto` ends; None if they were not fitted.
        features: Describes the feature statistics; None if they were not fitted.
        training_images_sha256: Digest of `training_images.safetensors`; None without this file.
        bfloat16: For det and for the default number of samples: what `precision=auto` decides by.
    """

    format_version: Literal[2] = 2
    name: Annotated[str, Field(pattern=MODEL_NAME)]
    backbone: BackboneConfig
    adapters: AdapterConfig
    method: NamedMethod = optional(DEFAULT_METHOD)
    classes: Annotated[tuple[ClassName, ...], Field(min_length=2)]
    target: TargetClasses | None = optional(None)
    preprocessing: Preprocessing
    sampler: Sampler = "independent"
    views: Views = optional(1)
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    stoch_temperature: float | None = optional(None, gt=0)
    thresholds: tuple[Threshold, ...] = ()
    margins: DecisionMargins | None = optional(None)
    features: FeatureConfig | None = None
    prediction_sets: tuple[PredictionSetCalibration, ...] = ()
    provenance: Provenance
    training_images_sha256: Sha256 | None = optional(None)
    bfloat16: tuple[PrecisionChange, ...] = optional(())

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = self.class_names
        if len(set(names)) != len(names):
            raise ValueError("two classes have the same name")
        unknown = set() if self.target is None else set(self.target.classes) - set(names)
        if unknown:
            raise ValueError(f"expected target classes of {', '.join(names)}, got {unknown.pop()}")
        fitted = [entry.options for entry in self.thresholds]
        if len(set(fitted)) != len(fitted):
            raise ValueError("two thresholds are for the same options")
        keys = [(sets.coverage, sets.options) for sets in self.prediction_sets]
        if len(set(keys)) != len(keys):
            raise ValueError("two prediction_sets are for the same coverage and options")
        if self.preprocessing.size != self.backbone.settings.image_size:
            raise ValueError("preprocessing.size differs from the backbone's image_size")
        return self

    @model_validator(mode="after")
    def _an_entry_for_each_class(self) -> Self:
        classes = len(self.classes)
        for threshold in self.thresholds:
            if threshold.label_shares is not None and len(threshold.label_shares) != classes:
                raise ValueError(
                    f"thresholds: expected {classes} label_shares, got "
                    f"{len(threshold.label_shares)}"
                )
        for sets in self.prediction_sets:
            counts = {len(sets.thresholds), len(sets.units), len(sets.confidences)}
            if counts != {classes}:
                raise ValueError(
                    f"prediction_sets: expected {classes} thresholds, units and confidences, got "
                    f"{', '.join(map(str, sorted(counts)))}"
                )
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.classes)

    @property
    def sampling_digest(self) -> str:
        """SHA-256 of what determines sampled trajectories: the weights and the law of the draws.

        Content seeds derive from it, so that new thresholds, texts or a temperature do not move
        sampled answers (docs/explanation/sampling.md).
        """
        fields = {"adapters", "method", "sampler", "views"}
        parts = [self.backbone.sha256, self.model_dump_json(include=fields)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def bfloat16_fault(self) -> str | None:
        """Why `precision=auto` does not use bfloat16; None if it changes few answers."""
        if not self.bfloat16:
            return "the checkpoint has no comparison with bfloat16; `eulerlora calibrate` makes it"
        faults = (entry.summary for entry in self.bfloat16 if not entry.admissible)
        return next(faults, None)

    def in_precision(self, precision: Precision) -> Self:
        """Selects the thresholds and prediction sets of one precision.

        An entry of another precision stays where this one has none.
        """
        thresholds: dict[Hashable, Threshold] = {}
        sets: dict[Hashable, PredictionSetCalibration] = {}
        for threshold in self.thresholds:
            options = threshold.options.in_precision(precision)
            if options not in thresholds or threshold.options == options:
                thresholds[options] = threshold
        for entry in self.prediction_sets:
            options = entry.options.in_precision(precision)
            if (entry.coverage, options) not in sets or entry.options == options:
                sets[entry.coverage, options] = entry
        return self.model_copy(
            update={
                "thresholds": tuple(thresholds.values()),
                "prediction_sets": tuple(sets.values()),
            }
        )

    def calibration_mismatch(self, precision: Precision) -> str | None:
        """A warning if OOD thresholds were fitted in another precision."""
        others = {entry.options.precision for entry in self.in_precision(precision).thresholds}
        others -= {precision}
        if not others:
            return None
        return (
            f"the OOD thresholds were fitted in {' and '.join(sorted(others))} and apply in "
            f"{precision}; `eulerlora calibrate` fits them again"
        )

    @property
    def temperatures(self) -> Temperatures:
        return {"det": self.temperature, "stoch": self.stoch_temperature or self.temperature}

    def default_views(self, mode: Mode) -> Views:
        return 1 if mode == "det" else self.views

    def options(
        self,
        mode: Mode = "det",
        samples: int | Auto | None = None,
        sampler: Sampler | None = None,
        views: Views | None = None,
        precision: Precision = "float32",
    ) -> Options:
        """Options of a prediction; None stands for the default.

        Raises:
            SettingsError: For samples in mode det; for `auto` without margins, or with another
                sampler or other views than those of the margins.
        """
        if mode == "det" and samples is not None:
            raise SettingsError("samples: expected only with mode=stoch")
        chosen = Options(
            mode=mode,
            samples=1 if mode == "det" else DEFAULT_SAMPLES if samples is None else samples,
            sampler="independent" if mode == "det" else sampler or self.sampler,
            views=self.default_views(mode) if views is None else views,
            precision=precision,
        )
        if samples != AUTO:
            return chosen
        if self.margins is None:
            raise SettingsError(
                "samples: expected a number, because the model has no decision margins for auto; "
                f"eulerlora calibrate fits them to {MIN_IMAGES} calibration images or more"
            )
        for name in ("sampler", "views"):
            fitted, asked = getattr(self.margins.options, name), getattr(chosen, name)
            if asked != fitted:
                raise SettingsError(
                    f"{name}: expected {fitted}, that of the decision margins, with samples=auto, "
                    f"got {asked}"
                )
        return chosen

    def threshold(self, options: Options) -> Threshold | None:
        return next(iter(applying(self.thresholds, options)), None)

    def prediction_set_calibration(
        self, options: Options, coverage: float
    ) -> PredictionSetCalibration | None:
        fitting = applying(self.prediction_sets, options)
        return next((entry for entry in fitting if entry.coverage == coverage), None)

    def stopping_rule(self, precision: Precision = "float32") -> StoppingRule:
        """The rule without a policy, with the flags of `MAX_AUTO_SAMPLES` samples."""
        options = self.options("stoch", MAX_AUTO_SAMPLES, precision=precision)
        threshold = self.threshold(options)
        if threshold is None:
            return StoppingRule(margins=self.margins)
        distance = threshold.feature_distance
        return StoppingRule(
            msp=threshold.msp,
            feature_distance=None if distance is None else distance.threshold,
            margins=self.margins,
        )
