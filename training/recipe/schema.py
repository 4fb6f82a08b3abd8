"""The schema of a recipe: one experiment, with every key validated."""

from functools import reduce
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from eulerlora.checkpoint.config import MODEL_NAME
from eulerlora.methods.registry import DEFAULT_METHOD, NamedMethod, method_type
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import ColourConstancy
from eulerlora_contract.checkpoints import TargetClasses
from eulerlora_contract.sampling import AUTO, Auto, PrecisionChoice, Sampler, Views
from eulerlora_contract.settings import (
    Count,
    NotNegative,
    Positive,
    PositiveInt,
    Probability,
    Settings,
    optional,
)
from training.data.images import Augmentation
from training.data.registry import Data, OodSettings, OutlierSettings


class OptimisationSettings(Settings):
    """AdamW or Adam with linear warm-up and cosine decay of the rate, as in the paper."""

    epochs: PositiveInt | Auto
    """Passes over the training images; `auto` follows from their number (`RunLength.of`)."""
    batch_size: PositiveInt | Auto = 32
    """Images per optimiser step, over all processes; `auto` is 8, 16 or 32."""
    micro_batch_rows: PositiveInt | None = None
    """Rows of the network in memory at a time; the gradient remains that of the whole batch. None:
    all rows.
    """
    learning_rate: Positive = 1e-4
    """Peak rate, at the end of the warm-up."""
    optimiser: Literal["adamw", "adam-l2"] = optional("adamw")
    """`adamw` decays the weights themselves; `adam-l2` is Adam with the decay added to the
    gradient, which the code of LoRA-Ensemble calls AdamW. They are equal without decay. A method
    may have an optimiser of its own instead, as `ivon` has.
    """
    weight_decay: NotNegative = 0.01
    """For all trainable parameters."""
    warmup_steps: Count | Auto = 500
    """Steps of rising rate; `auto` is a tenth of the run, at most 500 steps."""
    clip_norm: Positive = 1.0
    """Greatest norm of the gradient; a longer one is scaled down."""
    precision: PrecisionChoice = "float32"
    """Of the forward pass; weights and optimiser stay float32. `auto` is the faster one, as
    measured on the device at the start.
    """
    state_every_s: NotNegative = 300.0
    """Seconds between writes of the run's state, from which --resume continues."""
    workers: Count = 1
    """Processes that load and augment images; 0 uses the main process."""

    def check_single_draw(self, key: str) -> Self:
        """The settings.

        Raises:
            ValueError: If `key` is not 0 and passes are split, in which its random numbers would
                differ.
        """
        if getattr(self, key) and self.micro_batch_rows is not None:
            raise ValueError(f"expected {key}=0 with micro_batch_rows, got {getattr(self, key)}")
        return self


class AdapterTraining(OptimisationSettings):
    epochs: Count | Auto = AUTO
    """Passes over the training images; `auto` makes at least 10, and as many as 300 steps need, at
    most 40. 0 trains nothing; the checkpoint is then that of the initial heads.
    """
    batch_size: PositiveInt | Auto = AUTO
    """Images per step; `auto` is 32, with fewer than 320 images 16 or 8."""
    warmup_steps: Count | Auto = AUTO
    """Steps of rising rate; `auto` is a tenth of the run, at most 500 steps."""
    samples: PositiveInt = 4
    """Stochastic samples per adapter and step."""
    sampling: bool = True
    """False trains with all coefficients 1, as LoRA, and needs samples=1; the checkpoint can be
    sampled all the same if min_rank is below rank.
    """
    adapter_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropping an element of the input of a down projection, in training only, as
    with PEFT's `lora_dropout`. Not with micro_batch_rows.
    """
    augmentation: Augmentation = "paper"
    """The random view of an image: `paper` (flips and rotations), `natural` (crops and horizontal
    flips), `dermoscopy` (crops, flips, quarter turns) or `cameras` (half of them as other cameras
    take them).
    """
    best_epoch: bool = False
    """Keep the adapters of the epoch with the lowest negative log-likelihood on the part
    `validation`, which the split must have; otherwise those of the last epoch.
    """
    metrics_by_epoch: bool = False
    """Record metrics on the part `validation` after each epoch, in det and, if min_rank is below
    rank, in stoch with `evaluation.samples`.
    """
    class_balance: Probability = 0.0
    """0 draws images as they are, 1 draws all classes equally often; between them, a class of n
    images is drawn in proportion to n ** (1 - class_balance). The loss corrects for the changed
    class frequencies (logit adjustment, Menon et al., ICLR 2021), so that probabilities remain
    those of the images as they are.
    """
    augmented_views: Literal["shared", "own"] = "shared"
    """`shared` shows one random view of an image to all adapters, as in the paper; `own` shows
    another view to each.
    """
    views: Views = optional(1)
    """Flips and quarter turns of the augmented view, 1 (the view alone, as in the paper), 2, 4 or
    8, that the trajectories of an image share between them (`eulerlora.nn.rows`).
    """
    head: Literal["random", "linear-probe", "bootstrap-probes"] = "linear-probe"
    """Initial head of every adapter, `random` as in the paper, or a linear probe of the frozen
    backbone: `linear-probe` fits one on the train part for all adapters, `bootstrap-probes` one for
    each adapter on a bootstrap resample of its groups or images.
    """
    loss: Literal["trajectory", "mean"] = "trajectory"
    """`trajectory` averages the losses of the trajectories; `mean` is the loss of the mean
    probability.
    """
    class_weights: Literal["none", "effective-number"] = "none"
    """`effective-number` weights classes by their effective number of samples with `beta`."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9991
    """Of the effective number; 0 weights all classes equally."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        self.check_single_draw("adapter_dropout")
        if not self.sampling and self.samples != 1:
            raise ValueError(f"expected samples=1 with sampling=false, got {self.samples}")
        return self


NO_ADAPTERS = AdapterSettings(adapters=1, rank=1, min_rank=1)
"""Adapters of a whole network: they keep the value 0, so that its checkpoint is one of adapters."""


class WholeNetworkSettings(Settings):
    """Training of all weights of the backbone instead of adapters."""

    members: PositiveInt = 1
    """Trained networks; each is one answer to an image."""
    ensemble: Literal["explicit", "snapshot"] = "explicit"
    """Of several members, `explicit` trains each from the pretrained weights with its own order,
    views and random head (Lakshminarayanan et al., NeurIPS 2017); `snapshot` divides the epochs of
    one run into as many cycles of the learning rate and keeps the weights at the end of each (Huang
    et al., ICLR 2017).
    """
    attention: Literal["dot", "l2"] = "dot"
    """`l2` replaces the dot product of all blocks by a distance, and the weights of the keys by
    those of the queries, which stay equal (Kim et al., ICML 2021).
    """

    @model_validator(mode="after")
    def _several_snapshots(self) -> Self:
        if self.ensemble == "snapshot" and self.members == 1:
            raise ValueError("expected members of at least 2 with ensemble=snapshot, got 1")
        return self


CALIBRATED_SAMPLES: tuple[int | Auto, ...] = (1, 2, 4, 8, 16, AUTO)
"""Default samples per adapter for which calibration sets thresholds."""


EMBEDDED = "embedded"
"""The backbone of the packaged checkpoint, in place of a file or a name."""


class BackboneSource(Settings):
    """A frozen backbone: torchvision's published weights by name, or a backbone file."""

    weights: str = AUTO
    """A name such as `ViT_B_32_Weights.IMAGENET1K_V1`; the path of a `backbone.safetensors`,
    relative to the recipe; `embedded`, that of the packaged checkpoint; or `auto`, the weights of
    ViT-B/32 where they are stored or can be downloaded, and `embedded` elsewhere.
    """
    file: str | None = None
    """The file of the published weights, for a machine that cannot download it; relative to the
    recipe. It is verified and copied to torch's hub cache, from which checkpoints load it.
    """
    image_size: PositiveInt | None = None
    """In pixels; position embeddings of a backbone file are interpolated to this size."""


SOURCE = {"file", "variant", "overrides"}
"""Keys that `read_recipe` sets; they are no part of the settings of a run."""


class Recipe(Settings):
    """Keys that all recipes share."""

    name: Annotated[str, Field(pattern=MODEL_NAME)]
    """Of the checkpoint, as in the answers of the service."""
    file: str | None = None
    """Of the recipe; set by `read_recipe`, as are variant and overrides."""
    variant: str | None = None
    """Of the recipe."""
    overrides: tuple[str, ...] = ()
    """Keys that the command line set."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of all random draws; equal seeds give equal weights on one machine."""
    stored: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the stored weights."""

    @property
    def without_source(self) -> Self:
        """The recipe without file, variant and overrides: equal for equal runs."""
        return self.model_copy(update={"file": None, "variant": None, "overrides": ()})


class EvaluationSettings(Settings):
    """The contents of report and model card: det, and stoch with `samples` per adapter."""

    samples: PositiveInt = 4
    """Samples per adapter in the report's mode stoch."""
    sampler: Sampler = "independent"
    """The checkpoint's sampler; the paper uses `independent`."""
    views: Views = optional(1)
    """The checkpoint's number of views in mode stoch (`eulerlora.nn.rows`): 1 (as in the
    paper), 2 (also the mirror image, for everyday pictures), 4 (flips) or 8 (flips and quarter
    turns, for pictures without a natural upright).
    """
    calibrated: Annotated[tuple[PositiveInt | Auto, ...], Field(min_length=1)] = CALIBRATED_SAMPLES
    """Samples per adapter, or `auto`, for which stoch gets an OOD threshold; det always gets one.
    """
    temperature: bool = optional(True)
    """Fit a temperature of each mode to the calibration part, if that has enough groups of each
    class. An ensemble of whole networks has none.
    """
    ood: tuple[OodSettings, ...] = ()
    """Out-of-distribution images."""
    ood_images: PositiveInt | None = None
    """Maximum number of each out-of-distribution set, evenly spaced; None uses all."""


class AdapterRecipe(Recipe):
    """Trains adapters on a frozen backbone, or whole networks."""

    data: Data
    """The images."""
    target: TargetClasses | None = optional(None)
    """The classes that count for triage and have a joint sensitivity in reports."""
    outliers: OutlierSettings | None = None
    """None trains on the images of `data` only, as in the paper."""
    backbone: BackboneSource = BackboneSource()
    """The frozen network."""
    colour_constancy: ColourConstancy = "none"
    """Applied to all images, in training and prediction (`eulerlora.images.preprocess`)."""
    canvas: tuple[PositiveInt, PositiveInt] | None = optional(None)
    """Longer and shorter side in pixels to which every image is resized, turned like the image, for
    views that see detail: in training and in answers with several views, they show the whole image,
    squashed, or a crop at the resolution of the canvas. None shows whole images.
    """
    adapters: AdapterSettings = AdapterSettings()
    """What is trained."""
    method: NamedMethod = optional(DEFAULT_METHOD)
    """How the adapters are sampled (docs/explanation/methods.md)."""
    whole_network: WholeNetworkSettings | None = optional(None)
    """Trains all weights instead; None trains adapters."""
    training: AdapterTraining = AdapterTraining()
    """How it is trained."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Contents of the report."""

    @model_validator(mode="after")
    def _validates_only_with_a_validation_part(self) -> Self:
        training = self.training
        for key in ("best_epoch", "metrics_by_epoch"):
            if getattr(training, key) and self.data.split != "lesion-best-epoch":
                raise ValueError(
                    f"expected data.split=lesion-best-epoch with training.{key}, got "
                    f"{self.data.split}"
                )
        if training.best_epoch and training.epochs == 0:
            raise ValueError("expected training.epochs of at least 1 with training.best_epoch")
        return self

    @model_validator(mode="after")
    def _crops_details_in_an_augmentation_with_crops(self) -> Self:
        if self.canvas is not None and self.training.augmentation == "paper":
            raise ValueError("expected training.augmentation with crops with a canvas, got paper")
        return self

    @model_validator(mode="after")
    def _fits_the_method(self) -> Self:
        for key, accepted in method_type(self.method).required_keys(self.method).items():
            value: Any = reduce(getattr, key.split("."), self)
            if value not in accepted:
                expected = " or ".join(str(choice).lower() for choice in accepted)
                raise ValueError(
                    f"expected {key}={expected} with method {self.method.name}, got "
                    f"{str(value).lower()}"
                )
        return self

    @model_validator(mode="after")
    def _trains_whole_networks_without_adapters(self) -> Self:
        whole, training = self.whole_network, self.training
        if whole is None:
            return self
        if self.method != DEFAULT_METHOD:
            raise ValueError(f"expected no method with whole_network, got {self.method.name}")
        size = {"adapters", "rank", "min_rank"}
        if self.adapters.model_dump(include=size) != NO_ADAPTERS.model_dump(include=size):
            raise ValueError(
                "expected adapters=1, rank=1 and min_rank=1 in adapters with whole_network"
            )
        for key, expected in (("samples", 1), ("adapter_dropout", 0.0), ("best_epoch", False)):
            if getattr(training, key) != expected:
                raise ValueError(
                    f"expected training.{key}={expected} with whole_network, got "
                    f"{getattr(training, key)}"
                )
        few = training.epochs == AUTO or training.epochs < whole.members
        if whole.ensemble == "snapshot" and few:
            raise ValueError(
                f"expected training.epochs of at least {whole.members} with as many snapshots, "
                f"got {training.epochs}"
            )
        return self
