"""Recipes: one experiment each, as TOML, with every key checked."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from eulerlora.errors import SettingsError
from eulerlora.settings import AdapterSettings, BackboneSettings, PositiveInt, Settings, validated

Precision = Literal["float32", "bfloat16"]
StoredDtype = Literal["float32", "float16", "bfloat16"]
Split = Literal["lesion", "paper"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class DataSettings(Settings):
    """Which images, and how they are split.

    kind: `ham10000` (its publisher's layout), `imagefolder` (a folder for each class), or a data
    set in the files that torchvision downloads.
    path: a folder or, for imagefolder, a tar archive inside the data directory; "." is the
    directory itself.
    split: `lesion`, the default, keeps a tenth of the training images apart for calibration, and
    in ham10000 all images of a lesion in one part. `paper` trains on all training images of the
    publisher's (ham10000: the paper's) split and has no calibration part.
    classes: for imagefolder, descriptions by class name; where there are any, exactly these
    classes are wanted.
    """

    kind: Literal["ham10000", "imagefolder", "cifar10", "cifar100", "svhn"]
    path: str = "."
    split: Split = "lesion"
    classes: dict[str, str] = {}

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


class OptimisationSettings(Settings):
    """AdamW with linear warm-up and cosine decay, stepped once a batch (method, "Training").

    batch_size: images of one optimiser step, over all processes. micro_batch_rows: rows that are
    in memory at a time; the gradient is the whole batch's all the same. None cuts nothing.
    precision: of the forward pass; weights and optimiser stay float32.
    state_every_s: seconds between writes of the run's state, from which --resume continues.
    workers: processes that decode and augment images; 0 does it in the main process.
    """

    epochs: PositiveInt
    batch_size: PositiveInt = 32
    micro_batch_rows: PositiveInt | None = None
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup_steps: Annotated[int, Field(ge=0)] = 500
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: Precision = "float32"
    shuffle: bool = True
    state_every_s: Annotated[float, Field(ge=0)] = 300.0
    workers: Annotated[int, Field(ge=0)] = 1


class AdapterTraining(OptimisationSettings):
    """How adapters are trained.

    samples: stochastic samples per adapter and step.
    loss: `trajectory` averages the trajectories' losses; `mean` is the loss of the mean
    probability. class_weights: `effective-number` weighs classes by their effective number of
    samples with `beta`.
    """

    samples: PositiveInt = 4
    loss: Literal["trajectory", "mean"] = "trajectory"
    class_weights: Literal["none", "effective-number"] = "none"
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9991


class PretrainingStage(OptimisationSettings):
    """One stage of pretraining, at one image size; positions are interpolated between stages."""

    image_size: PositiveInt
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0


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
    """What both kinds of recipe share: a name, a seed and the data."""

    name: Name
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: DataSettings
    stored: StoredDtype = "float32"


class EvaluationSettings(Settings):
    """What the model card reports: det, and stoch with `samples` per adapter.

    ood: out-of-distribution images to tell from those of the test part.
    """

    samples: PositiveInt = 4
    ood: tuple[OodSettings, ...] = ()


class AdapterRecipe(Recipe):
    """Trains adapters on a frozen backbone."""

    backbone: BackboneSource
    adapters: AdapterSettings = AdapterSettings()
    training: AdapterTraining
    evaluation: EvaluationSettings = EvaluationSettings()


class PretrainingRecipe(Recipe):
    """Trains a backbone of a given shape from scratch, supervised."""

    backbone: BackboneSettings
    stages: Annotated[tuple[PretrainingStage, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ends_at_the_backbone_s_size(self) -> Self:
        if self.stages[-1].image_size != self.backbone.image_size:
            raise ValueError("the last stage's image_size must be the backbone's")
        return self


AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


def read_recipe(path: Path, kind: type[AnyRecipe], overrides: Sequence[str] = ()) -> AnyRecipe:
    """The recipe in a TOML file, with `key=value` overrides such as `training.epochs=2`.

    Raises SettingsError, naming the file and the key, for unreadable TOML, an unknown key or a
    value out of range.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: not a readable recipe ({error})") from error
    for override in overrides:
        _apply(tables, override)
    try:
        return validated(kind, tables)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _apply(tables: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SettingsError(f"--set wants key=value, not {override!r}")
    *parents, last = key.strip().split(".")
    table: Any = tables
    try:
        for parent in parents:
            table = table[int(parent)] if isinstance(table, list) else table.setdefault(parent, {})
        table[last] = _value(text.strip())
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise SettingsError(f"--set {override}: the recipe has no such place") from error


def _value(text: str) -> Any:
    """A TOML value; what is not valid TOML is a string, so that quotes may be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
