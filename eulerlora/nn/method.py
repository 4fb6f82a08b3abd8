"""What a method consists of: tensors of each block, heads, and a law of the draws.

    draws = method.draw(draw)                          # random input of one image, on the CPU
    block.attention(inputs, frozen, rows, queries)     # reads the draws of its rows
    heads(features, adapter, draws)                    # logits of every row

`eulerlora.nn.network` runs the rest of the network once for the rows of all methods.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from eulerlora.nn.attention import BlockAdapters
from eulerlora.nn.rows import RowDraws
from eulerlora.sampling.masks import LATER_SEED, det_coefficients
from eulerlora.settings import AdapterSettings, BackboneSettings, Draw


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


Distinct = Literal["draw", "adapter", "image"]


@dataclass(frozen=True)
class NetworkShape:
    """The sizes of a network: its adapters, its backbone and its number of classes."""

    adapters: AdapterSettings
    backbone: BackboneSettings
    classes: int


class Method(ABC):
    """A way to answer rows. A subclass has the settings of one method.

    noise_per_image: in training, the images of a batch have draws of their own; otherwise they
    share one draw per trajectory.
    features_differ: what the features of a row depend on: its draw, only its adapter, or only its
    image. Rows with equal features share one computation of the blocks; heads run for every row.
    """

    noise_per_image = False
    features_differ: Distinct = "draw"

    def __init__(self, settings: Any, shape: NetworkShape) -> None:
        self.settings, self.shape = settings, shape
        self.adapters, self.depth = shape.adapters, shape.backbone.layers

    @abstractmethod
    def block(self) -> BlockAdapters:
        """Returns the tensors of one block, zero."""

    def blocks(self) -> list[BlockAdapters]:
        """Returns the tensors of all blocks, zero."""
        return [self.block() for _ in range(self.depth)]

    def heads(self) -> AdapterHeads:
        """Returns the classification heads, zero."""
        shape = self.shape
        return AdapterHeads(shape.backbone.width, shape.classes, self.adapters.adapters)

    def draw(self, draw: Draw) -> RowDraws:
        """Returns the draws of one image's rows, adapter by adapter, float32 on the CPU.

        The generator is seeded for this draw only, so that the result depends on no other image.
        """
        drawn = self.det() if draw.mode == "det" else self._sampled(draw)
        if not draw.sampled_from_block:
            return drawn
        return drawn.shared_below(draw.sampled_from_block, self.det())

    def det(self) -> RowDraws:
        """Returns the draws of mode det, one row for each adapter."""
        return RowDraws.of_coefficients(det_coefficients(self.depth, self.adapters))

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
