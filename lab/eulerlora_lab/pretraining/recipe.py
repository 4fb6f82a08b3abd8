"""The schema of a pretraining recipe: data sets, the backbone's shape, and stages."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from eulerlora.settings import BackboneSettings
from eulerlora_contract.settings import Count, Positive, PositiveInt
from training.data.dataset import DataSettings
from training.data.registry import UnlabelledData, known_data
from training.recipe.schema import OptimisationSettings, Recipe

PretrainingView = Literal["natural", "cameras", "half-cameras"]


class PretrainingData(DataSettings):
    """A labelled data set with a head of its own; pretraining uses its train part.

    Attributes:
        views: `natural` for crops and horizontal flips, `cameras` for images as other cameras take
            them, `half-cameras` for such views of half of the images, which `training.augmentation`
            of an adapter recipe calls `cameras`.
    """

    views: PretrainingView = "natural"


class PretrainingStage(OptimisationSettings):
    """A stage of pretraining at one image size; positions are interpolated between stages.

    Attributes:
        repeats: How often an epoch contains the images of each set, first of `data`, then of
            `unlabelled`; empty for once. 0 omits a set.
        contrast_weight: Loss weight of a view of an unlabelled image; that of a labelled one is 1.
        layer_decay: Factor of the learning rate from each block to the one before it (timm's
            `layer_decay`); the embeddings come before the first block, and the final norm has the
            full rate.
        head_learning_rate: Peak rate of the heads and the projection; None: `learning_rate`.
        stochastic_depth: Probability of dropping a branch of the last block; it grows linearly from
            0 in the first block.
        ema_decay: Decay of the weights' moving average, which is the result of the stage; 0 uses
            the last weights.
    """

    image_size: PositiveInt
    repeats: tuple[Count, ...] = ()
    contrast_weight: Positive = 0.5
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    head_learning_rate: Positive | None = None
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    stochastic_depth: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999

    @model_validator(mode="after")
    def _draws_depth_once_per_batch(self) -> Self:
        return self.check_single_draw("stochastic_depth")


class PretrainingRecipe(Recipe):
    """Trains a backbone on all data sets together: from scratch, or from the weights of a file.

    Supervised on `data`; contrastive on `unlabelled`, where two views of an image are one class.

    Attributes:
        backbone: The shape of a backbone that is trained from scratch.
        start: A backbone file in the data directory, whose weights, shape and normalisation the
            first stage starts from.
    """

    data: Annotated[
        tuple[Annotated[PretrainingData, AfterValidator(known_data)], ...], Field(min_length=1)
    ]
    unlabelled: tuple[UnlabelledData, ...] = ()
    backbone: BackboneSettings | None = None
    start: str | None = None
    stages: Annotated[tuple[PretrainingStage, ...], Field(min_length=1)]

    @property
    def image_size(self) -> int:
        """Side of the trained backbone's input in pixels."""
        return self.stages[-1].image_size

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.backbone is None) == (self.start is None):
            raise ValueError("expected either backbone, for new weights, or start")
        if self.backbone is not None and self.backbone.image_size != self.image_size:
            raise ValueError(
                f"expected image_size={self.backbone.image_size} in the last stage, "
                f"got {self.image_size}"
            )
        sets = len(self.data) + len(self.unlabelled)
        for stage in self.stages:
            if stage.repeats and (len(stage.repeats) != sets or not any(stage.repeats)):
                raise ValueError(
                    f"expected repeats with a number for each of the {sets} sets, one of them "
                    f"positive, got {list(stage.repeats)}"
                )
        if self.unlabelled and any(stage.micro_batch_rows is not None for stage in self.stages):
            raise ValueError("expected no micro_batch_rows with unlabelled images")
        return self
