"""Epistemic neural network (epinet, Osband et al., NeurIPS 2023) on the heads of adapters.

    logits = W h + b + (f(h, z) + prior_weight p(h, z)) z,    z standard normal, one for each row

f is learned and p is fixed at its random initial values; both return (classes, index) matrices and
get the features h without gradient. In mode det, z is zero: the logits are those of the base head.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from eulerlora.methods.gaussian import NoiseMethod
from eulerlora.nn.attention import COEFFICIENTS
from eulerlora.nn.method import AdapterHeads, MethodSettings, NetworkShape, RowDraws
from eulerlora_client.settings import NotNegative, PositiveInt

INDEX = "index"
"""Name of z, (rows, index_dimension)."""


class EpiNetSettings(MethodSettings):
    """Heads with a small network that also reads a random index (epistemic neural network)."""

    name: Literal["epinet"] = "epinet"
    """The method."""
    index_dimension: Annotated[PositiveInt, Field(le=1024)] = 8
    """Number of elements of the index."""
    hidden: Annotated[PositiveInt, Field(le=16_384)] = 50
    """Units of the hidden layer of the learned network and of the fixed prior network."""
    prior_weight: NotNegative = 1.0
    """Factor of the prior network."""


class IndexedNetworks(nn.Module):
    """A network with one hidden layer (ReLU) for each adapter: (h, z) -> (classes, index).

    hidden_weight: (adapters, hidden, width + index). hidden_bias: (adapters, hidden).
    output_weight: (adapters, classes * index, hidden). output_bias: (adapters, classes * index).
    """

    def __init__(self, width: int, classes: int, adapters: int, settings: EpiNetSettings) -> None:
        super().__init__()
        index, hidden = settings.index_dimension, settings.hidden
        self.index = index
        self.hidden_weight = nn.Parameter(torch.zeros(adapters, hidden, width + index))
        self.hidden_bias = nn.Parameter(torch.zeros(adapters, hidden))
        self.output_weight = nn.Parameter(torch.zeros(adapters, classes * index, hidden))
        self.output_bias = nn.Parameter(torch.zeros(adapters, classes * index))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws every layer like `nn.Linear`: uniform in [-1/sqrt(inputs), 1/sqrt(inputs)]."""
        for weight, bias in (
            (self.hidden_weight, self.hidden_bias),
            (self.output_weight, self.output_bias),
        ):
            bound = weight.shape[-1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
            bias.uniform_(-bound, bound, generator=generator)

    def forward(self, features: Tensor, index: Tensor, adapter: Tensor) -> Tensor:
        """Returns (rows, classes, index). features: (rows, width). index: (rows, index)."""
        inputs = torch.cat([features, index], dim=-1)
        every = torch.einsum("ni,ahi->nah", inputs, self.hidden_weight) + self.hidden_bias
        row = torch.arange(len(inputs), device=inputs.device)
        hidden = every[row, adapter].relu()
        every = torch.einsum("nh,aoh->nao", hidden, self.output_weight) + self.output_bias
        matrix: Tensor = every[row, adapter].unflatten(-1, (-1, self.index))
        return matrix


class EpiNetHeads(AdapterHeads):
    """Base heads `weight` and `bias`, the learned networks and the fixed prior networks."""

    def __init__(self, width: int, classes: int, adapters: int, settings: EpiNetSettings) -> None:
        super().__init__(width, classes, adapters)
        self.prior_weight = settings.prior_weight
        self.learned = IndexedNetworks(width, classes, adapters, settings)
        self.prior = IndexedNetworks(width, classes, adapters, settings).requires_grad_(False)

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        super().initialise(generator)
        self.learned.initialise(generator)
        self.prior.initialise(generator)

    def forward(
        self, features: Tensor, adapter: Tensor, draws: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        logits = super().forward(features, adapter)
        if not draws:
            return logits
        with torch.autocast(features.device.type, enabled=False):
            inputs, index = features.detach().float(), draws[INDEX].float()
            learned: Tensor = self.learned(inputs, index, adapter)
            prior: Tensor = self.prior(inputs, index, adapter)
            return logits + torch.einsum("nci,ni->nc", learned + self.prior_weight * prior, index)


class EpiNetMethod(NoiseMethod[EpiNetSettings]):
    """Plain adapters; the index of a row is read by its head."""

    settings_type = EpiNetSettings
    noise_per_image = True
    features_differ = "adapter"

    def __init__(self, settings: EpiNetSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        self.noise = {INDEX: (settings.index_dimension,)}

    def heads(self) -> AdapterHeads:
        shape = self.shape
        return EpiNetHeads(
            shape.backbone.width, shape.classes, self.adapters.adapters, self.settings
        )

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        return RowDraws({COEFFICIENTS: coefficients}, noise)
