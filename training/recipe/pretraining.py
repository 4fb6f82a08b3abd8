"""The schema of a pretraining recipe: data sets, the backbone's shape, and stages."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eulerlora.settings import BackboneSettings, PositiveInt
from eulerlora.validation import Settings
from training.recipe.schema import AdamWSettings, DataSettings, Recipe


class AugmentationSettings(Settings):
    """Random augmentation of training images with torchvision's transforms.

    crop_area: least fraction of the area in a crop; 1 crops nothing. policy: `trivial`
    (TrivialAugmentWide), `rand` (RandAugment) or `none`. erasing: probability of erasing a
    rectangle. mixed: probability of MixUp or CutMix, each with p 0.5; mixup, cutmix: alpha of
    their Beta distributions. group: images of a batch that share each random draw.
    """

    crop_area: Annotated[float, Field(gt=0, le=1)] = 0.35
    policy: Literal["none", "trivial", "rand"] = "trivial"
    erasing: Annotated[float, Field(ge=0, le=1)] = 0.25
    mixed: Annotated[float, Field(ge=0, le=1)] = 0.5
    mixup: Annotated[float, Field(gt=0)] = 0.2
    cutmix: Annotated[float, Field(gt=0)] = 1.0
    group: PositiveInt = 8


class PretrainingStage(AdamWSettings):
    """A stage of pretraining at one image size; positions are interpolated between stages.

    stochastic_depth: probability of dropping a branch of the last block; it grows linearly from 0
    in the first block. ema_decay: decay of the weights' moving average, which is the result of
    the stage; 0 uses the last weights.
    """

    image_size: PositiveInt
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    stochastic_depth: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    augmentation: AugmentationSettings = AugmentationSettings()

    @model_validator(mode="after")
    def _draws_depth_once_per_batch(self) -> Self:
        repeated = self.micro_batch_rows is not None or self.activation_checkpointing
        if self.stochastic_depth and repeated:
            raise ValueError(
                "expected stochastic_depth=0 with micro_batch_rows or activation_checkpointing, "
                f"got {self.stochastic_depth}"
            )
        return self


class PretrainingRecipe(Recipe):
    """Trains a backbone of a given shape from scratch, supervised, on all data sets together."""

    data: Annotated[tuple[DataSettings, ...], Field(min_length=1)]
    backbone: BackboneSettings
    stages: Annotated[tuple[PretrainingStage, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ends_at_the_backbone_s_size(self) -> Self:
        last, size = self.stages[-1].image_size, self.backbone.image_size
        if last != size:
            raise ValueError(f"expected image_size={size} in the last stage, got {last}")
        return self
