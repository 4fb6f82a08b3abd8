"""Laplace against laplace-torch and closed forms: diagonal curvature and Kronecker factors."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from laplace.curvature import CurvlinopsGGN
from laplace.utils import Kron
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.method import AttentionAdapters, BlockAdapters, BlockRows
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Draw
from eulerlora_lab.methods.gaussian import GaussianHeads
from eulerlora_lab.methods.posteriors import (
    PRIOR_PRECISIONS,
    Factors,
    LaplaceSettings,
    gauss_newton_diagonal,
    kronecker_factors,
    laws,
    predicted_probabilities,
    set_kronecker_posterior,
    set_posterior,
)
from lab.tests.methods.conftest import GivenRun, network_like, plain_lora
from tests.conftest import random_network

ONE = AdapterSettings(adapters=1, rank=3, min_rank=3)
KRON = LaplaceSettings(layers="all", structure="kron", prior_precision=2.0, images=11)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(11, 3, 32, 32, generator=Generator().manual_seed(0))


def settings_of(layers: Literal["last", "adapters", "all"]) -> LaplaceSettings:
    return LaplaceSettings(layers=layers, prior_precision=1.0, images=11)


class DetLogits(nn.Module):
    """A network of one adapter in mode det as an ordinary classifier; all is trainable but the
    backbone.
    """

    def __init__(self, network: AdaptedVisionTransformer) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        rows = Rows.of([1] * len(images), 1)
        return self.network(images, rows, self.network.draw_rows([Draw()] * len(images)))


def fitted(
    settings: LaplaceSettings, count: int, images: Tensor, labels: Tensor | None = None
) -> AdaptedVisionTransformer:
    """The posterior of images that stand for `count`; `labels` are theirs, held out."""
    network = network_like(random_network(), settings)
    unused = torch.zeros(len(images), dtype=torch.long)
    held_out = unused if labels is None else labels
    run = GivenRun({"train": (images, unused), "calibration": (images, held_out)}, count)
    network.method.after_training(network, run)
    return network


def test_the_curvature_of_all_weights_is_that_of_laplace_torch(images: Tensor) -> None:
    source = random_network(ONE)
    actual = gauss_newton_diagonal(network_like(source, settings_of("all")), images)
    curvature = CurvlinopsGGN(DetLogits(source), likelihood="classification")
    _, expected = curvature.diag(images, torch.zeros(len(images), dtype=torch.long))
    names = [name for name, _ in source.adapter_parameters()]
    assert sorted(actual) == sorted(names)
    flat = torch.cat([actual[name].flatten() for name in names])
    torch.testing.assert_close(flat, expected, rtol=1e-3, atol=1e-4 * expected.max().item())


def all_diagonals(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, Tensor]:
    return gauss_newton_diagonal(network_like(network, settings_of("all")), images)


def all_factors(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, Tensor]:
    factors = kronecker_factors(network_like(network, KRON), images)
    parts = {f"{name}.left": of_name.left for name, of_name in factors.items()}
    return parts | {f"{n}.right": f.right for n, f in factors.items() if f.right is not None}


@pytest.mark.parametrize("curvature", [all_diagonals, all_factors])
def test_each_adapter_has_the_curvature_of_its_own_answers(
    images: Tensor, curvature: Callable[[AdaptedVisionTransformer, Tensor], dict[str, Tensor]]
) -> None:
    both = random_network()
    actual = curvature(both, images)
    for adapter in (0, 1):
        expected = curvature(plain_lora(both, adapter), images)
        for name, value in actual.items():
            axis = 0 if name.startswith("heads") else 1
            own, other = value.select(axis, adapter), expected[name].select(axis, 0)
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


def test_the_posterior_variance_is_the_inverse_of_curvature_plus_prior_precision() -> None:
    network = network_like(random_network(), settings_of("last"))
    diagonal = {
        "heads.weight": torch.rand(2, 3, 16, generator=Generator().manual_seed(0)),
        "heads.bias": torch.ones(2, 3),
    }
    set_posterior(network, diagonal, 4.0)
    for name, value in diagonal.items():
        variance = network.get_parameter(f"{name}_root").square().square()
        torch.testing.assert_close(variance * (value + 4), torch.ones_like(value))


def test_a_subset_of_images_stands_for_all_training_images(images: Tensor) -> None:
    source, settings = random_network(), settings_of("last")
    network = fitted(settings, 110, images)
    diagonal = gauss_newton_diagonal(network_like(source, settings), images)
    variance = network.heads.bias_root.square().square()
    torch.testing.assert_close(1 / variance, 10 * diagonal["heads.bias"] + 1, rtol=1e-3, atol=1e-4)


def test_the_search_takes_the_prior_precision_with_the_lowest_loss(images: Tensor) -> None:
    source = random_network()
    labels = predicted_probabilities(source, images, samples=None).argmin(dim=-1)  # noise helps
    settings = settings_of("adapters")
    searched = settings.model_copy(update={"prior_precision": None})
    network = fitted(searched, 11, images, labels)
    found = network.method.settings
    losses = []
    for precision in PRIOR_PRECISIONS:
        fixed = settings.model_copy(update={"prior_precision": precision})
        other = fitted(fixed, 11, images)
        own = predicted_probabilities(other, images)[torch.arange(11), labels]
        losses.append(-own.log().mean().item())
    assert found.prior_precision == PRIOR_PRECISIONS[losses.index(min(losses))]
    assert found.prior_precision < PRIOR_PRECISIONS[-1]
    own = predicted_probabilities(network, images)[torch.arange(11), labels]
    assert -own.log().mean().item() == pytest.approx(min(losses))


class LinearAdapters(BlockAdapters):
    """The adapters of a network of one adapter as ordinary linear layers A and B."""

    def __init__(self, adapters: AttentionAdapters) -> None:
        super().__init__()
        rank, width = adapters.down.shape[-2:]
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(rank, width, bias=False) for _ in range(4))
        with torch.no_grad():
            for index in range(4):
                self.down[index].weight.copy_(adapters.down[index, 0])
                self.up[index].weight.copy_(adapters.up[index, 0].T)

    def initialise(self, generator: Generator) -> None:
        raise NotImplementedError

    def attention(self, inputs: Tensor, frozen: nn.MultiheadAttention, rows: BlockRows) -> Tensor:
        inputs = rows.of_rows(inputs)
        weights = [*frozen.in_proj_weight.chunk(3), frozen.out_proj.weight]
        biases = [*frozen.in_proj_bias.chunk(3), frozen.out_proj.bias]

        def project(tokens: Tensor, index: int) -> Tensor:
            adapted = self.up[index](self.down[index](tokens))
            return F.linear(tokens, weights[index], biases[index]) + adapted

        tokens = (inputs[:, : rows.queries], inputs, inputs)
        heads = [
            project(part, index).unflatten(-1, (frozen.num_heads, -1)).transpose(1, 2)
            for index, part in enumerate(tokens)
        ]
        context = F.scaled_dot_product_attention(*heads)
        return project(context.transpose(1, 2).flatten(2), 3)


class Classifier(nn.Module):
    """A network of one adapter in mode det, with a linear layer as head."""

    def __init__(self, network: AdaptedVisionTransformer) -> None:
        super().__init__()
        self.network = network
        self.head = nn.Linear(16, 3)
        self.head.load_state_dict({n: p[0] for n, p in network.heads.state_dict().items()})
        network.heads.requires_grad_(False)
        network.blocks = nn.ModuleList(LinearAdapters(block) for block in network.blocks)

    def forward(self, images: Tensor) -> Tensor:
        features: list[Tensor] = []
        hook = self.network.heads.register_forward_pre_hook(lambda _, i: features.append(i[0]))
        rows = Rows.of([1] * len(images), 1)
        self.network(images, rows, self.network.draw_rows([Draw()] * len(images)))
        hook.remove()
        return self.head(features[0])


def test_the_factors_of_all_matrices_are_those_of_laplace_torch(images: Tensor) -> None:
    actual = kronecker_factors(network_like(random_network(ONE), KRON), images)
    model = Classifier(random_network(ONE))
    backend = CurvlinopsGGN(model, likelihood="classification")
    _, kron = backend.kron(images, torch.zeros(11, dtype=torch.long), N=11)
    layers = [
        (part, block, index) for block in range(2) for part in ("down", "up") for index in range(4)
    ]  # in the order of the modules
    assert len(kron.kfacs) == len(layers) + 2
    for (part, block, index), (gradients, inputs) in zip(layers, kron.kfacs, strict=False):
        factors = actual[f"blocks.{block}.{part}"]
        own = factors.left[index, 0], factors.right[index, 0]
        of_rows, of_columns = own if part == "down" else reversed(own)
        torch.testing.assert_close(of_rows, gradients, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(of_columns, inputs, rtol=1e-3, atol=1e-6)
    (weight, features), (bias,) = kron.kfacs[-2:]
    torch.testing.assert_close(actual["heads.weight"].left[0], weight, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(actual["heads.weight"].right[0], features, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(actual["heads.bias"].left[0], bias, rtol=1e-3, atol=1e-5)


def positive(size: int, seed: int) -> Tensor:
    root = torch.randn(2, size, size, generator=Generator().manual_seed(seed))
    return root @ root.mT


@torch.no_grad()
def test_drawn_weights_have_the_covariance_of_laplace_torch() -> None:
    classes, width, scale, precision = 3, 4, 7.0, 0.5
    factors = Factors(positive(classes, 1), positive(width, 2))
    bias = Factors(factors.left, None)
    heads = GaussianHeads(width, classes, adapters=2, rotated=True)
    holder = _Holder(heads)
    decomposed = laws({"heads.weight": factors, "heads.bias": bias}, scale)
    set_kronecker_posterior(holder, decomposed, precision)
    count = classes * width
    for adapter in (0, 1):
        exact = Kron([[factors.left[adapter], factors.right[adapter]]]) * scale
        expected = (exact.decompose() + torch.tensor([precision])).to_matrix(exponent=-1)
        noise = torch.eye(count).unflatten(1, (classes, width)).repeat_interleave(width, dim=0)
        features = torch.eye(width).repeat(count, 1)
        rows = torch.full((len(features),), adapter)
        draws = {"weight": noise, "bias": torch.zeros(len(features), classes)}
        drawn = heads(features, rows, draws).unflatten(0, (count, width))  # of each unit of noise
        weights = drawn.mT.flatten(1)
        torch.testing.assert_close(weights.T @ weights, expected, rtol=1e-4, atol=1e-5)
        draws = {"weight": torch.zeros(classes, classes, width), "bias": torch.eye(classes)}
        drawn = heads(torch.zeros(classes, width), rows[:classes], draws)
        of_bias = torch.linalg.inv(scale * factors.left[adapter] + precision * torch.eye(classes))
        torch.testing.assert_close(drawn.T @ drawn, of_bias, rtol=1e-4, atol=1e-5)


class _Holder(nn.Module):
    """Heads with the parameter names of a network."""

    def __init__(self, heads: GaussianHeads) -> None:
        super().__init__()
        self.heads = heads

    def adapter_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.named_parameters())


def test_the_factors_of_a_subset_stand_for_those_of_all_training_images(images: Tensor) -> None:
    settings = KRON.model_copy(update={"layers": "last"})
    network = fitted(settings, 55, images)
    assert network.method.settings == settings
    factors = kronecker_factors(network_like(random_network(), settings), images)["heads.bias"]
    covariance = torch.linalg.inv(5 * factors.left + 2 * torch.eye(3))
    left, root = network.heads.bias_left, network.heads.bias_root
    actual = left @ torch.diag_embed(root**4) @ left.mT
    torch.testing.assert_close(actual, covariance, rtol=1e-3, atol=1e-4)
    assert not hasattr(network.blocks[0], "down_root")
