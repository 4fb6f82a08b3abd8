from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.baselines.engine import random_network
from benchmarks.baselines.naive import naive_logits, ordinary_members
from benchmarks.inference.arithmetic import Arithmetic, every_token, needed
from benchmarks.measurement.sizes import SMALL_NETWORK, NetworkSizes
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


def test_with_one_adapter_the_network_does_what_is_needed_and_no_more() -> None:
    """Nothing is stacked then: a row has no directions but its own."""
    adapters = SMALL_NETWORK.adapters.model_copy(update={"adapters": 1})
    sizes = SMALL_NETWORK.model_copy(update={"adapters": adapters})
    least = needed(SHAPE, 2, 2 * sizes.trajectories, adapters.rank, sizes.classes)
    assert counted(lambda: forward(sizes, images=2)) == least.total


def test_the_first_block_is_spared_the_frozen_products_of_repeated_inputs() -> None:
    each = needed(SHAPE, images=6, rows=6, rank=4, classes=3)
    shared = needed(SHAPE, images=2, rows=6, rank=4, classes=3)
    inputs = torch.zeros(4, SHAPE.tokens, SHAPE.width)
    repeated = counted(lambda: F.linear(inputs, torch.zeros(3 * SHAPE.width, SHAPE.width)))
    pixels = torch.zeros(4, 3, SHAPE.image_size, SHAPE.image_size)
    kernel = torch.zeros(SHAPE.width, 3, SHAPE.patch_size, SHAPE.patch_size)
    embedded = counted(lambda: F.conv2d(pixels, kernel, stride=SHAPE.patch_size))
    directions = counted(lambda: F.linear(inputs, torch.zeros(3 * 4, SHAPE.width)))
    assert replace(each, patches=0, frozen_projections=0, low_rank=0) == replace(
        shared, patches=0, frozen_projections=0, low_rank=0
    )
    assert each.frozen_projections - shared.frozen_projections == repeated
    assert each.low_rank - shared.low_rank == directions
    assert each.patches - shared.patches == embedded


def test_vit_b_32_takes_about_nine_giga_flops_an_image() -> None:
    """4.41 G multiply-adds, as torchvision publishes for these weights, head excluded."""
    plain = every_token(BackboneSettings(), images=1, rows=1, ranks=0, classes=1000)
    assert plain.total == pytest.approx(2 * 4.41e9, rel=0.01)
    assert sum((plain, Arithmetic(mlp=5)), Arithmetic()).mlp == plain.mlp + 5


def forward(sizes: NetworkSizes, images: int) -> Tensor:
    """Logits with a graph: without one the low-rank updates are added in place, uncounted."""
    network = random_network(sizes)
    rows = Rows.of([sizes.samples] * images, sizes.adapters.adapters)
    ranks = sizes.adapters.adapters * sizes.adapters.rank
    coefficients = torch.ones(len(rows), sizes.backbone.layers, 4, ranks)
    size = sizes.backbone.image_size
    logits: Tensor = network(torch.zeros(images, 3, size, size), rows, coefficients)
    return logits
