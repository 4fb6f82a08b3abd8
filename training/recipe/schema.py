"""What a recipe says: one experiment, with every key checked.

Pretraining has more to say, in `training.recipe.pretraining`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eulerlora.settings import AUTO, AdapterSettings, Auto, PositiveInt, Sampler, Settings

Precision = Literal["float32", "bfloat16"]
StoredDtype = Literal["float32", "float16", "bfloat16"]
SAMPLES: tuple[int | Auto, ...] = (1, 2, 4, 8, 16, AUTO)
"""Samples per adapter for which thresholds are set unless a recipe says otherwise."""
Split = Literal["lesion", "lesion-validation", "paper"]
Part = Literal["train", "calibration", "test"]
Augmentation = Literal["paper", "dermoscopy"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class DataSettings(Settings):
    """Which images, and how they are split.

    kind: `ham10000` and `tiny-imagenet` (their publishers' layouts), `imagefolder` (a folder for
    each class), or a data set in the files that torchvision downloads.
    path: a folder or, for imagefolder, a tar archive inside the data directory; "." is the
    directory itself.
    split: `lesion`, the default, keeps a tenth of the training images apart for calibration, and
    in ham10000 all images of a lesion in one part. `lesion-validation`, for every choice, is the
    same without its test part: a tenth of its training images (ham10000: lesions) takes that place.
    `paper` trains on all training images of the publisher's (ham10000: the paper's) split and has
    no calibration part.
    classes: for imagefolder, descriptions by class name; where there are any, exactly these
    classes are wanted.
    at_most: images of a part by its name, where fewer than it has are wanted: a stratified subset,
    the same for every seed.
    """

    kind: Literal["ham10000", "tiny-imagenet", "imagefolder", "cifar10", "cifar100", "svhn"]
    path: str = "."
    split: Split = "lesion"
    classes: dict[str, str] = {}
    at_most: dict[Part, PositiveInt] = {}

    @model_validator(mode="after")
    def _only_folders_name_their_classes(self) -> Self:
        if self.classes and self.kind != "imagefolder":
            raise ValueError(f"classes belongs to imagefolder; those of {self.kind} are known")
        return self


class OodSettings(Settings):
    """Images that are out of distribution.

    kind: `images` for any images, or a data set, of which the test part is taken.
    path: a folder inside the data directory, or for `images` also an archive.
    """

    kind: Literal["images", "ham10000", "cifar10", "cifar100", "svhn"]
    path: str = "."


class OutlierSettings(Settings):
    """Images of something else, whose wanted answer is that all classes are equally probable:
    outlier exposure (Hendrycks, Mazeika and Dietterich, ICLR 2019).

    path: a folder of any images or an archive inside the data directory; it should have nothing in
    common with `evaluation.ood`. Where it has a `train/`, only what is in that.
    images: at most so many of them, evenly spaced; None: all.
    weight: of such an image's loss; that of a training image is 1, or its class's weight over the
    mean of all classes' weights.
    """

    path: str
    images: PositiveInt | None = None
    weight: Annotated[float, Field(gt=0)] = 0.5


class AdamWSettings(Settings):
    """AdamW with linear warm-up and cosine decay, stepped once a batch (method, "Training").

    batch_size: images of one optimiser step, over all processes. micro_batch_rows: rows that are
    in memory at a time; the gradient is the whole batch's all the same. None cuts nothing.
    activation_checkpointing: keep each block's input only and compute the block again in the
    backward pass: less memory, about a third more time, the same gradient.
    precision: of the forward pass; weights and optimiser stay float32.
    state_every_s: seconds between writes of the run's state, from which --resume continues.
    """

    epochs: PositiveInt
    batch_size: PositiveInt = 32
    micro_batch_rows: PositiveInt | None = None
    activation_checkpointing: bool = False
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup_steps: Annotated[int, Field(ge=0)] = 500
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: Precision = "float32"
    shuffle: bool = True
    state_every_s: Annotated[float, Field(ge=0)] = 300.0


class OptimisationSettings(AdamWSettings):
    """The same for images that are decoded and augmented one by one.

    workers: processes that do so; 0 does it in the main process.
    """

    workers: Annotated[int, Field(ge=0)] = 1


class AdapterTraining(OptimisationSettings):
    """How adapters are trained.

    samples: stochastic samples per adapter and step. augmentation: the random view of an image,
    `paper` or `dermoscopy` (`data.augmentation`). head: each adapter's first head is `random`, as
    the paper's, or a `linear-probe` of the frozen backbone on the train part.
    loss: `trajectory` averages the trajectories' losses; `mean` is the loss of the mean
    probability. class_weights: `effective-number` weighs classes by their effective number of
    samples with `beta`.
    """

    samples: PositiveInt = 4
    augmentation: Augmentation = "paper"
    head: Literal["random", "linear-probe"] = "random"
    loss: Literal["trajectory", "mean"] = "trajectory"
    class_weights: Literal["none", "effective-number"] = "none"
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9991


class BackboneSource(Settings):
    """A frozen backbone: torchvision's published weights by name, or a backbone file.

    weights: such as `ViT_B_32_Weights.IMAGENET1K_V1`, or a path to a `backbone.safetensors`,
    relative to the recipe.
    file: the published weights' file, for a machine that cannot download it; relative to the
    recipe. It is checked and copied to torch's hub cache, where checkpoints look for it.
    image_size: in pixels, for a backbone file at another size than its own; its position
    embeddings are then interpolated.
    """

    weights: str
    file: str | None = None
    image_size: PositiveInt | None = None


class Recipe(Settings):
    """What both kinds of recipe share: a name, a seed and how weights are stored.

    file, variant, overrides: how the recipe was asked for; for the record, and set by
    `read_recipe`.
    """

    name: Name
    file: str | None = None
    variant: str | None = None
    overrides: tuple[str, ...] = ()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    stored: StoredDtype = "float32"

    @property
    def settings_alone(self) -> Self:
        """The same without the record of how it was asked for: equal where runs would be."""
        return self.model_copy(update={"file": None, "variant": None, "overrides": ()})


class EvaluationSettings(Settings):
    """What the report and the model card show: det, and stoch with `samples` per adapter.

    sampler: how the checkpoint draws samples; the paper's are `independent`.
    calibrated: samples per adapter for which stoch gets an OOD threshold, or `auto`; det always
    gets one.
    ood: out-of-distribution images to tell from those of the test part. ood_images: at most so
    many of each set, evenly spaced; None: all.
    """

    samples: PositiveInt = 4
    sampler: Sampler = "independent"
    calibrated: Annotated[tuple[PositiveInt | Auto, ...], Field(min_length=1)] = SAMPLES
    ood: tuple[OodSettings, ...] = ()
    ood_images: PositiveInt | None = None


class AdapterRecipe(Recipe):
    """Trains adapters on a frozen backbone.

    outliers: None trains on the images of `data` alone, as the paper does.
    """

    data: DataSettings
    outliers: OutlierSettings | None = None
    backbone: BackboneSource
    adapters: AdapterSettings = AdapterSettings()
    training: AdapterTraining
    evaluation: EvaluationSettings = EvaluationSettings()
