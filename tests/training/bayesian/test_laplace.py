"""training.bayesian.laplace against laplace-torch and a closed form."""

from typing import Literal

import pytest
import torch
from laplace.curvature import CurvlinopsGGN
from torch import Generator, Tensor, nn

from eulerlora.methods.registry import build_network
from eulerlora.methods.settings import LaplaceSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.settings import AdapterSettings, Draw
from tests.conftest import random_network
from training.bayesian.laplace import (
    PRECISIONS,
    fit_laplace,
    gauss_newton_diagonal,
    set_posterior,
)
from training.bayesian.source import Inputs, mean_probabilities, with_method

ONE = AdapterSettings(adapters=1, rank=3, min_rank=3)


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


def test_the_curvature_of_all_weights_is_that_of_laplace_torch(images: Tensor) -> None:
    source = random_network(ONE)
    actual = gauss_newton_diagonal(with_method(source, settings_of("all")), images)
    curvature = CurvlinopsGGN(DetLogits(source), likelihood="classification")
    _, expected = curvature.diag(images, torch.zeros(len(images), dtype=torch.long))
    names = [name for name, _ in source.adapter_parameters()]
    assert sorted(actual) == sorted(names)
    flat = torch.cat([actual[name].flatten() for name in names])
    torch.testing.assert_close(flat, expected, rtol=1e-3, atol=1e-4 * expected.max().item())


@torch.no_grad()
def test_the_curvature_of_the_heads_is_the_closed_form_of_each_adapter(images: Tensor) -> None:
    """Of weight (c, d): the sum of p_c (1 - p_c) x_d^2; of the bias: that of p_c (1 - p_c)."""
    source = random_network()
    with torch.enable_grad():
        actual = gauss_newton_diagonal(with_method(source, settings_of("last")), images)
    seen: list[Tensor] = []
    hook = source.heads.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    rows = Rows.of([1] * len(images), 2)
    logits = source(images, rows, source.draw_rows([Draw()] * len(images)))
    hook.remove()
    p = logits.softmax(dim=-1)
    for adapter in (0, 1):
        own = rows.adapter == adapter
        variance, features = (p * (1 - p))[own], seen[0][own]
        weight = torch.einsum("nc,nd->cd", variance, features**2)
        torch.testing.assert_close(actual["heads.weight"][adapter], weight)
        torch.testing.assert_close(actual["heads.bias"][adapter], variance.sum(dim=0))
    assert set(actual) == {"heads.weight", "heads.bias"}


@torch.no_grad()
def test_each_adapter_has_the_curvature_of_its_own_answers(images: Tensor) -> None:
    both, settings = random_network(), settings_of("all")
    with torch.enable_grad():
        actual = gauss_newton_diagonal(with_method(both, settings), images)
    one = AdapterSettings(adapters=1, rank=4, min_rank=4)
    for adapter in (0, 1):
        single = build_network(both.backbone, one, 3)
        for name, parameter in single.adapter_parameters():
            axis = 0 if name.startswith("heads") else 1
            parameter.copy_(both.get_parameter(name).select(axis, adapter).unsqueeze(axis))
        with torch.enable_grad():
            expected = gauss_newton_diagonal(with_method(single, settings), images)
        for name, value in actual.items():
            axis = 0 if name.startswith("heads") else 1
            own, other = value.select(axis, adapter), expected[name].select(axis, 0)
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


def test_the_posterior_variance_is_the_inverse_of_curvature_plus_prior_precision() -> None:
    network = with_method(random_network(), settings_of("last"))
    diagonal = {
        "heads.weight": torch.rand(2, 3, 16, generator=Generator().manual_seed(0)),
        "heads.bias": torch.ones(2, 3),
    }
    set_posterior(network, diagonal, 4.0)
    for name, value in diagonal.items():
        variance = network.get_parameter(f"{name}_root").square().square()
        torch.testing.assert_close(variance * (value + 4), torch.ones_like(value))


def test_a_subset_of_images_stands_for_all_training_images(images: Tensor) -> None:
    held_out = Inputs(images, torch.zeros(len(images), dtype=torch.long))
    source, settings = random_network(), settings_of("last")
    network, _ = fit_laplace(source, images, 110, held_out, settings, search=False)
    diagonal = gauss_newton_diagonal(with_method(source, settings), images)
    variance = network.heads.bias_root.square().square()
    torch.testing.assert_close(1 / variance, 10 * diagonal["heads.bias"] + 1, rtol=1e-3, atol=1e-4)


def test_the_search_takes_the_prior_precision_with_the_lowest_loss(images: Tensor) -> None:
    source = random_network()
    labels = mean_probabilities(source, images, samples=None).argmin(dim=-1)  # noise helps
    held_out, settings = Inputs(images, labels), settings_of("adapters")
    network, found = fit_laplace(source, images, 11, held_out, settings, search=True)
    losses = []
    for precision in PRECISIONS:
        fixed = settings.model_copy(update={"prior_precision": precision})
        other, _ = fit_laplace(source, images, 11, held_out, fixed, search=False)
        own = mean_probabilities(other, images)[torch.arange(11), labels]
        losses.append(-own.log().mean().item())
    assert found.prior_precision == PRECISIONS[losses.index(min(losses))]
    assert found.prior_precision < PRECISIONS[-1]
    own = mean_probabilities(network, images)[torch.arange(11), labels]
    assert -own.log().mean().item() == pytest.approx(min(losses))
