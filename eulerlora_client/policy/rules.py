"""The tables of a policy file: thresholds for quality, the malignant group and uncertainty."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from eulerlora_client.contract.fields import Probability
from eulerlora_client.settings import Settings

Name = Annotated[str, Field(min_length=1)]


class QualityRules(Settings):
    """Thresholds for retaking an image; a value equal to its threshold counts as beyond it.

    too_small_px: shorter side in pixels, at most. too_dark, too_bright: mean luma, 0 to 1.
    too_dark_share, too_bright_share: share of clipped pixels. blurred: variance of the Laplacian,
    at most (`eulerlora_client.policy.quality`).
    """

    too_small_px: Annotated[int, Field(ge=0)]
    too_dark: Probability
    too_bright: Probability
    too_dark_share: Probability
    too_bright_share: Probability
    blurred: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _dark_below_bright(self) -> Self:
        if self.too_dark >= self.too_bright:
            raise ValueError(
                f"expected too_dark below too_bright={self.too_bright}, got {self.too_dark}"
            )
        return self


class MalignantRules(Settings):
    """An image is urgent if the summed probability of `classes` is at least `urgent`."""

    classes: Annotated[tuple[Name, ...], Field(min_length=1)]
    urgent: Annotated[float, Field(gt=0, le=1)]

    @model_validator(mode="after")
    def _unique_classes(self) -> Self:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"expected unique classes, got {', '.join(self.classes)}")
        return self


class UncertaintyRules(Settings):
    """An image is referred if its predictive entropy, in nats, is at least `entropy_nats`."""

    entropy_nats: Annotated[float, Field(gt=0)]
