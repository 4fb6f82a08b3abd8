"""The part `training` of a recipe: its length, the optimiser and the objective."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eulerlora.settings import AUTO, Auto, PositiveInt, PrecisionChoice, optional
from eulerlora.validation import Settings

Augmentation = Literal["paper", "dermoscopy", "cameras", "natural"]
Head = Literal["random", "linear-probe", "bootstrap-probes"]
Optimiser = Literal["adamw", "adam-l2", "ivon"]


class AdamWSettings(Settings):
    """AdamW or Adam with linear warm-up and cosine decay of the rate (method, "Training").

    epochs: passes over the training images; `auto` follows from their number (`RunLength.of`).
    batch_size: images per optimiser step, over all processes; `auto` is 8, 16 or 32.
    micro_batch_rows: rows of the network in memory at a time; the gradient remains that of the
    whole batch. None: all rows.
    activation_checkpointing: store only each block's input and recompute the block in the
    backward pass: less memory, about a third more time, the same gradient.
    learning_rate: peak rate, at the end of the warm-up.
    optimiser: `adamw` decays the weights themselves; `adam-l2` is Adam with the decay added to the
    gradient, which the code of LoRA-Ensemble calls AdamW. They are equal without decay. `ivon`
    trains the method of that name, and no other.
    weight_decay: for all trainable parameters.
    warmup_steps: steps of rising rate; `auto` is a tenth of the run, at most 500 steps.
    clip_norm: greatest norm of the gradient; a longer one is scaled down.
    precision: of the forward pass; weights and optimiser stay float32. `auto` is bfloat16 where the
    device has instructions for it, and float32 elsewhere.
    shuffle: False keeps the order of the images in every epoch.
    state_every_s: seconds between writes of the run's state, from which --resume continues.
    """

    epochs: PositiveInt | Auto
    batch_size: PositiveInt | Auto = 32
    micro_batch_rows: PositiveInt | None = None
    activation_checkpointing: bool = False
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    optimiser: Optimiser = optional("adamw")
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup_steps: Annotated[int, Field(ge=0)] | Auto = 500
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: PrecisionChoice = "float32"
    shuffle: bool = True
    state_every_s: Annotated[float, Field(ge=0)] = 300.0


class OptimisationSettings(AdamWSettings):
    """AdamWSettings for images that are decoded and augmented one by one.

    workers: processes that load and augment images; 0 uses the main process.
    """

    workers: Annotated[int, Field(ge=0)] = 1


class AdapterTraining(OptimisationSettings):
    """Training of adapters.

    epochs: passes over the training images; `auto` makes at least 10, and as many as 300 steps
    need, at most 40. 0 trains nothing; the checkpoint is then that of the initial heads.
    batch_size: images per step; `auto` is 32, with fewer than 320 images 16 or 8.
    adapter_dropout: probability of dropping an element of the input of a down projection, in
    training only, as with PEFT's `lora_dropout`. Not with micro_batch_rows or
    activation_checkpointing.
    best_epoch: keep the adapters of the epoch with the lowest negative log-likelihood on the part
    `validation`, which the split must have; otherwise those of the last epoch.
    early_stop: stop after so many epochs without a lower validation loss; only with best_epoch.
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
    samples: stochastic samples per adapter and step.
    augmentation: the random view of an image: `paper` (flips and rotations), `natural` (crops and
    horizontal flips), `dermoscopy` (crops, flips, quarter turns) or `cameras` (half of them as
    other cameras take them).
    head: initial head of every adapter, `random` as in the paper, or a linear probe of the frozen
    backbone: `linear-probe` fits one on the train part for all adapters, `bootstrap-probes` one for
    each adapter on a bootstrap resample of its groups or images.
    loss: `trajectory` averages the losses of the trajectories; `mean` is the loss of the mean
    probability.
    class_weights: `effective-number` weights classes by their effective number of samples with
    `beta`.
    beta: of the effective number; 0 weights all classes equally.
    """

    epochs: Annotated[int, Field(ge=0)] | Auto = AUTO
    batch_size: PositiveInt | Auto = AUTO
    warmup_steps: Annotated[int, Field(ge=0)] | Auto = AUTO
    samples: PositiveInt = 4
    sampling: bool = True
    adapter_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augmentation: Augmentation = "paper"
    best_epoch: bool = False
    early_stop: PositiveInt | None = None
    metrics_by_epoch: bool = False
    class_balance: Annotated[float, Field(ge=0, le=1)] = 0.0
    views: Literal["shared", "own"] = "shared"
    head: Head = "linear-probe"
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

    @model_validator(mode="after")
    def _stops_at_the_epoch_that_it_keeps(self) -> Self:
        if self.early_stop is not None and not self.best_epoch:
            raise ValueError(f"expected best_epoch=true with early_stop={self.early_stop}")
        return self
