"""The fitted normal laws of Laplace against those of laplace-torch."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from laplace.curvature import CurvlinopsGGN
from laplace.utils import Kron
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.method import AttentionAdapters, BlockAdapters, BlockRows, MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Draw
from lab.tests.methods.settings import settings_of
from tests.conftest import predict_rows, random_network

ONE = AdapterSettings(adapters=1, rank=3, min_rank=3)
UNUSED = torch.zeros(11, dtype=torch.long)
PRECISION = 0.01

Fit = Callable[..., AdaptedVisionTransformer]


@pytest.fixture
def images() -> Tensor:
    return torch.rand(11, 3, 32, 32, generator=Generator().manual_seed(0))


def laplace(layers: Literal["last", "adapters", "all"] = "all", **values: object) -> MethodSettings:
    chosen = {"prior_precision": PRECISION, "images": 11} | values
    return settings_of("laplace", layers=layers, **chosen)


@pytest.fixture
def fitted(
    images: Tensor,
    network_like: Callable[..., AdaptedVisionTransformer],
    after_training: Callable[..., MethodSettings],
) -> Fit:
    """Fits the posterior of images that stand for `count`; `labels` are those of held-out ones."""

    def fit(
        source: AdaptedVisionTransformer,
        settings: MethodSettings,
        count: int = 11,
        labels: Tensor = UNUSED,
    ) -> AdaptedVisionTransformer:
        network = network_like(source, settings)
        parts = {"train": (images, UNUSED), "calibration": (images, labels)}
        after_training(network, images=parts, image_count=count)
        return network

    return fit


def sampled_names(network: AdaptedVisionTransformer) -> list[str]:
    named = dict(network.adapter_parameters())
    return [name for name in named if f"{name}_root" in named]


def precisions(network: AdaptedVisionTransformer) -> dict[str, Tensor]:
    """The inverse of the variance of every element."""
    return {
        name: network.get_parameter(f"{name}_root").detach() ** -4
        for name in sampled_names(network)
    }


@torch.no_grad()
def covariances(network: AdaptedVisionTransformer) -> dict[str, Tensor]:
    """The covariance (..., n, n) of the elements of every matrix, of Kronecker factors."""
    by_name = {}
    named = dict(network.adapter_parameters())
    for name in sampled_names(network):
        variance = named[f"{name}_root"] ** 4
        bases = named[f"{name}_left"]
        right = named.get(f"{name}_right")
        if right is not None:
            products = torch.einsum("...ij,...kl->...ikjl", bases, right)
            bases = products.flatten(-4, -3).flatten(-2, -1)
            variance = variance.flatten(-2, -1)
        by_name[name] = bases @ torch.diag_embed(variance) @ bases.mT
    return by_name


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


@pytest.mark.parametrize("copies", [1, 10])
def test_variances_are_the_inverse_of_prior_precision_and_curvature_of_laplace_torch(
    images: Tensor, fitted: Fit, copies: int
) -> None:
    """The images stand for so many copies of them."""
    source = random_network(ONE)
    network = fitted(source, laplace(), 11 * copies)
    curvature = CurvlinopsGGN(DetLogits(source), likelihood="classification")
    _, expected = curvature.diag(images, UNUSED)
    actual = precisions(network)
    names = [name for name, _ in source.adapter_parameters()]
    assert sorted(actual) == sorted(names)
    flat = (torch.cat([actual[name].flatten() for name in names]) - PRECISION) / copies
    torch.testing.assert_close(flat, expected, rtol=1e-3, atol=1e-4 * expected.max().item())


def test_the_prior_precision_alone_is_that_of_elements_without_curvature(fitted: Fit) -> None:
    source = random_network(ONE)
    with torch.no_grad():
        for block in source.blocks:
            block.up.zero_()  # A has no effect then
    network = fitted(source, laplace(prior_precision=4.0))
    for name, precision in precisions(network).items():
        if name.endswith("down"):
            torch.testing.assert_close(precision, torch.full_like(precision, 4.0))


@pytest.mark.parametrize(("structure", "law"), [("diagonal", precisions), ("kron", covariances)])
def test_each_adapter_has_the_law_of_its_own_answers(
    fitted: Fit,
    plain_lora: Fit,
    structure: str,
    law: Callable[[AdaptedVisionTransformer], dict[str, Tensor]],
) -> None:
    both, settings = random_network(), laplace(structure=structure, prior_precision=0.5)
    actual = law(fitted(both, settings))
    for adapter in (0, 1):
        expected = law(fitted(plain_lora(both, adapter), settings))
        for name, value in actual.items():
            axis = 0 if name.startswith("heads") else 1
            own, other = value.select(axis, adapter), expected[name].select(axis, 0)
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("structure", ["diagonal", "kron"])
def test_layers_without_a_law_have_no_scales(fitted: Fit, structure: str) -> None:
    settings = laplace("last", structure=structure)
    network = fitted(random_network(), settings)
    assert network.method.settings == settings
    assert sampled_names(network) == ["heads.weight", "heads.bias"]


def losses_of(network: AdaptedVisionTransformer, images: Tensor, labels: Tensor) -> float:
    """The loss of the mean of four samples with the seed i for image i."""
    draws = [Draw(mode="stoch", samples=4, seed=seed) for seed in range(len(images))]
    answers = torch.stack(predict_rows(network, images, draws)).exp().mean(dim=1)
    return -answers[torch.arange(len(images)), labels].log().mean().item()


def test_the_search_takes_the_prior_precision_with_the_lowest_loss(
    images: Tensor, fitted: Fit
) -> None:
    source = random_network()
    det = torch.stack(predict_rows(source, images, [Draw()] * 11)).exp().mean(dim=1)
    labels = det.argmin(dim=-1)  # noise helps
    network = fitted(source, laplace("adapters", prior_precision=None), labels=labels)
    losses = {}
    for exponent in range(9):
        precision = 10.0**exponent
        other = fitted(source, laplace("adapters", prior_precision=precision))
        losses[precision] = losses_of(other, images, labels)
    best = min(losses, key=losses.__getitem__)
    assert network.method.settings.prior_precision == best
    assert best < 1e8
    assert losses_of(network, images, labels) == pytest.approx(losses[best])


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


@pytest.mark.parametrize("copies", [1, 5])
def test_covariances_of_all_matrices_are_those_of_the_factors_of_laplace_torch(
    images: Tensor, fitted: Fit, copies: int
) -> None:
    precision = 0.5
    settings = laplace(structure="kron", prior_precision=precision)
    actual = covariances(fitted(random_network(ONE), settings, 11 * copies))
    model = Classifier(random_network(ONE))
    backend = CurvlinopsGGN(model, likelihood="classification")
    _, kron = backend.kron(images, UNUSED, N=11)
    layers = [
        (part, block, index) for block in range(2) for part in ("down", "up") for index in range(4)
    ]  # in the order of the modules
    assert len(kron.kfacs) == len(layers) + 2
    for number, factors in enumerate(kron.kfacs):
        posterior = (Kron([factors]) * copies).decompose() + torch.tensor([precision])
        expected = posterior.to_matrix(exponent=-1)
        if number < len(layers):
            part, block, index = layers[number]
            own = actual[f"blocks.{block}.{part}"][index, 0]
            if part == "up":  # stored as B'
                rows = own.shape[-1] // 16
                own = own.unflatten(0, (rows, 16)).unflatten(2, (rows, 16))
                own = own.permute(1, 0, 3, 2).flatten(2, 3).flatten(0, 1)
        else:
            own = actual[("heads.weight", "heads.bias")[number - len(layers)]][0]
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-4)
