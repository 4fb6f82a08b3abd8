"""The parts of a policy file: thresholds for quality, the malignant group and uncertainty."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from eulerlora.settings import Mode, PositiveInt, Settings

Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


class QualityRules(Settings):
    """When a picture is to be taken again; each threshold itself already counts.

    too_small_px: longest shorter side. too_dark, too_bright: mean luma, 0 to 1. too_dark_share,
    too_bright_share: of clipped pixels. blurred: highest variance of the Laplacian
    (eulerlora_client.policy.quality).
    """

    too_small_px: Annotated[int, Field(ge=0)]
    too_dark: Share
    too_bright: Share
    too_dark_share: Share
    too_bright_share: Share
    blurred: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _something_is_neither_dark_nor_bright(self) -> Self:
        if self.too_dark >= self.too_bright:
            raise ValueError(f"too_dark={self.too_dark} must be below too_bright={self.too_bright}")
        return self


class MalignantRules(Settings):
    """When a picture is urgent: the summed probability of `classes` is `urgent` or more."""

    classes: Annotated[tuple[Name, ...], Field(min_length=1)]
    urgent: Annotated[float, Field(gt=0, le=1)]

    @model_validator(mode="after")
    def _no_class_twice(self) -> Self:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("a class stands twice in classes")
        return self


class UncertaintyRules(Settings):
    """When a picture is referred: predictive entropy, in nats, of `entropy_nats` or more."""

    entropy_nats: Annotated[float, Field(gt=0)]


class Evidence(Settings):
    """How `malignant.urgent` came about: what `eulerlora policy fit` measured, and on what.

    model, revision, mode, samples: what the threshold is for. images: all that it was measured on.
    lesions, found: lesions of class `target`, and those of them with all images at or above the
    threshold; sensitivity: their share, lower_bound: its one-sided exact bound at `confidence`;
    established: whether that reaches `wanted`. specificity: share of the images outside the
    malignant group below the threshold. referral_rate: of all images, those urgent or referred.
    """

    model: Name
    revision: Name
    mode: Mode
    samples: PositiveInt
    data: Name
    images: PositiveInt
    target: Name
    lesions: PositiveInt
    found: Annotated[int, Field(ge=0)]
    wanted: Share
    sensitivity: Share
    lower_bound: Share
    confidence: Share
    established: bool
    specificity: Share
    referral_rate: Share
