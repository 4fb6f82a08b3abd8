"""Laplace approximation of adapters and heads.

Daxberger et al., "Laplace Redux", NeurIPS 2021; for adapters Yang et al., "Bayesian Low-rank
Adaptation for Large Language Models", ICLR 2024.

The posterior of each element is normal with variance 1 / (n h + prior precision), where n h is the
diagonal of the generalised Gauss-Newton matrix of the cross-entropy over the training images. With
Kronecker factors, the same holds for the elements of each matrix in the bases of its factors. Each
adapter has its own posterior, from its own answers.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from eulerlora.methods.settings import LaplaceSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import RowDraws, Rows
from eulerlora.settings import Draw
from training.bayesian.kronecker import kronecker_factors, laws, set_kronecker_posterior
from training.bayesian.source import Inputs, mean_probabilities, with_method

BATCH = 8
PRECISIONS = tuple(10.0**exponent for exponent in range(9))
"""Prior precisions that a search compares."""


def fit_laplace(
    source: AdaptedVisionTransformer,
    training: Tensor,
    image_count: int,
    held_out: Inputs,
    settings: LaplaceSettings,
    search: bool,
) -> tuple[AdaptedVisionTransformer, LaplaceSettings]:
    """Returns the network with its posterior, and its settings.

    training: (n, 3, size, size), images of the curvature, which stand for `image_count`.
    search: replaces the prior precision of `settings` by that of `PRECISIONS` whose mean
    probability has the lowest negative log-likelihood on `held_out`.
    """
    network = with_method(source, settings)
    set_precision = _posterior(network, training, image_count / len(training))

    def loss(precision: float) -> float:
        set_precision(precision)
        probabilities = mean_probabilities(network, held_out.pixels)
        own = probabilities[torch.arange(len(probabilities)), held_out.labels]
        return -own.clamp_min(torch.finfo(own.dtype).tiny).log().mean().item()

    precision = min(PRECISIONS, key=loss) if search else settings.prior_precision
    set_precision(precision)
    return network, settings.model_copy(update={"prior_precision": precision})


def _posterior(
    network: AdaptedVisionTransformer, training: Tensor, scale: float
) -> Callable[[float], None]:
    """Returns what sets the posterior of a prior precision. scale: of the curvature."""
    method = network.method.settings
    assert isinstance(method, LaplaceSettings)
    if method.structure == "kron":
        decomposed = laws(kronecker_factors(network, training), scale)
        return partial(set_kronecker_posterior, network, decomposed)
    diagonal = gauss_newton_diagonal(network, training)
    scaled = {name: value * scale for name, value in diagonal.items()}
    return partial(set_posterior, network, scaled)


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
    for part in images.split(BATCH):
        for name, value in _part_diagonal(network, part).items():
            total[name] = total[name] + value if name in total else value
    return total


def _part_diagonal(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, Tensor]:
    adapters = network.settings.adapters
    rows = Rows.of([1] * len(images), adapters).to(images.device)
    drawn = network.draw_rows([Draw(mode="stoch")] * len(images)).to(images)
    det = network.draw_rows([Draw()] * len(images)).to(images)
    blocks = {name: _zeros(drawn.blocks[name]) for name in drawn.blocks.keys() - det.blocks.keys()}
    head = {name: _zeros(values) for name, values in drawn.head.items()}
    leaves = {f"blocks.{name}": values for name, values in blocks.items()}
    leaves |= {f"heads.{name}": values for name, values in head.items()}
    logits = network(images, rows, RowDraws({**det.blocks, **blocks}, head))
    log_probabilities = logits.log_softmax(dim=-1)
    squares = {name: torch.zeros_like(values) for name, values in leaves.items()}
    for own in log_probabilities.unbind(dim=-1):
        gradients = torch.autograd.grad(own.sum(), list(leaves.values()), retain_graph=True)
        weight = own.detach().exp()
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
