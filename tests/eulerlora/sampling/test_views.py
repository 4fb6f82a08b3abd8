"""Views are the symmetries of the square; each trajectory sees one, in a balanced order."""

import numpy as np
import pytest
import torch
from torch import Tensor

from eulerlora.images.preprocess import network_input
from eulerlora.nn.network import AdaptedVisionTransformer, predict_images
from eulerlora.nn.rows import VIEW_REGIONS, of_views, view_order
from eulerlora.nn.runtime import predict_adaptively
from eulerlora.sampling.adaptive import StoppingRule
from eulerlora.settings import Draw, Preprocessing
from tests.conftest import MARGINS, predict_rows

SYMMETRIES = (
    lambda image: image,
    np.fliplr,
    np.flipud,
    lambda image: np.rot90(image, 2),
    np.transpose,
    lambda image: np.fliplr(image.T),
    lambda image: np.flipud(image.T),
    lambda image: np.rot90(image.T, 2),
)


def test_the_views_are_the_symmetries_of_the_square() -> None:
    image = torch.arange(9.0).view(3, 3)
    views = of_views(image.expand(8, 1, 3, 3), torch.arange(8))
    for view, symmetry in zip(views, SYMMETRIES, strict=True):
        assert np.array_equal(view[0].numpy(), symmetry(image.numpy()))


@pytest.mark.parametrize("views", [2, 4, 8])
@pytest.mark.parametrize("adapters", [1, 2, 3])
def test_every_adapter_sees_each_view_once_in_a_block(views: int, adapters: int) -> None:
    order = view_order(Draw(mode="stoch", samples=3 * views, seed=5, views=views), adapters)
    blocks = order.unflatten(1, (3, views)).sort(dim=-1).values
    assert torch.equal(blocks, torch.arange(views).expand(adapters, 3, views))


def test_two_adapters_share_the_views_between_them_in_an_order_of_the_seed() -> None:
    orders = [view_order(Draw(mode="stoch", samples=4, seed=s, views=8), 2) for s in range(20)]
    assert all(order.flatten().unique().numel() == 8 for order in orders)
    assert len({tuple(order.flatten().tolist()) for order in orders}) > 10


@pytest.mark.parametrize("sampler", ["independent", "balanced"])
def test_a_row_is_that_of_its_view_with_the_same_draw(
    network: AdaptedVisionTransformer, images: Tensor, sampler: str
) -> None:
    draw = Draw(mode="stoch", samples=5, seed=3, views=8, sampler=sampler)
    (output,) = predict_images(network, images[:1], [draw])
    assert torch.equal(output.views[0], view_order(draw, 2))
    plain = draw.model_copy(update={"views": 1})
    for row, view in enumerate(output.views.flatten().tolist()):
        (expected,) = predict_images(network, of_views(images[:1], torch.tensor([view])), [plain])
        torch.testing.assert_close(
            output.flat_log_probabilities[0, row],
            expected.flat_log_probabilities[0, row],
            rtol=0,
            atol=1e-6,
        )


def test_views_of_a_canvas_show_its_regions(network: AdaptedVisionTransformer) -> None:
    size = network.preprocessing.size
    preprocessing = Preprocessing(size=size, canvas=(2 * size, size + 10))
    pixels = torch.rand(3, 100, 140, generator=torch.Generator().manual_seed(0))
    regions = network_input(pixels, preprocessing)[None]
    assert regions.shape[1] == len(set(VIEW_REGIONS))
    draws = [Draw(mode="stoch", samples=4, seed=3, views=8), Draw(), Draw(views=8)]
    for draw, output in zip(
        draws, predict_images(network, regions.expand(3, *regions.shape[1:]), draws), strict=True
    ):
        plain = draw.model_copy(update={"views": 1})
        for row, view in enumerate(output.views.flatten().tolist()):
            seen = of_views(regions[:, VIEW_REGIONS[view]], torch.tensor([view]))
            (expected,) = predict_images(network, seen, [plain])
            adapter = row // draw.count
            of_row = row if draw.mode == "stoch" else adapter
            torch.testing.assert_close(
                output.flat_log_probabilities[0, row],
                expected.flat_log_probabilities[0, of_row],
                rtol=0,
                atol=1e-6,
            )


def test_det_answers_with_the_mean_over_all_views(
    network: AdaptedVisionTransformer, images: Tensor
) -> None:
    (actual,) = predict_rows(network, images[:1], [Draw(views=8)])
    turned = of_views(images[:1].expand(8, -1, -1, -1), torch.arange(8))
    plain = torch.stack(predict_rows(network, turned, [Draw()] * 8))  # (views, adapters, classes)
    assert not torch.allclose(plain[0], plain[1], atol=1e-3)
    torch.testing.assert_close(actual.exp().mean(dim=0), plain.exp().mean(dim=(0, 1)))


def test_views_depend_on_no_other_image_of_the_batch(
    network: AdaptedVisionTransformer, images: Tensor
) -> None:
    draws = [
        Draw(mode="stoch", samples=3, seed=1, views=8),
        Draw(),
        Draw(mode="stoch", samples=2, seed=1, views=4),
    ]
    together = predict_rows(network, images, draws)
    for index, draw in enumerate(draws):
        (alone,) = predict_rows(network, images[index : index + 1], [draw])
        torch.testing.assert_close(together[index], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sampler", ["independent", "balanced"])
def test_rounds_of_auto_run_the_samples_and_views_of_one_pass(
    network: AdaptedVisionTransformer, images: Tensor, sampler: str
) -> None:
    draw = Draw(mode="stoch", samples=4, seed=4, views=8, sampler=sampler)
    entries = tuple(entry.model_copy(update={"lead": 1e9}) for entry in MARGINS.rounds)
    rule = StoppingRule(margins=MARGINS.model_copy(update={"rounds": entries}))  # all 4 samples
    (rounds,) = predict_adaptively(network, images[:1], [draw], rule)
    (once,) = predict_images(network, images[:1], [draw])
    assert torch.equal(rounds.views, once.views)
    torch.testing.assert_close(rounds.log_probabilities, once.log_probabilities, rtol=0, atol=1e-6)
