"""eulerlora.nn.runtime: log-probabilities, and batches of images with different draws."""

import numpy as np
import pytest
import torch
from scipy import special
from torch import Generator, Tensor

from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.runtime import log_probabilities, predict_rows
from eulerlora.settings import Draw

DRAWS = (
    Draw(),
    Draw(mode="stoch", samples=3, seed=1),
    Draw(mode="stoch", samples=1, seed=1),
    Draw(mode="stoch", samples=4, seed=2),
    Draw(mode="stoch", samples=3, seed=2, sampler="balanced"),
    Draw(),
)


@pytest.fixture
def network(make_network) -> AdaptedVisionTransformer:
    return make_network()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(len(DRAWS), 3, 32, 32, generator=Generator().manual_seed(0))


def test_log_probabilities_are_scipys_log_softmax_in_float64() -> None:
    logits = 50 * torch.randn(6, 4, generator=Generator().manual_seed(0))
    actual = log_probabilities(logits)
    assert actual.dtype == torch.float64
    np.testing.assert_allclose(actual, special.log_softmax(logits.double(), axis=-1), rtol=1e-12)


def test_log_probabilities_stay_finite_where_the_probability_is_not_representable() -> None:
    actual = log_probabilities(torch.tensor([[0.0, 5000.0]]))
    assert actual.tolist() == [[-5000.0, 0.0]]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_a_logit_that_is_not_finite_is_all_nan_and_other_rows_are_not(
    broken: float,
) -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = broken
    actual = log_probabilities(logits)
    assert actual[1].isnan().all()
    assert actual[[0, 2]].isfinite().all()


def test_each_image_gets_the_trajectories_of_its_draw(
    network: AdaptedVisionTransformer, images: Tensor
) -> None:
    actual = predict_rows(network, images, DRAWS)
    assert [tuple(output.shape) for output in actual] == [(2 * draw.samples, 3) for draw in DRAWS]
    for output in actual:
        properties = (output.dtype, output.device.type, output.requires_grad)
        assert properties == (torch.float64, "cpu", False)
        torch.testing.assert_close(output.exp().sum(dim=-1), torch.ones(len(output)).double())


def test_the_result_depends_on_the_seed_and_not_on_the_global_generator(
    network: AdaptedVisionTransformer, images: Tensor
) -> None:
    first = images[:1].expand(3, -1, -1, -1)
    draws = [Draw(mode="stoch", samples=2, seed=seed) for seed in (5, 5, 6)]
    torch.manual_seed(1)
    once = predict_rows(network, first, draws)
    torch.manual_seed(2)
    again = predict_rows(network, first, draws)
    for one, other in zip(once, again, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(once[0], once[1])
    assert not torch.allclose(once[0], once[2])


def test_a_non_finite_image_does_not_change_other_images(
    network: AdaptedVisionTransformer, images: Tensor
) -> None:
    broken = images.clone()
    broken[1] = torch.nan
    actual, expected = predict_rows(network, broken, DRAWS), predict_rows(network, images, DRAWS)
    assert actual[1].isnan().all()
    for index in (0, 2, 3, 4):
        torch.testing.assert_close(actual[index], expected[index])
