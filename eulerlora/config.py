"""The schema of `config.json`, the description of a checkpoint."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from eulerlora.method_settings import EULERLORA, MethodSettings
from eulerlora.settings import (
    AdapterSettings,
    Auto,
    BackboneSettings,
    Mode,
    PositiveInt,
    Precision,
    Preprocessing,
    RequestMode,
    Sampler,
    optional,
)
from eulerlora.validation import Settings

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Margin = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Provenance = dict[str, Any]

MAX_PARAMETERS = 2**33
"""Of a backbone: 34 GB in float32."""
MAX_TOKENS = 2**14 + 1


class ClassName(Settings):
    """A class of the label set: its short name and its description."""

    name: Annotated[str, Field(min_length=1)]
    description: Annotated[str, Field(min_length=1)]


class BackboneConfig(Settings):
    """The frozen backbone that the adapters were trained on.

    published: the name of torchvision's weights; None if they are in `backbone.safetensors`.
    sha256: digest of the weights (`eulerlora.safetensor_files.tensors_sha256`).
    provenance: the origin of weights that are not published.
    """

    settings: BackboneSettings
    published: str | None
    sha256: Sha256
    provenance: Provenance = {}

    @model_validator(mode="after")
    def _fits_a_machine(self) -> Self:
        shape = self.settings
        if shape.tokens > MAX_TOKENS:
            raise ValueError(f"expected at most {MAX_TOKENS:,} tokens, got {shape.tokens:,}")
        block = 4 * shape.width**2 + 2 * shape.width * shape.mlp_width
        embedding = (shape.tokens + 3 * shape.patch_size**2) * shape.width
        parameters = shape.layers * block + embedding
        if parameters > MAX_PARAMETERS:
            raise ValueError(f"expected at most {MAX_PARAMETERS:,} weights, got {parameters:,}")
        return self


class AdapterConfig(Settings):
    """The settings of the adapters and the digest of the tensors in `adapters.safetensors`."""

    settings: AdapterSettings
    sha256: Sha256


class ScoreThreshold(Settings):
    """The threshold of an OOD score that is high out of distribution.

    An image with a score above `threshold` is flagged. kept: fraction of the in-distribution images
    that are not flagged. upper_quartile: score that at most a quarter of them exceed, by which a
    monitor finds smaller shifts.
    """

    threshold: Annotated[float, Field(allow_inf_nan=False)]
    kept: Share
    upper_quartile: Annotated[float, Field(allow_inf_nan=False)]


class Threshold(Settings):
    """The OOD thresholds of a mode and a number of samples.

    An image with an MSP below `msp` is flagged as out of distribution (`ood`). samples: per
    adapter, or `auto`, also in mode `adaptive`. kept: fraction of the `images` in-distribution
    images of `data` with an MSP of at least `msp`. energy, feature_distance: thresholds of others
    (`eulerlora.ood_scores`); None if they were not calibrated. label_shares: share of the images
    with each label, in the order of the classes; None if it was not recorded. precision: of the
    predictions that the thresholds were fitted to.
    """

    mode: RequestMode
    samples: PositiveInt | Auto
    msp: Share
    kept: Share
    images: PositiveInt
    data: str
    energy: ScoreThreshold | None = None
    feature_distance: ScoreThreshold | None = None
    label_shares: tuple[Share, ...] | None = None
    precision: Precision = optional("float32")


class RoundMargins(Settings):
    """The margins of a round of samples: a decision is settled if its value is further from its
    boundary than that (`eulerlora.round_answer`).

    samples: per adapter, 0 for the pass in mode det. lead: log-odds of the first class against the
    second. log_odds: of the probability of a class or of several. entropy: in nats. agreement:
    least log-odds of the label among trajectories. feature_distance: None without statistics.
    """

    samples: Annotated[int, Field(ge=0)]
    lead: Margin
    log_odds: Margin
    entropy: Margin
    agreement: Margin
    feature_distance: Margin | None = None


class DecisionMargins(Settings):
    """The margins by which `samples=auto` and mode `adaptive` decide, for the checkpoint's sampler.

    level: share of the images within each margin. agreement: share of the images whose label and
    flags are those of `compared_with` samples. They were fitted on the `images` images of `data`
    (`eulerlora.decision_margins`).
    """

    level: Share
    agreement: Share
    compared_with: PositiveInt
    rounds: tuple[RoundMargins, ...]
    images: PositiveInt
    data: str

    def of_round(self, samples: int) -> RoundMargins | None:
        """Returns the margins after a number of samples per adapter, or None."""
        return next((entry for entry in self.rounds if entry.samples == samples), None)


class FeatureConfig(Settings):
    """The statistics in `ood.safetensors` and the digest of its tensors.

    They were computed from the features of the `images` training images of `data`, in mode `det`.
    shrinkage: weight of the diagonal in the covariance, 0 to 1. components: number of means.
    """

    sha256: Sha256
    shrinkage: Share
    components: Annotated[PositiveInt, Field(le=65_536)]
    images: PositiveInt
    data: str


class PredictionSetCalibration(Settings):
    """Thresholds of class-conditional prediction sets (`eulerlora.prediction_sets`).

    coverage: stated probability that a set contains the true class. mode, samples, sampler,
    precision: the predictions that the thresholds apply to. thresholds: one per class; a class with
    probability p is in the set if 1 - p is at most its threshold, and always if that is 1. units:
    number of calibration units of each class, which are lesions or images. data_sha256: digest of
    the calibration images' names, labels and units.
    """

    coverage: Annotated[float, Field(gt=0, lt=1)]
    mode: Mode
    samples: PositiveInt
    sampler: Sampler
    precision: Precision
    thresholds: tuple[Share, ...]
    unit: Literal["lesion", "image"]
    units: tuple[Annotated[int, Field(ge=0)], ...]
    data: str
    data_sha256: Sha256


class CheckpointConfig(Settings):
    """The content of `config.json`.

    method: how rows are drawn and computed; `adapters` has the settings that all methods share.
    sampler: the default sampler of an image; the thresholds of `stoch` are valid for it only.
    sampled_from_block: the first block that is sampled (`Draw`), below the number of blocks.
    temperature: the logits are divided by it before the softmax. features: describes the feature
    statistics; None if they were not fitted.
    """

    format_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    backbone: BackboneConfig
    adapters: AdapterConfig
    method: MethodSettings = optional(EULERLORA)
    classes: Annotated[tuple[ClassName, ...], Field(min_length=2)]
    preprocessing: Preprocessing
    sampler: Sampler = "independent"
    sampled_from_block: int = optional(0, ge=0)
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    thresholds: tuple[Threshold, ...] = ()
    margins: DecisionMargins | None = optional(None)
    features: FeatureConfig | None = None
    prediction_sets: tuple[PredictionSetCalibration, ...] = ()
    provenance: Provenance

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [label.name for label in self.classes]
        if len(set(names)) != len(names):
            raise ValueError("two classes have the same name")
        keys = [(threshold.mode, threshold.samples) for threshold in self.thresholds]
        if len(set(keys)) != len(keys):
            raise ValueError("two thresholds are for the same mode and samples")
        self._check_counts(len(names))
        if self.preprocessing.size != self.backbone.settings.image_size:
            raise ValueError("preprocessing.size differs from the backbone's image_size")
        layers = self.backbone.settings.layers
        if self.sampled_from_block >= layers:
            raise ValueError(
                f"expected sampled_from_block below layers={layers}, got {self.sampled_from_block}"
            )
        return self

    def _check_counts(self, classes: int) -> None:
        """Raises ValueError for a per-class entry with another number of classes."""
        for threshold in self.thresholds:
            if threshold.label_shares is not None and len(threshold.label_shares) != classes:
                raise ValueError(
                    f"thresholds: expected {classes} label_shares, got "
                    f"{len(threshold.label_shares)}"
                )
        for sets in self.prediction_sets:
            if len(sets.thresholds) != classes or len(sets.units) != classes:
                raise ValueError(
                    f"prediction_sets: expected {classes} thresholds and units, got "
                    f"{len(sets.thresholds)} and {len(sets.units)}"
                )

    @model_validator(mode="after")
    def _different_prediction_sets(self) -> Self:
        keys = [
            (sets.coverage, sets.mode, sets.samples, sets.sampler, sets.precision)
            for sets in self.prediction_sets
        ]
        if len(set(keys)) != len(keys):
            raise ValueError("two prediction_sets are for the same coverage and options")
        return self

    def threshold(
        self, mode: RequestMode, samples: int | Auto, sampler: Sampler | None = None
    ) -> Threshold | None:
        """Returns the OOD thresholds; None if these options were not calibrated.

        sampler: of the samples; None for the checkpoint's sampler.
        """
        if mode != "det" and sampler not in (None, self.sampler):
            return None
        for threshold in self.thresholds:
            if (threshold.mode, threshold.samples) == (mode, samples):
                return threshold
        return None

    def margins_for(self, sampler: Sampler | None = None) -> DecisionMargins | None:
        """Returns the decision margins, or None. sampler: None for the checkpoint's sampler."""
        return self.margins if sampler in (None, self.sampler) else None

    def convergence_threshold(self, sampler: Sampler | None = None) -> Threshold | None:
        """Returns the thresholds for the convergence of adaptive sampling, or None.

        They are those of the largest calibrated number of samples: the threshold of `auto` is
        calibrated on converged images and so cannot decide their convergence. sampler: as in
        `threshold`.
        """
        counts = [
            threshold.samples
            for threshold in self.thresholds
            if threshold.mode == "stoch" and isinstance(threshold.samples, int)
        ]
        return self.threshold("stoch", max(counts), sampler) if counts else None
