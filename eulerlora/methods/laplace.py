"""Laplace approximation of adapters and heads.

Daxberger et al., "Laplace Redux", NeurIPS 2021; for adapters Yang et al., "Bayesian Low-rank
Adaptation for Large Language Models", ICLR 2024.

The posterior of each element is normal with variance 1 / (n h + prior precision), where n h is the
diagonal of the generalised Gauss-Newton matrix of the cross-entropy over the training images. With
Kronecker factors, the same holds for the elements of each matrix in the bases of its factors. Each
adapter has its own posterior, from its own answers.

The Kronecker factors are those of KFAC-expand: Martens and Grosse, ICML 2015; for transformers
Eschenhagen et al., "Kronecker-Factored Approximate Curvature for Modern Neural Network
Architectures", NeurIPS 2023.

For a matrix W with y = W x, the generalised Gauss-Newton matrix over images and tokens is

    (sum of g g') kron (mean of x x')

where g is the gradient of log p(class) by y, and classes are weighted with their probability.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor
from torch.nn import functional as F

from eulerlora.methods.gaussian import GaussianAdapters, GaussianWeightsMethod, Weight
from eulerlora.methods.posteriors import FitImages, FitSource, network_of, predicted_probabilities
from eulerlora.nn.method import (
    FitSettings,
    MethodSettings,
    NetworkShape,
    RowDraws,
)
from eulerlora.nn.network import AdaptedVisionTransformer, ProjectedBlock
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import PROJECTIONS
from eulerlora_client.settings import Positive, PositiveInt, optional

CURVATURE_BATCH = 8
PRIOR_PRECISIONS = tuple(10.0**exponent for exponent in range(9))
"""Prior precisions that a search compares."""
LAYERS: Mapping[str, tuple[Weight, ...]] = {
    "last": ("head",),
    "adapters": ("down", "up"),
    "all": ("down", "up", "head"),
}


class LaplaceSettings(MethodSettings):
    """Laplace approximation around finished adapters."""

    name: Literal["laplace"] = "laplace"
    layers: Literal["last", "adapters", "all"]
    """`last` samples the heads, `adapters` samples A and B, `all` samples both."""
    structure: Literal["diagonal", "kron"] = optional("diagonal")
    """Of the curvature: its diagonal, or Kronecker factors of every matrix."""
    prior_precision: Positive
    """Prior precision of every element."""
    images: Annotated[int, Field(ge=1)]
    """Number of images from which the curvature was estimated."""


class LaplaceFit(FitSettings):
    """A normal distribution from the curvature of the loss (Laplace)."""

    name: Literal["laplace"] = "laplace"
    """The method."""
    images: PositiveInt = 256
    """Number of training images, evenly spaced, that the fit uses."""
    layers: Literal["last", "adapters", "all"] = "all"
    """`last` samples the heads, `adapters` samples A and B, `all` samples both."""
    structure: Literal["diagonal", "kron"] = "diagonal"
    """Of the curvature: its diagonal, or Kronecker factors of every matrix."""
    prior_precision: Annotated[float, Field(gt=0)] | None = None
    """Of every element; None uses the best of 1, 10, ..., 1e8 on the calibration part."""


class LaplaceMethod(GaussianWeightsMethod[LaplaceSettings]):
    """Noise on the tensors of the chosen layers."""

    settings_type = LaplaceSettings
    fit_settings = LaplaceFit

    def __init__(self, settings: LaplaceSettings, shape: NetworkShape) -> None:
        self.sampled_weights = LAYERS[settings.layers]
        self.rotated = settings.structure == "kron"
        super().__init__(settings, shape)

    @classmethod
    def fits_to_held_out(cls, settings: LaplaceFit) -> bool:
        return settings.prior_precision is None

    @classmethod
    def fit(cls, settings: LaplaceFit, source: FitSource) -> AdaptedVisionTransformer:
        """Returns the network with its posterior."""
        training = source.inputs("train", settings.images).pixels
        stated = LaplaceSettings(
            layers=settings.layers,
            structure=settings.structure,
            prior_precision=settings.prior_precision or 1.0,
            images=len(training),
        )
        held_out = None
        if settings.prior_precision is None:
            held_out = source.inputs("held-out", settings.images)
        return cls.with_posterior(
            source.network, training, source.training_images, stated, held_out
        )

    @classmethod
    def with_posterior(
        cls,
        source: AdaptedVisionTransformer,
        training: Tensor,
        image_count: int,
        settings: LaplaceSettings,
        held_out: FitImages | None = None,
    ) -> AdaptedVisionTransformer:
        """Returns the network with its posterior.

        training: (n, 3, size, size), images of the curvature, which stand for `image_count`.
        held_out: replaces the prior precision of `settings` by that of `PRIOR_PRECISIONS` whose
        mean probability has the lowest negative log-likelihood on these images.
        """
        network, scale = network_of(cls, settings, source), image_count / len(training)
        if settings.structure == "kron":
            decomposed = laws(kronecker_factors(network, training), scale)
            set_precision = partial(set_kronecker_posterior, network, decomposed)
        else:
            diagonal = gauss_newton_diagonal(network, training)
            scaled = {name: value * scale for name, value in diagonal.items()}
            set_precision = partial(set_posterior, network, scaled)
        precision = settings.prior_precision
        if held_out is not None:
            tested = held_out

            def loss(precision: float) -> float:
                set_precision(precision)
                probabilities = predicted_probabilities(network, tested.pixels)
                of_labels = probabilities[torch.arange(len(probabilities)), tested.labels]
                tiny = torch.finfo(of_labels.dtype).tiny
                return -of_labels.clamp_min(tiny).log().mean().item()

            precision = min(PRIOR_PRECISIONS, key=loss)
        set_precision(precision)
        network.method.settings = settings.model_copy(update={"prior_precision": precision})
        return network


def gauss_newton_diagonal(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, Tensor]:
    """Returns the diagonal summed over images, by the name of the parameter without `_root`.

    For the cross-entropy of a softmax the matrix is the Fisher information: the mean over classes y
    with their probabilities p(y) of the squared gradient of log p(y).
    network: with normal weights; its scales are set to 1, so that the gradient of a row's noise is
    that of its weights.
    """
    with torch.no_grad():
        for name, parameter in network.adapter_parameters():
            if name.endswith("_root"):
                parameter.fill_(1.0)
    total: dict[str, Tensor] = {}
    for part in images.split(CURVATURE_BATCH):
        for name, value in _part_diagonal(network, part).items():
            total[name] = total[name] + value if name in total else value
    return total


def _part_diagonal(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, Tensor]:
    adapters = network.settings.adapters
    rows = Rows.of([1] * len(images), adapters).to(images.device)
    drawn = network.method.sample(1, Generator()).repeated(len(images)).to(images)
    det = network.method.det().repeated(len(images)).to(images)
    blocks = {name: _zeros(drawn.blocks[name]) for name in drawn.blocks.keys() - det.blocks.keys()}
    head = {name: _zeros(values) for name, values in drawn.head.items()}
    leaves = {f"blocks.{name}": values for name, values in blocks.items()}
    leaves |= {f"heads.{name}": values for name, values in head.items()}
    logits = network(images, rows, RowDraws({**det.blocks, **blocks}, head))
    log_probabilities = logits.log_softmax(dim=-1)
    squares = {name: torch.zeros_like(values) for name, values in leaves.items()}
    for of_class in log_probabilities.unbind(dim=-1):
        gradients = torch.autograd.grad(of_class.sum(), list(leaves.values()), retain_graph=True)
        weight = of_class.detach().exp()
        for name, gradient in zip(squares, gradients, strict=True):
            squares[name] += weight.view(-1, *[1] * (gradient.ndim - 1)) * gradient.square()
    total: dict[str, Tensor] = {}
    for name, square in squares.items():
        by_adapter = square.new_zeros(adapters, *square.shape[1:])
        by_adapter.index_add_(0, rows.adapter, square)
        if name.startswith("blocks."):  # (adapters, blocks, 4, rank, width)
            for index, value in enumerate(by_adapter.unbind(dim=1)):
                total[f"blocks.{index}.{name.removeprefix('blocks.')}"] = value.transpose(0, 1)
        else:
            total[name] = by_adapter
    return total


def set_posterior(
    network: AdaptedVisionTransformer, diagonal: Mapping[str, Tensor], prior_precision: float
) -> None:
    """Sets the scales of the network's weights to those of the posterior."""
    with torch.no_grad():
        for name, value in diagonal.items():
            variance = 1 / (value + prior_precision)
            network.get_parameter(f"{name}_root").copy_(variance.sqrt().sqrt())


def _zeros(values: Tensor) -> Tensor:
    return torch.zeros_like(values, requires_grad=True)


@dataclass(frozen=True)
class Recorded:
    """The inputs of A and B of a projection, and their outputs, all (rows, tokens, ...).

    The directions of all adapters are stacked.
    """

    inputs: Tensor
    directions: Tensor
    weighted: Tensor
    adapted: Tensor


@dataclass(frozen=True)
class RecordingBlock(ProjectedBlock):
    """`adapted_block` that keeps inputs and outputs of A and B in `records`."""

    records: list[Recorded] = field(default_factory=list)

    def projection(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        down: Tensor,
        up: Tensor,
        coefficients: Tensor,
    ) -> Tensor:
        directions = F.linear(inputs, down)
        weighted = directions * coefficients.unsqueeze(1)
        adapted = F.linear(weighted, up.T)
        self.records.append(Recorded(inputs, directions, weighted, adapted))
        return F.linear(inputs, weight, bias) + adapted


@dataclass(frozen=True)
class Factors:
    """Kronecker factors of a matrix for every adapter: of its rows and of its columns.

    left: (..., rows, rows). right: (..., columns, columns); None for a vector.
    """

    left: Tensor
    right: Tensor | None


@dataclass(frozen=True)
class Law:
    """Eigenvectors and eigenvalues of the factors of a matrix.

    left, right: as in `Factors`. curvature: of each element in these bases, (..., rows, columns).
    """

    left: Tensor
    right: Tensor | None
    curvature: Tensor


def kronecker_factors(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, Factors]:
    """Returns the factors over the images by parameter name, of the heads and of sampled adapters.

    images: (n, 3, size, size).
    """
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for part in images.split(CURVATURE_BATCH):
        for name, (left, right) in _covariances(network, part):
            before = sums.get(name, (torch.zeros_like(left), torch.zeros_like(right)))
            sums[name] = before[0] + left, before[1] + right
    count = len(images)
    factors: dict[str, Factors] = {}
    for name, (left, right) in sums.items():
        # The factor of the inputs is a mean, that of the gradients a sum.
        if name.endswith(".up"):
            factors[name] = Factors(left / count, right)
        else:
            factors[name] = Factors(left, right / count)
    return factors | {"heads.bias": Factors(factors["heads.weight"].left, None)}


def laws(factors: Mapping[str, Factors], scale: float) -> dict[str, Law]:
    """Returns the eigenvectors and the curvature times `scale` of the factors, by name."""
    return {name: _law(of_name, scale) for name, of_name in factors.items()}


@torch.no_grad()
def set_kronecker_posterior(
    network: AdaptedVisionTransformer, laws: Mapping[str, Law], prior_precision: float
) -> None:
    """Sets bases and scales of the network's sampled weights to those of the posterior."""
    sampled = dict(network.adapter_parameters())
    for name, law in laws.items():
        if f"{name}_root" not in sampled:
            continue
        sampled[f"{name}_root"].copy_((law.curvature + prior_precision) ** -0.25)
        sampled[f"{name}_left"].copy_(law.left)
        if law.right is not None:
            sampled[f"{name}_right"].copy_(law.right)


def _law(factors: Factors, scale: float) -> Law:
    values, left = torch.linalg.eigh(factors.left.double())
    curvature = scale * values.clamp_min(0)
    if factors.right is None:
        return Law(left, None, curvature)
    values, right = torch.linalg.eigh(factors.right.double())
    return Law(left, right, curvature.unsqueeze(-1) * values.clamp_min(0).unsqueeze(-2))


def _covariances(
    network: AdaptedVisionTransformer, images: Tensor
) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Yields the name and both factors, summed over the images, of every matrix."""
    adapters, rank = network.settings.adapters, network.settings.rank
    block = RecordingBlock()
    features: list[Tensor] = []
    rows = Rows.of([1] * len(images), adapters).to(images.device)
    hook = network.heads.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    draws = network.method.det().repeated(len(images)).to(images)
    log_p = network(images, rows, draws, block=block).log_softmax(dim=-1)
    hook.remove()
    p = log_p.detach().exp()
    errors = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)  # (rows, classes, classes)
    own = [rows.adapter == adapter for adapter in range(adapters)]
    of_heads = torch.stack([errors[k].sum(dim=0) for k in own])
    yield "heads.weight", (of_heads, _moments(features[0].unsqueeze(1), own, mean=True))
    if not _samples_adapters(network):
        return
    outputs = [tensor for r in block.records for tensor in (r.directions, r.adapted)]
    gradients = [torch.zeros(()).to(images)] * len(outputs)
    for of_class in log_p.unbind(dim=-1):
        weight = of_class.detach().exp().sqrt().view(-1, 1, 1)
        by_output = torch.autograd.grad(of_class.sum(), outputs, retain_graph=True)
        gradients = [
            total + _moments(weight * gradient, own, mean=False)
            for total, gradient in zip(gradients, by_output, strict=True)
        ]
    for index in range(network.depth):
        numbers = range(len(PROJECTIONS) * index, len(PROJECTIONS) * (index + 1))
        down: list[Tensor] = []
        up: list[Tensor] = []
        for number in numbers:
            record = block.records[number]
            inner = _moments(record.weighted, own, mean=True)
            down += [_own_blocks(gradients[2 * number], rank), _moments(record.inputs, own, True)]
            up += [_own_blocks(inner, rank), gradients[2 * number + 1]]
        yield f"blocks.{index}.down", (torch.stack(down[::2]), torch.stack(down[1::2]))
        yield f"blocks.{index}.up", (torch.stack(up[::2]), torch.stack(up[1::2]))


def _samples_adapters(network: AdaptedVisionTransformer) -> bool:
    first = network.blocks[0]
    return isinstance(first, GaussianAdapters) and bool(first.sampled)


def _moments(vectors: Tensor, own: list[Tensor], mean: bool) -> Tensor:
    """Returns (adapters, size, size): sums of outer products of the vectors (rows, tokens, size).

    own: (rows,) for each adapter, its rows. mean: over tokens instead of their sum.
    """
    parts = [vectors.detach()[k].flatten(0, 1) for k in own]
    tokens = vectors.shape[1] if mean else 1
    return torch.stack([part.T @ part for part in parts]) / tokens


def _own_blocks(moments: Tensor, rank: int) -> Tensor:
    """Returns (adapters, rank, rank), the part of each adapter's directions among all of them.

    moments: (adapters, adapters * rank, adapters * rank).
    """
    return torch.stack(
        [
            moment[rank * index : rank * (index + 1), rank * index : rank * (index + 1)]
            for index, moment in enumerate(moments)
        ]
    )
