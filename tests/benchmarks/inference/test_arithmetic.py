"""Counts of operations agree with those of torch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.baselines.naive import naive_logits, ordinary_members
from benchmarks.inference.arithmetic import Arithmetic, all_tokens, minimum
from benchmarks.measurement.sizes import SMALL_NETWORK, NetworkSizes
from benchmarks.measurement.workload import random_network
from eulerlora.nn.rows import RowDraws, Rows
from eulerlora.settings import BackboneSettings

SHAPE = SMALL_NETWORK.backbone


def counted(work) -> int:
    """Returns the operations of a call."""
    in_place = {torch.ops.aten.addmm_: addmm_operations}  # unknown to torch's counter
    counter = FlopCounterMode(display=False, custom_mapping=in_place)
    with counter, sdpa_kernel([SDPBackend.MATH]):
        work()
    return counter.get_total_flops()


def addmm_operations(
    _: tuple[int, int], left: tuple[int, int], right: tuple[int, int], **__: object
) -> int:
    """Returns the operations of a matrix product; arguments are shapes."""
    return 2 * left[0] * left[1] * right[1]


def test_ordinary_modules_compute_all_tokens_of_all_trajectories(workload) -> None:
    members = ordinary_members(workload.network)
    images, unstacked = workload.images, workload.unstacked
    rows = len(workload.rows)
    shape = workload.network.backbone.settings
    expected = all_tokens(shape, rows, rows, workload.network.settings.rank, 3)
    assert counted(lambda: naive_logits(members, images, unstacked)) == expected.total


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_our_network_is_between_the_minimum_and_all_tokens(
    layers: int,
) -> None:
    sizes = SMALL_NETWORK.model_copy(
        update={"backbone": SHAPE.model_copy(update={"layers": layers})}
    )
    actual = counted(lambda: forward(sizes, images=2))
    rows = 2 * sizes.trajectories
    adapters, classes = sizes.adapters, sizes.classes
    upper = all_tokens(
        sizes.backbone, 2, rows, adapters.adapters * adapters.rank, adapters.adapters * classes
    )
    lower = minimum(sizes.backbone, 2, rows, adapters.rank, classes)
    assert lower.total < actual <= upper.total


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pre_norm": True, "activation": "quick-gelu"},
        {"layer_scale": True, "registers": 3},
        {"activation": "swiglu"},
        {"pooling": "mean", "final_norm": "pooled"},
    ],
    ids=str,
)
def test_our_network_with_one_adapter_is_at_the_minimum(options: dict[str, object]) -> None:
    adapters = SMALL_NETWORK.adapters.model_copy(update={"adapters": 1})
    shape = SHAPE.model_copy(update=options)
    sizes = SMALL_NETWORK.model_copy(update={"adapters": adapters, "backbone": shape})
    lower = minimum(shape, 2, 2 * sizes.trajectories, adapters.rank, sizes.classes)
    assert counted(lambda: forward(sizes, images=2)) == lower.total


def test_rows_of_an_image_share_the_products_of_the_first_block() -> None:
    separate = minimum(SHAPE, images=6, rows=6, rank=4, classes=3)
    shared = minimum(SHAPE, images=2, rows=6, rank=4, classes=3)
    inputs = torch.zeros(4, SHAPE.tokens, SHAPE.width)
    repeated = counted(lambda: F.linear(inputs, torch.zeros(3 * SHAPE.width, SHAPE.width)))
    pixels = torch.zeros(4, 3, SHAPE.image_size, SHAPE.image_size)
    kernel = torch.zeros(SHAPE.width, 3, SHAPE.patch_size, SHAPE.patch_size)
    embedded = counted(lambda: F.conv2d(pixels, kernel, stride=SHAPE.patch_size))
    directions = counted(lambda: F.linear(inputs, torch.zeros(3 * 4, SHAPE.width)))
    assert replace(separate, patches=0, frozen_projections=0, low_rank=0) == replace(
        shared, patches=0, frozen_projections=0, low_rank=0
    )
    assert separate.frozen_projections - shared.frozen_projections == repeated
    assert separate.low_rank - shared.low_rank == directions
    assert separate.patches - shared.patches == embedded


def test_vit_b_32_agrees_with_the_count_of_torchvision() -> None:
    """torchvision states 4.41 G multiply-adds for these weights."""
    plain = all_tokens(BackboneSettings(), images=1, rows=1, ranks=0, classes=1000)
    assert plain.total == pytest.approx(2 * 4.41e9, rel=0.01)
    assert sum((plain, Arithmetic(mlp=5)), Arithmetic()).mlp == plain.mlp + 5


def forward(sizes: NetworkSizes, images: int) -> Tensor:
    """Returns the logits of a random network."""
    network = random_network(sizes)
    rows = Rows.of([sizes.samples] * images, sizes.adapters.adapters)
    ranks = sizes.adapters.adapters * sizes.adapters.rank
    coefficients = torch.ones(len(rows), sizes.backbone.layers, 4, ranks)
    size = sizes.backbone.image_size
    logits: Tensor = network(
        torch.zeros(images, 3, size, size), rows, RowDraws.of_coefficients(coefficients)
    )
    return logits
