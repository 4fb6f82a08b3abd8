"""Methods that draw at the heads: epinet and SNGP.

Epistemic neural network (epinet, Osband et al., NeurIPS 2023) on the heads of adapters:

    logits = W h + b + (f(h, z) + prior_weight p(h, z)) z,    z standard normal, one for each row

f is learned and p is fixed at its random initial values; both return (classes, index) matrices and
get the features h without gradient. In mode det, z is zero: the logits are those of the base head.

Spectral-normalised neural Gaussian process (SNGP, Liu et al., NeurIPS 2020) on adapters.

The trained part of every projection, B A, has a bounded spectral norm. The heads are Gaussian
processes with random Fourier features (Rahimi and Recht, NeurIPS 2007):

    phi = sqrt(2/D) cos(V h + v),   logits of a row ~ N(sqrt(D) W phi + b, phi' S phi) by class

h are features after a layer norm without learned factors, and D is the number of random features.
The kernel of the process is exp(-|h - h'|^2 / 2 l^2). S is the covariance of the weights, shared by
all classes (Liu et al., NeurIPS 2020 and JMLR 2023):

    S^-1 = weight_precision I + sum over training images of p (1 - p) phi phi'

with the greatest probability p of the image, which bounds the curvature of every class. W is in
units of 1/sqrt(D), so that the logits learn as fast as those of a linear head.

In mode det a row has mean-field logits; in mode stoch it draws its logits.
"""

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.method import (
    AdapterHeads,
    AttentionAdapters,
    BlockAdapters,
    BlockRows,
    FinishedRun,
    MethodSettings,
    NetworkShape,
    RowDraws,
    SettingsType_co,
)
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import PROJECTIONS, AdapterSettings
from eulerlora_contract.settings import NotNegative, Positive, PositiveInt
from eulerlora_lab.methods.gaussian import NoiseMethod


class _SharedAdapters(AttentionAdapters):
    """The directions of one block without draws: the rows of an adapter have those of mode det."""

    def coefficients(self, rows: BlockRows) -> Tensor:
        """Ones, (rows, 4, rank)."""
        return self.down.new_ones(len(rows.adapter), len(PROJECTIONS), self.down.shape[2])


class _HeadNoiseMethod(NoiseMethod[SettingsType_co]):
    """Noise of the heads alone, so that the samples of an adapter share all blocks."""

    def block(self, index: int) -> BlockAdapters:
        return _SharedAdapters(self.shape.backbone.width, self.adapters)

    def det(self) -> RowDraws:
        return RowDraws()

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        return RowDraws(head=noise)


_INDEX = "index"
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


class _IndexedNetworks(nn.Module):
    """A network with one hidden layer (ReLU) for each adapter: (h, z) -> (classes, index).

    Attributes:
        hidden_weight: (adapters, hidden, width + index).
        hidden_bias: (adapters, hidden).
        output_weight: (adapters, classes * index, hidden).
        output_bias: (adapters, classes * index).
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
        """(rows, classes, index); features (rows, width), index (rows, index), adapter (rows,)."""
        inputs = torch.cat([features, index], dim=-1)
        row = torch.arange(len(inputs), device=inputs.device)
        hidden = torch.einsum("ni,ahi->nah", inputs, self.hidden_weight) + self.hidden_bias
        hidden = hidden[row, adapter].relu()  # of each row's adapter
        output = torch.einsum("nh,aoh->nao", hidden, self.output_weight) + self.output_bias
        matrix: Tensor = output[row, adapter].unflatten(-1, (-1, self.index))
        return matrix


class _EpiNetHeads(AdapterHeads):
    """Base heads `weight` and `bias`, the learned networks and the fixed prior networks."""

    def __init__(self, width: int, classes: int, adapters: int, settings: EpiNetSettings) -> None:
        super().__init__(width, classes, adapters)
        self.prior_weight = settings.prior_weight
        self.learned = _IndexedNetworks(width, classes, adapters, settings)
        self.prior = _IndexedNetworks(width, classes, adapters, settings).requires_grad_(False)

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
            inputs, index = features.detach().float(), draws[_INDEX].float()
            learned: Tensor = self.learned(inputs, index, adapter)
            prior: Tensor = self.prior(inputs, index, adapter)
            return logits + torch.einsum("nci,ni->nc", learned + self.prior_weight * prior, index)


class EpiNetMethod(_HeadNoiseMethod[EpiNetSettings]):
    """Plain adapters; the index of a row is read by its head."""

    settings_type = EpiNetSettings
    noise_per_image = True

    def __init__(self, settings: EpiNetSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        self.noise = {_INDEX: (settings.index_dimension,)}

    def heads(self) -> AdapterHeads:
        shape = self.shape
        return _EpiNetHeads(
            shape.backbone.width, shape.classes, self.adapters.adapters, self.settings
        )


_LOGIT_NOISE = "logit_noise"
"""Standard normal noise of the logits, (rows, classes)."""
_SAMPLED = "sampled"
"""(rows, 1): 1 if the row draws its logits; 0 if it has those of the mean field."""
_MEAN_FIELD = math.pi / 8
"""The softmax of logits / sqrt(1 + _MEAN_FIELD variance) approximates the mean softmax."""


class SNGPSettings(MethodSettings):
    """Adapters of bounded norm and a Gaussian process with random features as head."""

    name: Literal["sngp"] = "sngp"
    """The method."""
    features: Annotated[PositiveInt, Field(le=16_384)] = 1024
    """Number of random features."""
    length_scale: Positive = 0.5
    """Of the process's kernel, in units of the length of the normalised features."""
    weight_precision: Positive = 0.1
    """Prior precision of the weights of the random features."""
    norm_bound: Positive = 2.0
    """Greatest spectral norm of B A of a projection."""


class _GaussianProcessHeads(AdapterHeads):
    """One process for each adapter.

    weight: (adapters, classes, D). bias: (adapters, classes). frequencies V: (adapters, D, width)
    and phases v: (adapters, D), drawn once.

    Attributes:
        covariance_root: (adapters, D, D), the matrix R with S = R' R; zero in training.
    """

    def __init__(self, width: int, classes: int, adapters: int, settings: SNGPSettings) -> None:
        super().__init__(settings.features, classes, adapters)
        self.settings = settings

        def fixed(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(adapters, *shape), requires_grad=False)

        self.frequencies = fixed(settings.features, width)
        self.phases = fixed(settings.features)
        self.covariance_root = fixed(settings.features, settings.features)

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws the weights like `nn.Linear`, and the random features."""
        super().initialise(generator)
        width = self.frequencies.shape[-1]
        deviation = 1 / (self.settings.length_scale * math.sqrt(width))
        self.frequencies.normal_(std=deviation, generator=generator)
        self.phases.uniform_(0, 2 * math.pi, generator=generator)
        self.covariance_root.zero_()

    def random_features(self, features: Tensor, adapter: Tensor) -> Tensor:
        """phi, (rows, D), from float32 features (rows, width) and adapters (rows,)."""
        inputs = F.layer_norm(features, features.shape[-1:])
        angles = torch.einsum("nd,afd->naf", inputs, self.frequencies) + self.phases
        angles = angles[torch.arange(len(inputs), device=inputs.device), adapter]
        return math.sqrt(2 / angles.shape[-1]) * angles.cos()

    def forward(
        self, features: Tensor, adapter: Tensor, draws: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            phi = self.random_features(features.float(), adapter)
            logits = super().forward(math.sqrt(phi.shape[-1]) * phi, adapter)
            variance = self.variance(phi, adapter)
            mean_field = logits / (1 + _MEAN_FIELD * variance).sqrt()
            if not draws:
                return mean_field
            sampled = logits + variance.sqrt() * draws[_LOGIT_NOISE]
            return torch.where(draws[_SAMPLED] > 0, sampled, mean_field)

    @torch.no_grad()
    def variance(self, phi: Tensor, adapter: Tensor) -> Tensor:
        """phi' S phi, (rows, 1); zero before `set_covariance`."""
        projected = torch.einsum("nf,agf->nag", phi, self.covariance_root)
        projected = projected[torch.arange(len(phi), device=phi.device), adapter]
        return projected.square().sum(dim=-1, keepdim=True)

    @torch.no_grad()
    def curvature(self, features: Tensor, adapter: Tensor, logits: Tensor) -> Tensor:
        """The sum over rows of p (1 - p) phi phi', (adapters, D, D)."""
        greatest = logits.softmax(dim=-1).amax(dim=-1, keepdim=True)
        scaled = (greatest * (1 - greatest)).sqrt() * self.random_features(features, adapter)
        parts = [scaled[adapter == index] for index in range(len(self.weight))]
        return torch.stack([part.T @ part for part in parts])

    @torch.no_grad()
    def set_covariance(self, curvature: Tensor) -> None:
        """Sets S from the curvature of all training images, (adapters, D, D)."""
        exact = curvature.double()
        identity = torch.eye(exact.shape[-1], dtype=exact.dtype, device=exact.device)
        lower = torch.linalg.cholesky(exact + self.settings.weight_precision * identity)
        root = torch.linalg.solve_triangular(lower, identity, upper=False)
        self.covariance_root.copy_(root)


class _BoundedAdapters(_SharedAdapters):
    """The directions of one block; the spectral norm of B A is at most `norm_bound`."""

    def __init__(self, width: int, adapters: AdapterSettings, norm_bound: float) -> None:
        super().__init__(width, adapters)
        self.norm_bound = norm_bound

    @torch.no_grad()
    def constrain(self) -> None:
        """Scales every B whose B A has a greater norm, as SNGP does with weights."""
        # With B = Q R and A' = P T, they are the norms of the small matrices R T'.
        upper = torch.linalg.qr(self.up.mT, mode="r").R
        lower = torch.linalg.qr(self.down.mT, mode="r").R.mT
        norms = torch.linalg.matrix_norm(upper @ lower, ord=2)
        self.up.mul_((self.norm_bound / norms).clamp(max=1)[..., None, None])


class SNGPMethod(_HeadNoiseMethod[SNGPSettings]):
    """Bounded adapters with heads that draw the logits of every row."""

    settings_type = SNGPSettings
    exportable = False

    def __init__(self, settings: SNGPSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        self.noise = {_LOGIT_NOISE: (shape.classes,)}

    def block(self, index: int) -> BlockAdapters:
        width = self.shape.backbone.width
        return _BoundedAdapters(width, self.adapters, self.settings.norm_bound)

    def heads(self) -> AdapterHeads:
        shape = self.shape
        return _GaussianProcessHeads(
            shape.backbone.width, shape.classes, self.adapters.adapters, self.settings
        )

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        return {"training.head": ("random",)}

    @torch.no_grad()
    def after_training(self, network: nn.Module, run: FinishedRun) -> None:
        """Sets the covariance of the heads from the images that belong to a class."""
        heads, adapters = network.get_submodule("heads"), self.adapters.adapters
        assert isinstance(heads, _GaussianProcessHeads)
        device = heads.weight.device
        curvature = torch.zeros_like(heads.covariance_root)

        def add(_: object, inputs: tuple[Tensor, Tensor, object], logits: Tensor) -> None:
            curvature.add_(heads.curvature(inputs[0].float(), inputs[1], logits))

        heads.covariance_root.zero_()  # the logits are then those of the mean
        hook = heads.register_forward_hook(add)
        for all_pixels, labels in run.last_epoch():
            if not (labels >= 0).any():
                continue
            pixels = all_pixels[labels >= 0].to(device)
            rows = Rows.of([1] * len(pixels), adapters)
            draws = self.det().repeated(len(pixels)).to(pixels)
            if pixels.ndim == 5:
                rows, pixels = rows.with_own_images(adapters), pixels.flatten(0, 1)
            network(pixels, rows.to(device), draws)
        hook.remove()
        heads.set_covariance(run.total(curvature))

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        return RowDraws(head={**noise, _SAMPLED: torch.ones(len(coefficients), 1)})
