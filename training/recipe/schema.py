"""The schema of a recipe: one experiment, with every key validated.

Pretraining has further keys, in `training.recipe.pretraining`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eulerlora.settings import (
    AUTO,
    AdapterSettings,
    Auto,
    ColourConstancy,
    PositiveInt,
    Precision,
    Sampler,
)
from eulerlora.validation import Settings

StoredDtype = Literal["float32", "float16", "bfloat16"]
SAMPLES: tuple[int | Auto, ...] = (1, 2, 4, 8, 16, AUTO)
"""Default samples per adapter for which calibration sets thresholds."""
Split = Literal["lesion", "lesion-validation", "lesion-best-epoch", "paper"]
Part = Literal["train", "validation", "calibration", "test"]
Head = Literal["random", "linear-probe", "bootstrap-probes"]
OodGroup = Literal["far", "near", "shifted"]
Augmentation = Literal["paper", "dermoscopy", "cameras"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class DataSettings(Settings):
    """The images of a data set and their split.

    kind: `ham10000` and `tiny-imagenet` (published layouts), `imagefolder` (one folder per
    class), or a data set that torchvision downloads.
    path: a folder or, for imagefolder, a tar archive in the data directory; "." is the directory
    itself.
    split: `lesion`, the default, reserves a tenth of the training images for calibration; in
    ham10000, all images of a lesion are in one part. `lesion-validation`, for choosing settings,
    drops the test part and uses a tenth of the training images (ham10000: lesions) instead;
    `lesion-best-epoch` keeps the test part, and has the same tenth as the part `validation`.
    `paper` trains on all training images of the published (ham10000: the paper's) split, without
    a calibration part.
    classes: for imagefolder, descriptions by class name; if given, these are the exact classes.
    at_most: maximum number of images by part; a smaller part is a stratified subset, the same for
    every seed.
    """

    kind: Literal["ham10000", "tiny-imagenet", "imagefolder", "cifar10", "cifar100", "svhn"]
    path: str = "."
    split: Split = "lesion"
    classes: dict[str, str] = {}
    at_most: dict[Part, PositiveInt] = {}

    @model_validator(mode="after")
    def _only_folders_name_their_classes(self) -> Self:
        if self.classes and self.kind != "imagefolder":
            raise ValueError(f"expected classes only with kind imagefolder, got kind {self.kind}")
        return self


class OodSettings(Settings):
    """A set of out-of-distribution images.

    kind: `images` for any images, or a data set, whose test part is used.
    path: a folder in the data directory, or for `images` also an archive.
    group: `far` for other subjects, `near` for similar ones that belong to no class, `shifted` for
    images of the classes from another camera or under other conditions.
    """

    kind: Literal["images", "ham10000", "cifar10", "cifar100", "svhn"]
    path: str = "."
    group: OodGroup = "far"


class OutlierSettings(Settings):
    """Outliers, trained towards equal probabilities of all classes.

    Outlier exposure, Hendrycks, Mazeika and Dietterich, ICLR 2019.
    path: a folder or an archive of any images in the data directory, disjoint from
    `evaluation.ood`. If it contains `train/`, only those images are used.
    images: maximum number, evenly spaced; None uses all.
    weight: loss weight of an outlier. A training image has weight 1, or its class's weight
    divided by the mean class weight.
    """

    path: str
    images: PositiveInt | None = None
    weight: Annotated[float, Field(gt=0)] = 0.5


class AdamWSettings(Settings):
    """AdamW with linear warm-up and cosine decay, updated every step (method, "Training").

    batch_size: images per optimiser step, over all processes. micro_batch_rows: rows of the
    network in memory at a time; the gradient remains that of the whole batch. None: all rows.
    activation_checkpointing: store only each block's input and recompute the block in the
    backward pass: less memory, about a third more time, the same gradient.
    warmup_steps: `auto` is a tenth of the run, at most 500 steps.
    precision: of the forward pass; weights and optimiser stay float32.
    state_every_s: seconds between writes of the run's state, from which --resume continues.
    """

    epochs: PositiveInt
    batch_size: PositiveInt = 32
    micro_batch_rows: PositiveInt | None = None
    activation_checkpointing: bool = False
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup_steps: Annotated[int, Field(ge=0)] | Auto = 500
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: Precision = "float32"
    shuffle: bool = True
    state_every_s: Annotated[float, Field(ge=0)] = 300.0


class OptimisationSettings(AdamWSettings):
    """AdamWSettings for images that are decoded and augmented one by one.

    workers: processes that do so; 0 uses the main process.
    """

    workers: Annotated[int, Field(ge=0)] = 1


class AdapterTraining(OptimisationSettings):
    """Training of adapters.

    epochs: 0 trains nothing; the checkpoint is then that of the initial heads.
    adapter_dropout: probability of dropping an element of the input of a down projection, in
    training only, as with PEFT's `lora_dropout`. Not with micro_batch_rows or
    activation_checkpointing.
    best_epoch: keep the adapters of the epoch with the lowest negative log-likelihood on the part
    `validation`, which the split must have; otherwise those of the last epoch.
    metrics_by_epoch: record metrics on the part `validation` after each epoch, in det and, if
    min_rank is below rank, in stoch with `evaluation.samples`.
    sampling: False trains with all coefficients 1, as LoRA, and needs samples=1; the checkpoint can
    be sampled all the same if min_rank is below rank.
    class_balance: 0 draws images as they are, 1 draws all classes equally often; between them, a
    class of n images is drawn in proportion to n ** (1 - class_balance). The loss corrects for the
    changed class frequencies (logit adjustment, Menon et al., ICLR 2021), so that probabilities
    remain those of the images as they are.
    views: `shared` shows one random view of an image to all adapters, as in the paper; `own` shows
    another view to each.
    samples: stochastic samples per adapter and step. augmentation: the random view of an image,
    `paper`, `dermoscopy` or `cameras` (`augmentation.views`). head: initial head of every adapter,
    `random` as in the paper, or a linear probe of the frozen backbone: `linear-probe` fits one on
    the train part for all adapters, `bootstrap-probes` one for each adapter on a bootstrap resample
    of its lesions or images.
    loss: `trajectory` averages the losses of the trajectories; `mean` is the loss of the mean
    probability. class_weights: `effective-number` weights classes by their effective number of
    samples with `beta`.
    """

    epochs: Annotated[int, Field(ge=0)]
    samples: PositiveInt = 4
    sampling: bool = True
    adapter_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augmentation: Augmentation = "paper"
    best_epoch: bool = False
    metrics_by_epoch: bool = False
    class_balance: Annotated[float, Field(ge=0, le=1)] = 0.0
    views: Literal["shared", "own"] = "shared"
    head: Head = "random"
    loss: Literal["trajectory", "mean"] = "trajectory"
    class_weights: Literal["none", "effective-number"] = "none"
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9991

    @model_validator(mode="after")
    def _draws_dropout_once_per_batch(self) -> Self:
        repeated = self.micro_batch_rows is not None or self.activation_checkpointing
        if self.adapter_dropout and repeated:
            raise ValueError(
                "expected adapter_dropout=0 with micro_batch_rows or activation_checkpointing, "
                f"got {self.adapter_dropout}"
            )
        return self

    @model_validator(mode="after")
    def _computes_no_trajectory_twice(self) -> Self:
        if not self.sampling and self.samples != 1:
            raise ValueError(f"expected samples=1 with sampling=false, got {self.samples}")
        return self


class BackboneSource(Settings):
    """A frozen backbone: torchvision's published weights by name, or a backbone file.

    weights: a name such as `ViT_B_32_Weights.IMAGENET1K_V1`, or the path of a
    `backbone.safetensors`, relative to the recipe.
    file: the file of the published weights, for a machine that cannot download it; relative to
    the recipe. It is verified and copied to torch's hub cache, from which checkpoints load it.
    image_size: in pixels; position embeddings of a backbone file are interpolated to this size.
    """

    weights: str
    file: str | None = None
    image_size: PositiveInt | None = None


class Recipe(Settings):
    """Keys that all recipes share: a name, a seed, and the type of stored weights.

    file, variant, overrides: how the command line selected the recipe; set by `read_recipe`.
    """

    name: Name
    file: str | None = None
    variant: str | None = None
    overrides: tuple[str, ...] = ()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    stored: StoredDtype = "float32"

    @property
    def without_source(self) -> Self:
        """The recipe without file, variant and overrides: equal for equal runs."""
        return self.model_copy(update={"file": None, "variant": None, "overrides": ()})


class EvaluationSettings(Settings):
    """The contents of report and model card: det, and stoch with `samples` per adapter.

    sampler: the checkpoint's sampler; the paper uses `independent`.
    calibrated: samples per adapter, or `auto`, for which stoch gets an OOD threshold; det always
    gets one.
    ood: out-of-distribution images. ood_images: maximum number of each set, evenly spaced; None
    uses all.
    """

    samples: PositiveInt = 4
    sampler: Sampler = "independent"
    calibrated: Annotated[tuple[PositiveInt | Auto, ...], Field(min_length=1)] = SAMPLES
    ood: tuple[OodSettings, ...] = ()
    ood_images: PositiveInt | None = None


class AdapterRecipe(Recipe):
    """Trains adapters on a frozen backbone.

    outliers: None trains on the images of `data` only, as in the paper. colour_constancy: applied
    to all images, in training and prediction (`eulerlora.colour_constancy`).
    """

    data: DataSettings
    outliers: OutlierSettings | None = None
    backbone: BackboneSource
    colour_constancy: ColourConstancy = "none"
    adapters: AdapterSettings = AdapterSettings()
    training: AdapterTraining
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _validates_only_with_a_validation_part(self) -> Self:
        training = self.training
        for key in ("best_epoch", "metrics_by_epoch"):
            if getattr(training, key) and self.data.split != "lesion-best-epoch":
                raise ValueError(
                    f"expected data.split=lesion-best-epoch with training.{key}, got "
                    f"{self.data.split}"
                )
        if training.best_epoch and not training.epochs:
            raise ValueError("expected training.epochs of at least 1 with training.best_epoch")
        return self
