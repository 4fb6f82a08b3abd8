"""The parts of `config.json` that `eulerlora calibrate` fits."""

from collections.abc import Hashable, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from eulerlora.settings import Auto, Mode, PositiveInt, Precision, RequestMode, Sampler, optional
from eulerlora.validation import Settings

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Margin = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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

    @property
    def options(self) -> Hashable:
        """The predictions that the thresholds apply to, up to their precision."""
        return self.mode, self.samples


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

    @property
    def options(self) -> Hashable:
        """The coverage, and the predictions that it holds for, up to their precision."""
        return self.coverage, self.mode, self.samples, self.sampler


FittedEntry = TypeVar("FittedEntry", Threshold, PredictionSetCalibration)


def of_precision(entries: Sequence[FittedEntry], precision: Precision) -> tuple[FittedEntry, ...]:
    """Returns the entries in a precision, and those in another one for the remaining options."""
    chosen: dict[Hashable, FittedEntry] = {}
    for entry in entries:
        if entry.options not in chosen or entry.precision == precision:
            chosen[entry.options] = entry
    return tuple(chosen.values())
