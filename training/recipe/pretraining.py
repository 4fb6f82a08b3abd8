"""What a recipe of pretraining says: data sets, the backbone's shape, and stages."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eulerlora.settings import BackboneSettings, PositiveInt, Settings
from training.recipe.schema import AdamWSettings, DataSettings, Recipe


class AugmentationSettings(Settings):
    """What is done to training images at random, by torchvision's transforms.

    crop_area: least share of an image's area in its crop; 1 crops nothing. policy: one more
    change of colours or geometry, `trivial` (TrivialAugmentWide), or two of them, `rand`
    (RandAugment). erasing: how often a rectangle is erased. mixed: how often images are mixed,
    by MixUp and CutMix in turn at random; mixup, cutmix: alpha of their Beta distributions.
    group: images of a batch that share each draw; they are augmented in one go.
    """

    crop_area: Annotated[float, Field(gt=0, le=1)] = 0.35
    policy: Literal["none", "trivial", "rand"] = "trivial"
    erasing: Annotated[float, Field(ge=0, le=1)] = 0.25
    mixed: Annotated[float, Field(ge=0, le=1)] = 0.5
    mixup: Annotated[float, Field(gt=0)] = 0.2
    cutmix: Annotated[float, Field(gt=0)] = 1.0
    group: PositiveInt = 8


class PretrainingStage(AdamWSettings):
    """One stage of pretraining, at one image size; positions are interpolated between stages.

    stochastic_depth: how often the last block's branches are left out for an image; those of the
    first never are, between them it grows evenly. ema_decay: of the moving average of the
    weights, which is what a stage results in; 0 takes the last weights.
    """

    image_size: PositiveInt
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    stochastic_depth: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    augmentation: AugmentationSettings = AugmentationSettings()

    @model_validator(mode="after")
    def _draws_depth_once_for_a_batch(self) -> Self:
        cut = self.micro_batch_rows is not None or self.activation_checkpointing
        if self.stochastic_depth and cut:
            raise ValueError(
                "stochastic_depth goes neither with micro_batch_rows nor with "
                "activation_checkpointing"
            )
        return self


class PretrainingRecipe(Recipe):
    """Trains a backbone of a given shape from scratch, supervised, on all data sets together."""

    data: Annotated[tuple[DataSettings, ...], Field(min_length=1)]
    backbone: BackboneSettings
    stages: Annotated[tuple[PretrainingStage, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ends_at_the_backbone_s_size(self) -> Self:
        if self.stages[-1].image_size != self.backbone.image_size:
            raise ValueError("the last stage's image_size must be the backbone's")
        return self
