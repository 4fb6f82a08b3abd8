"""What a method consists of: settings, tensors of each block, heads, and a law of the draws.

    row_draws = method.draw(draw)                      # of the rows of one image, on the CPU
    block.attention(inputs, frozen, rows)              # reads the row draws of the block
    heads(features, adapter, row_draws.head)           # logits of every row

A `Draw` has the settings and the seed of one image. Row draws are the tensors drawn from it, by
name. They have no trained values: means and scales belong to the network, which is a deterministic
function of images, rows and row draws.

`eulerlora.nn.network` has what is equal for all methods. The rest of the program asks the class of
a method for all that differs (`eulerlora.methods.registry`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Generator, Tensor, nn

from eulerlora.nn.attention import adapted_attention
from eulerlora.nn.device import upload
from eulerlora.nn.rows import padded
from eulerlora.sampling.masks import PROJECTIONS, AdapterSettings, det_coefficients
from eulerlora.settings import BackboneSettings, Draw
from eulerlora_contract.settings import Settings

COEFFICIENTS = "coefficients"
"""Name of the coefficients of the directions of each row's adapter, (rows, blocks, 4, rank)."""


@dataclass(frozen=True)
class RowDraws:
    """What a method drew for rows.

    Zeros mean that a row does not deviate from mode det, except in `COEFFICIENTS`.

    Attributes:
        blocks: By name, (rows, blocks, ...).
        head: By name, (rows, ...).
    """

    blocks: Mapping[str, Tensor] = field(default_factory=dict)
    head: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_coefficients(cls, coefficients: Tensor) -> "RowDraws":
        """Draws of coefficients (rows, blocks, 4, rank) alone."""
        return cls({COEFFICIENTS: coefficients})

    @classmethod
    def cat(cls, parts: Sequence["RowDraws"], counts: Sequence[int]) -> "RowDraws":
        """Joins draws of `counts[i]` rows; a name that a part lacks is zero on its rows."""
        return cls(
            _joined([part.blocks for part in parts], counts),
            _joined([part.head for part in parts], counts),
        )

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(self.blocks), tuple(self.head)

    def block(self, index: int) -> dict[str, Tensor]:
        """The draws of one block by name, (rows, ...)."""
        return {name: values[:, index] for name, values in self.blocks.items()}

    def to(self, images: Tensor) -> "RowDraws":
        """Moves the draws to the device and type of the images."""
        return self._mapped(lambda values: upload(values, images.device).to(images))

    def rows(self, rows: slice | Tensor) -> "RowDraws":
        """Selects rows by their positions."""
        return self._mapped(lambda values: values[rows])

    def repeated(self, count: int) -> "RowDraws":
        """Repeats the draws for `count` images that share them."""
        return self._mapped(lambda values: values.repeat(count, *[1] * (values.ndim - 1)))

    def padded(self, count: int) -> "RowDraws":
        """Appends zeros up to `count` rows."""
        return self._mapped(lambda values: padded(values, count))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "RowDraws":
        return RowDraws(
            {name: change(values) for name, values in self.blocks.items()},
            {name: change(values) for name, values in self.head.items()},
        )


def _joined(parts: Sequence[Mapping[str, Tensor]], counts: Sequence[int]) -> dict[str, Tensor]:
    shapes = {name: values.shape[1:] for part in parts for name, values in part.items()}
    return {
        name: torch.cat(
            [
                part[name] if name in part else torch.zeros(count, *shape)
                for part, count in zip(parts, counts, strict=True)
            ]
        )
        for name, shape in shapes.items()
    }


def initial_bound(adapters: AdapterSettings, width: int) -> float:
    """Bound of the uniform initial elements of `down` (Xavier)."""
    return adapters.init_gain * math.sqrt(6 / (adapters.rank + width))


@dataclass(frozen=True)
class BlockRows:
    """The rows that a block computes, and the number of tokens that it returns for each.

    They are ordered as in `Rows.positions`: consecutive groups of equal size, of one adapter each.

    Attributes:
        draws: Of this block, by name, (rows, ...).
        adapter: (rows,), index of each row's adapter.
        group_adapter: (groups,), index of the adapter of each group.
        image: (rows,), index of each row's image if the inputs are those of images; None if they
            are those of the rows.
        queries: Number of leading tokens to return; None returns all.
    """

    draws: Mapping[str, Tensor]
    adapter: Tensor
    group_adapter: Tensor
    image: Tensor | None = None
    queries: int | None = None

    def of_rows(self, inputs: Tensor) -> Tensor:
        """The inputs of every row, (rows, ...)."""
        return inputs if self.image is None else inputs[self.image]


class BlockAdapters(nn.Module, ABC):
    """The tensors that a method adds to one block, and its self-attention."""

    def divergence(self) -> Tensor | None:
        """Weighted divergence of learned laws from their priors, a scalar in nats.

        It is the sum over adapters. Training adds it to the loss, divided by the number of images
        and by that of adapters, over which the loss is a mean; None without such a law.
        """
        return None

    def constrain(self) -> None:
        """Moves the tensors into their admissible set, by default all values.

        Training calls it after each step of the optimiser.
        """

    @abstractmethod
    def initialise(self, generator: Generator) -> None:
        """Draws the tensors from `generator`; the block then equals the frozen block, or nearly."""

    @abstractmethod
    def attention(self, inputs: Tensor, frozen: nn.MultiheadAttention, rows: BlockRows) -> Tensor:
        """Self-attention of every row, (rows, queries, width), without the residual.

        Args:
            inputs: (rows, tokens, width), after the layer norm; with `rows.image`, (images, tokens,
                width).
            frozen: As in `adapted_attention`.
            rows: With the draws of this block.
        """


class AttentionAdapters(BlockAdapters):
    """The trainable directions of one block: all adapters, all four projections.

    Attributes:
        down: (4, adapters, rank, width), initialised Xavier-uniform with `init_gain` for each
            (rank, width) matrix.
        up: (4, adapters, rank, width), initialised to zero: the block then equals the frozen block.
    """

    def __init__(self, width: int, settings: AdapterSettings) -> None:
        super().__init__()
        self.bound = initial_bound(settings, width)
        shape = (len(PROJECTIONS), settings.adapters, settings.rank, width)
        self.down = nn.Parameter(torch.zeros(shape))
        self.up = nn.Parameter(torch.zeros(shape))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws `down` from `generator` and sets `up` to zero."""
        self.down.uniform_(-self.bound, self.bound, generator=generator)
        self.up.zero_()

    @property
    def det_down(self) -> Tensor:
        """`down` times the coefficients of mode det."""
        return self.down

    def coefficients(self, rows: BlockRows) -> Tensor:
        """Coefficients (rows, 4, rank) of the directions of each row's adapter."""
        return rows.draws[COEFFICIENTS]

    def directions(self, rows: BlockRows) -> tuple[Tensor, Tensor]:
        """`down` and `up` of the adapter of every group of rows, (4, groups, rank, width)."""
        down, up = (each.index_select(1, rows.group_adapter) for each in (self.down, self.up))
        return down, up

    def attention(self, inputs: Tensor, frozen: nn.MultiheadAttention, rows: BlockRows) -> Tensor:
        (down, up), coefficients = self.directions(rows), self.coefficients(rows)
        return adapted_attention(inputs, frozen, down, up, coefficients, rows.image, rows.queries)


class AdapterHeads(nn.Module):
    """One linear classification head for each adapter.

    `weight` is (adapters, classes, width), `bias` (adapters, classes).
    """

    def __init__(self, width: int, classes: int, adapters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(adapters, classes, width))
        self.bias = nn.Parameter(torch.zeros(adapters, classes))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws every head like `nn.Linear`: uniform in [-1/sqrt(width), 1/sqrt(width)]."""
        bound = self.weight.shape[-1] ** -0.5
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.uniform_(-bound, bound, generator=generator)

    def forward(
        self, features: Tensor, adapter: Tensor, draws: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Logits (rows, classes), in float32 under autocast too.

        Args:
            features: (rows, width).
            adapter: (rows,), index of the head of each row.
            draws: Of the rows, by name; these heads use none.
        """
        with torch.autocast(features.device.type, enabled=False):
            logits = torch.einsum("nd,acd->nac", features.float(), self.weight) + self.bias
        return logits[torch.arange(len(features), device=logits.device), adapter]


class MethodSettings(Settings):
    """Base of the hyperparameters of a method."""

    name: str
    """The method; a subclass has one name, `Literal["..."] = "..."`."""


@dataclass(frozen=True)
class NetworkShape:
    """The sizes of a network: its adapters, its backbone and its number of classes."""

    adapters: AdapterSettings
    backbone: BackboneSettings
    classes: int


LabelledBatch = tuple[Tensor, Tensor]
"""Pixels (n, 3, size, size), or (n, adapters, 3, size, size), and labels (n,)."""


class FinishedRun(Protocol):
    """What a method can fit to after the last step: images, and further losses of the training.

    Attributes:
        image_count: Of the part `train`.
        clip_norm: Of the gradient, as in the training.
    """

    @property
    def image_count(self) -> int: ...
    @property
    def clip_norm(self) -> float: ...

    def last_epoch(self) -> Iterable[LabelledBatch]:
        """Batches of the last epoch, this process's shard.

        Labels below 0 belong to no class.
        """

    def inputs(self, part: Literal["train", "calibration"], count: int) -> LabelledBatch:
        """At most `count` evenly spaced images of a part, as in a prediction.

        Pixels are on the device of the network, labels on the CPU.
        """

    def losses(self, steps: int) -> Iterator[Tensor]:
        """Yields the mean loss of the present weights in further steps, with its graph."""

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""


SettingsType_co = TypeVar("SettingsType_co", bound=MethodSettings, covariant=True)


class Method(ABC, Generic[SettingsType_co]):
    """Base of all methods.

    A subclass has all that the program needs to know about its method.

    Attributes:
        settings_type: The class of its settings.
        noise_per_image: In training, the images of a batch have draws of their own; otherwise they
            share one draw per trajectory.
        exportable: True if mode det is W0 + B A with linear heads, which other libraries have.
    """

    settings_type: ClassVar[type[MethodSettings]]
    noise_per_image: ClassVar[bool] = False
    exportable: ClassVar[bool] = True

    def __init__(self, settings: SettingsType_co, shape: NetworkShape) -> None:
        self.settings, self.shape = settings, shape
        self.adapters, self.depth = shape.adapters, shape.backbone.layers

    # Settings: what a recipe or a config says, without a network.

    @classmethod
    def method_name(cls) -> str:
        """The name in recipes and configs."""
        name: str = cls.settings_type.model_fields["name"].default
        return name

    @classmethod
    def is_sampled(cls, adapters: AdapterSettings) -> bool:
        """False if mode stoch draws nothing."""
        return True

    @classmethod
    def label(cls, adapters: AdapterSettings) -> str:
        """The name in texts; by default that of the class."""
        return cls.__name__.removesuffix("Method")

    @classmethod
    def members_text(cls, adapters: AdapterSettings) -> str:
        """What answers: adapters of a rank, or the members of an ensemble."""
        plural = "" if adapters.adapters == 1 else "s"
        return f"{adapters.adapters} adapter{plural} of rank {adapters.rank}"

    @classmethod
    def law_text(cls, settings: MethodSettings, adapters: AdapterSettings) -> str:
        """What is drawn, in some words: the name and the settings without defaults."""
        return ", ".join([settings.name, *changed_settings(settings)])

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        """Accepted values of keys that the method restricts in a recipe.

        For example {"training.head": ("random",)}.
        """
        return {}

    # Tensors.

    def block(self, index: int) -> BlockAdapters:
        """The tensors of a block, zero; by default those of LoRA.

        Rows without draws of the blocks share them: the rows of an adapter, and those of an image
        if no block has tensors.
        """
        return AttentionAdapters(self.shape.backbone.width, self.adapters)

    def heads(self) -> AdapterHeads:
        """The classification heads, zero."""
        shape = self.shape
        return AdapterHeads(shape.backbone.width, shape.classes, self.adapters.adapters)

    # Law of the draws.

    def draw(self, draw: Draw) -> RowDraws:
        """Row draws of one image, adapter by adapter, float32 on the CPU.

        The generator is seeded for this draw only, so that the result depends on no other image.
        """
        if draw.mode == "det":
            adapter = torch.arange(self.adapters.adapters)
            return self.det().rows(adapter.repeat_interleave(draw.views))
        generator = Generator().manual_seed(draw.seed)
        if draw.sampler == "balanced":
            return self.sample_balanced(draw.first, draw.count, generator)
        # Independent samples depend on how many are drawn: a round draws all of the request.
        drawn = draw.drawn or draw.samples
        positions = torch.arange(self.adapters.adapters * drawn).view(-1, drawn)
        run = positions[:, draw.first : draw.samples].flatten()
        return self.sample(drawn, generator).rows(run)

    def det(self) -> RowDraws:
        """Draws of mode det, one row for each adapter."""
        return RowDraws.of_coefficients(det_coefficients(self.depth, self.adapters))

    @abstractmethod
    def sample(self, samples: int, generator: Generator) -> RowDraws:
        """Draws independent samples, `samples` for each adapter."""

    @abstractmethod
    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        """Draws samples that are balanced against each other.

        Each sample alone has the law of `sample`. The `first` samples of each adapter are skipped.
        The first samples of an adapter do not depend on how many are drawn.
        """

    # Training.

    def optimiser(
        self, parameters: Mapping[str, nn.Parameter], images: int, weight_decay: float
    ) -> torch.optim.Optimizer | None:
        """The method's own optimiser, with its complete state; None for the recipe's.

        Only gradients of its first parameter group are clipped; training sets the rate of all
        groups before each step. `parameters` are the trainable ones by name; `images` is the number
        of training images.
        """
        return None

    def after_training(self, network: nn.Module, run: FinishedRun) -> None:
        """Fits in place what depends on the final weights; by default nothing.

        It may replace `self.settings` by those with what was fitted, which the checkpoint stores.

        Args:
            network: An `AdaptedVisionTransformer` of this method, on its device.
            run: Gives the images and losses to fit to.
        """


AnyMethod = Method[MethodSettings]


def changed_settings(settings: MethodSettings) -> list[str]:
    """The settings that differ from their defaults, without the name."""
    values: dict[str, Any] = settings.model_dump(exclude={"name"}, exclude_defaults=True)
    return [f"{name} {value}" for name, value in values.items()]
