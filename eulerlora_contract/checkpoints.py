"""Classes and thresholds of a checkpoint, which its files and `/models` state."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from eulerlora_contract.sampling import Options
from eulerlora_contract.settings import (
    NonEmpty,
    PositiveInt,
    Probability,
    Settings,
    optional,
)

Unit = Literal["picture", "lesion", "group"]
"""What a figure counts: pictures, lesions, or the groups of the data, such as patients.

A lesion or group counts once for each class of its pictures. Lesions are counted where the data
name them, else groups, and pictures only where neither is known.
"""


class ClassName(Settings):
    """A class of a model: its short name and its description for people."""

    name: NonEmpty
    description: NonEmpty
    """For people."""


class ClassGroup(Settings):
    """Classes that count together."""

    name: NonEmpty
    """A word for the classes that people read, such as malignant."""
    classes: Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
    """Names of classes."""

    @model_validator(mode="after")
    def _unique_classes(self) -> Self:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"expected unique classes, got {', '.join(self.classes)}")
        return self


class TargetClasses(ClassGroup):
    """The classes that count for triage: an image is urgent or referred by their summed
    probability.
    """

    critical: ClassGroup
    """Those of them whose lesions a required sensitivity counts; all of them by default."""

    @model_validator(mode="before")
    @classmethod
    def _all_are_critical(cls, values: Any) -> Any:
        if isinstance(values, dict) and "critical" not in values:
            group = {key: values[key] for key in ClassGroup.model_fields if key in values}
            return {**values, "critical": group}
        return values

    @model_validator(mode="after")
    def _critical_within_all(self) -> Self:
        if not set(self.critical.classes) <= set(self.classes):
            raise ValueError(f"expected critical classes of {', '.join(self.classes)}")
        return self


class ScoreThreshold(Settings):
    """The threshold of an OOD score that is high out of distribution; checkpoints contain it too.

    An image with a score above `threshold` is flagged.
    """

    threshold: float
    """In the unit of the score."""
    kept: Probability
    """Share of the in-distribution images that are not flagged."""
    upper_quartile: float
    """Value of the score that at most a quarter of them exceed, by which a monitor finds smaller
    shifts.
    """


class Tolerance(Settings):
    """What a threshold keeps of new images like those of its calibration."""

    share: Probability
    """Of new units, all images of which are kept."""
    confidence: Probability
    """That at least this share is kept; below 0.95 if there were too few units (59 for a share of
    0.95).
    """
    units: PositiveInt
    """Number of units."""
    unit: Unit

    @property
    def summary(self) -> str:
        """The statement in words."""
        return (
            f"at least {self.share:.0%} of new {self.unit}s with a confidence of "
            f"{self.confidence:.0%} ({self.units:,} {self.unit}s)"
        )


class Threshold(Settings):
    """The OOD thresholds of predictions with the same options; checkpoints contain them too.

    An image with an MSP below `msp` is flagged as out of distribution.
    """

    options: Options
    """Of the predictions that the thresholds were fitted to."""
    msp: Probability
    """The threshold."""
    kept: Probability
    """Share of the images with an MSP at or above it."""
    images: PositiveInt
    """Number of in-distribution images."""
    data: str
    """Where the images come from."""
    energy: ScoreThreshold | None = None
    """Null if it was not calibrated."""
    feature_distance: ScoreThreshold | None = None
    """Null if it was not calibrated."""
    tolerance: Tolerance | None = optional(None)
    """Of each score alone; null if it was not computed."""
    label_shares: tuple[Probability, ...] | None = None
    """Share of the images with each label, in the order of the classes; null if it was not
    recorded.
    """


def missing_threshold(thresholds: Iterable[Threshold], options: Options) -> str | None:
    """Names the options with a threshold, or the command that makes them.

    None if these options have one, in any precision.
    """
    fitted = [entry.options for entry in thresholds]
    if any(known.holds_for(options) for known in fitted):
        return None
    if not fitted:
        return (
            "the checkpoint has no OOD thresholds; `eulerlora calibrate CHECKPOINT --data DIR "
            "--out NEW` makes one with thresholds"
        )
    known = "; ".join(map(str, fitted))
    return f"the checkpoint has no OOD threshold for {options}, only for {known}"
