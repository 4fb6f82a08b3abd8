from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.arithmetic import Arithmetic, every_token, needed
from benchmarks.naive import naive_logits, ordinary_members
from benchmarks.ours import random_network
from benchmarks.sizes import SMALL_NETWORK, NetworkSizes
from eulerlora.backbone import settings_of
from eulerlora.rows import Rows
from eulerlora.settings import BackboneSettings

SHAPE = SMALL_NETWORK.backbone


def counted(work) -> int:
    with FlopCounterMode(display=False) as counter, sdpa_kernel([SDPBackend.MATH]):
        work()
    return counter.get_total_flops()


def test_ordinary_members_do_the_arithmetic_of_every_token_of_every_trajectory(question) -> None:
    members, images, own = ordinary_members(question.network), question.images, question.own
    rows = len(question.rows)
    shape = settings_of(question.network.backbone)
    expected = every_token(shape, rows, rows, question.network.settings.rank, 3)
    assert counted(lambda: naive_logits(members, images, own)) == expected.total


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_our_network_does_at_most_the_arithmetic_of_every_token_and_at_least_what_is_needed(
    layers: int,
) -> None:
    sizes = SMALL_NETWORK.model_copy(
        update={"backbone": SHAPE.model_copy(update={"layers": layers})}
    )
    found = counted(lambda: forward(sizes, images=2))
    rows = 2 * sizes.trajectories
    adapters, classes = sizes.adapters, sizes.classes
    most = every_token(
        sizes.backbone, 2, rows, adapters.adapters * adapters.rank, adapters.adapters * classes
    )
    least = needed(sizes.backbone, 2, rows, adapters.rank, classes)
    assert least.total < found <= most.total


def test_what_the_network_does_beyond_the_need_is_the_documented_savings(question) -> None:
    """One adapter, so that nothing is stacked, and one row an image, so that nothing is shared:
    the rest is what the last block computes of tokens that nobody reads.
    """
    sizes = SMALL_NETWORK.model_copy(
        update={
            "adapters": SMALL_NETWORK.adapters.model_copy(update={"adapters": 1}),
            "samples": 1,
        }
    )
    unread = last_block_of_unread_tokens(SHAPE, rows=2, rank=sizes.adapters.rank)
    least = needed(SHAPE, 2, 2, sizes.adapters.rank, sizes.classes).total
    assert counted(lambda: forward(sizes, images=2)) in (least, least + unread)


def test_the_first_block_is_spared_the_frozen_products_of_repeated_inputs() -> None:
    each = needed(SHAPE, images=6, rows=6, rank=4, classes=3)
    shared = needed(SHAPE, images=2, rows=6, rank=4, classes=3)
    inputs = torch.zeros(4, SHAPE.tokens, SHAPE.width)
    repeated = counted(lambda: F.linear(inputs, torch.zeros(3 * SHAPE.width, SHAPE.width)))
    pixels = torch.zeros(4, 3, SHAPE.image_size, SHAPE.image_size)
    kernel = torch.zeros(SHAPE.width, 3, SHAPE.patch_size, SHAPE.patch_size)
    embedded = counted(lambda: F.conv2d(pixels, kernel, stride=SHAPE.patch_size))
    assert replace(each, patches=0, frozen_projections=0) == replace(
        shared, patches=0, frozen_projections=0
    )
    assert each.frozen_projections - shared.frozen_projections == repeated
    assert each.patches - shared.patches == embedded


def test_vit_b_32_takes_about_nine_giga_flops_an_image() -> None:
    """4.41 G multiply-adds, as torchvision publishes for these weights, head excluded."""
    plain = every_token(BackboneSettings(), images=1, rows=1, ranks=0, classes=1000)
    assert plain.total == pytest.approx(2 * 4.41e9, rel=0.01)
    assert sum((plain, Arithmetic(mlp=5)), Arithmetic()).mlp == plain.mlp + 5


def forward(sizes: NetworkSizes, images: int) -> Tensor:
    network = random_network(sizes)
    rows = Rows.of([sizes.samples] * images, sizes.adapters.adapters)
    ranks = sizes.adapters.adapters * sizes.adapters.rank
    coefficients = torch.ones(len(rows), sizes.backbone.layers, 4, ranks)
    size = sizes.backbone.image_size
    with torch.inference_mode():
        return network(torch.zeros(images, 3, size, size), rows, coefficients)


def last_block_of_unread_tokens(shape: BackboneSettings, rows: int, rank: int) -> int:
    """Q, O, their updates, the queries' attention and the MLP of all but the class token."""
    unread = torch.zeros(rows, shape.tokens - 1, shape.width)
    every = torch.zeros(rows, shape.tokens, shape.width)
    down, weight = torch.zeros(rank, shape.width), torch.zeros(shape.width, shape.width)
    wide = torch.zeros(shape.mlp_width, shape.width)

    def work() -> None:
        for _ in ("query", "output"):
            F.linear(unread, weight)
            F.linear(unread, down) @ down
        heads = [each.unflatten(-1, (shape.heads, -1)).transpose(1, 2) for each in (unread, every)]
        F.scaled_dot_product_attention(heads[0], heads[1], heads[1])
        F.linear(unread, wide) @ wide

    return counted(work)
