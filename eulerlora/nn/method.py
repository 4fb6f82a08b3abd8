"""What a method consists of: settings, tensors of each block, heads, and a law of the draws.

    draws = method.draw(draw)                          # random input of one image, on the CPU
    block.attention(inputs, frozen, rows, queries)     # reads the draws of its rows
    heads(features, adapter, draws)                    # logits of every row

`eulerlora.nn.network` runs the rest of the network once for the rows of all methods. The rest of
the program asks the class of a method for all that differs (`eulerlora.methods.registry`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Generator, Tensor, nn

from eulerlora.nn.attention import AttentionAdapters, BlockAdapters
from eulerlora.nn.rows import RowDraws
from eulerlora.sampling.masks import det_coefficients
from eulerlora.settings import AdapterSettings, BackboneSettings, Draw
from eulerlora_client.settings import Settings

LATER_SEED = 2_654_435_769  # 2**32 / golden ratio; later rounds do not share seeds with neighbours


class AdapterHeads(nn.Module):
    """One linear classification head for each adapter.

    weight: (adapters, classes, width). bias: (adapters, classes).
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
        """Returns logits (rows, classes), in float32 under autocast too.

        features: (rows, width). adapter: (rows,), index of the head of each row. draws: of the
        rows, by name; these heads use none.
        """
        with torch.autocast(features.device.type, enabled=False):
            logits = torch.einsum("nd,acd->nac", features.float(), self.weight) + self.bias
        return logits[torch.arange(len(features), device=logits.device), adapter]


class MethodSettings(Settings):
    """Base of the hyperparameters of a method."""

    name: str
    """The method; a subclass has one name, `Literal["..."] = "..."`."""


class TrainingKeys(Protocol):
    """The keys `training.*` of a recipe that a method may restrict."""

    @property
    def epochs(self) -> int | str: ...
    @property
    def head(self) -> str: ...
    @property
    def sampling(self) -> bool: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def adapter_dropout(self) -> float: ...


@dataclass(frozen=True)
class NetworkShape:
    """The sizes of a network: its adapters, its backbone and its number of classes."""

    adapters: AdapterSettings
    backbone: BackboneSettings
    classes: int


Distinct = Literal["draw", "adapter", "image"]
Batches = Iterable[tuple[Tensor, Tensor]]
"""Pixels (n, 3, size, size), or (n, adapters, 3, size, size), and labels (n,)."""
SettingsType_co = TypeVar("SettingsType_co", bound=MethodSettings, covariant=True)


class Method(ABC, Generic[SettingsType_co]):
    """A way to answer rows. A subclass is all that the program knows of one method.

    settings_type: the class of its settings.
    noise_per_image: in training, the images of a batch have draws of their own; otherwise they
    share one draw per trajectory.
    features_differ: what the features of a row depend on: its draw, only its adapter, or only its
    image. Rows with equal features share one computation of the blocks; heads run for every row.
    has_adapters: False for members without A and B, for which the rank has no meaning.
    plain_adapters: True if the tensors are those of LoRA, to which a distribution can be fitted.
    takes_dropout: True if training can drop inputs of A.
    exportable: True if mode det is W0 + B A with linear heads, which other libraries have.
    own_optimiser: True if `optimiser` trains the network; recipes name it after the method.
    """

    settings_type: ClassVar[type[MethodSettings]]
    noise_per_image: ClassVar[bool] = False
    features_differ: ClassVar[Distinct] = "draw"
    has_adapters: ClassVar[bool] = True
    plain_adapters: ClassVar[bool] = False
    takes_dropout: ClassVar[bool] = True
    exportable: ClassVar[bool] = True
    own_optimiser: ClassVar[bool] = False

    def __init__(self, settings: SettingsType_co, shape: NetworkShape) -> None:
        self.settings, self.shape = settings, shape
        self.adapters, self.depth = shape.adapters, shape.backbone.layers

    # Settings: what a recipe or a config says, without a network.

    @classmethod
    def method_name(cls) -> str:
        """Returns the name in recipes and configs."""
        name: str = cls.settings_type.model_fields["name"].default
        return name

    @classmethod
    def is_sampled(cls, adapters: AdapterSettings) -> bool:
        """Returns False if mode stoch draws nothing."""
        return True

    @classmethod
    def members_text(cls, adapters: AdapterSettings) -> str:
        """Returns what answers: adapters of a rank, or the members of an ensemble."""
        if cls.has_adapters:
            return f"{adapters.adapters} adapters of rank {adapters.rank}"
        return f"{adapters.adapters} {cls.method_name()} members"

    @classmethod
    def law_text(cls, settings: MethodSettings, adapters: AdapterSettings) -> str:
        """Returns what is drawn, in some words: the name and the settings without defaults."""
        return ", ".join([settings.name, *changed_settings(settings)])

    @classmethod
    def check_recipe(cls, adapters: AdapterSettings, training: TrainingKeys) -> None:
        """Raises ValueError, with the key, for a recipe that cannot train the method."""
        name = cls.method_name()
        if training.adapter_dropout and not cls.takes_dropout:
            raise ValueError(
                f"expected training.adapter_dropout=0 with method {name}, got "
                f"{training.adapter_dropout}"
            )
        if not cls.has_adapters and adapters.rank != 1:
            raise ValueError(
                f"expected adapters.rank=1 with method {name}, which has no adapters, got "
                f"{adapters.rank}"
            )

    # Tensors.

    def block(self) -> BlockAdapters:
        """Returns the tensors of one block, zero; by default those of LoRA."""
        return AttentionAdapters(self.shape.backbone.width, self.adapters)

    def blocks(self) -> list[BlockAdapters]:
        """Returns the tensors of all blocks, zero."""
        return [self.block() for _ in range(self.depth)]

    def heads(self) -> AdapterHeads:
        """Returns the classification heads, zero."""
        shape = self.shape
        return AdapterHeads(shape.backbone.width, shape.classes, self.adapters.adapters)

    # Law of the draws.

    def draw(self, draw: Draw) -> RowDraws:
        """Returns the draws of one image's rows, adapter by adapter, float32 on the CPU.

        The generator is seeded for this draw only, so that the result depends on no other image.
        """
        drawn = self._of_views(draw.views) if draw.mode == "det" else self._sampled(draw)
        if not draw.sampled_from_block:
            return drawn
        return drawn.shared_below(draw.sampled_from_block, self.det())

    def det(self) -> RowDraws:
        """Returns the draws of mode det, one row for each adapter."""
        return RowDraws.of_coefficients(det_coefficients(self.depth, self.adapters))

    def _of_views(self, views: int) -> RowDraws:
        """Returns the draws of mode det, `views` equal rows for each adapter."""
        adapter = torch.arange(self.adapters.adapters)
        return self.det() if views == 1 else self.det().rows(adapter.repeat_interleave(views))

    def _sampled(self, draw: Draw) -> RowDraws:
        """Returns the draws of mode stoch, sampled in all blocks."""
        if draw.sampler == "balanced":
            generator = Generator().manual_seed(draw.seed)
            return self.sample_balanced(draw.first, draw.count, generator)
        seed = (draw.seed + LATER_SEED * draw.first) % 2**32
        return self.sample(draw.count, Generator().manual_seed(seed))

    @abstractmethod
    def sample(self, samples: int, generator: Generator) -> RowDraws:
        """Returns the draws of independent samples, `samples` for each adapter."""

    @abstractmethod
    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        """Returns the draws of samples that are balanced against each other.

        Each sample alone has the law of `sample`. first: samples of each adapter to skip. The first
        samples of an adapter do not depend on how many are drawn.
        """

    # Training.

    def optimiser(
        self, parameters: Mapping[str, nn.Parameter], images: int, weight_decay: float
    ) -> torch.optim.Optimizer:
        """Returns the optimiser of a method with `own_optimiser`, with its complete state.

        parameters: trainable, by name. images: for training. Only gradients of its first parameter
        group are clipped; training sets the rate of all groups before each step.
        """
        raise NotImplementedError

    def after_training(
        self, network: nn.Module, batches: Batches, total: Callable[[Tensor], Tensor]
    ) -> None:
        """Fits in place what depends on the final weights; by default nothing.

        network: of this method, on its device. batches: of the last epoch, this process's shard;
        labels below 0 belong to no class. total: returns the sum of a tensor over all processes.
        """


AnyMethod = Method[MethodSettings]


class EnsembleMethod(Method[SettingsType_co]):
    """Members without adapters and random input: a sample is that of mode det, a row a member."""

    has_adapters = False
    takes_dropout = False
    exportable = False

    @classmethod
    def is_sampled(cls, adapters: AdapterSettings) -> bool:
        return False

    def det(self) -> RowDraws:
        return RowDraws()

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        return RowDraws()

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        return RowDraws()


def changed_settings(settings: MethodSettings) -> list[str]:
    """Returns the settings of a method that differ from their defaults, without its name."""
    values: dict[str, Any] = settings.model_dump(exclude={"name"}, exclude_defaults=True)
    return [f"{name} {value}" for name, value in values.items()]
