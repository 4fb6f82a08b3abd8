"""Counts of operations agree with those of torch, and give the ceilings of cards."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import compiled_engine
from benchmarks.compiled_engine import CARDS, card_of, minimum_flops, weight_bytes
from benchmarks.workload import SMALL_NETWORK, NetworkSizes, random_network
from eulerlora.nn.method import RowDraws
from eulerlora.nn.rows import Rows

CPU = torch.device("cpu")
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": 1},
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
    least = minimum_flops(shape, 2, 2 * sizes.trajectories, adapters.rank, sizes.classes)
    assert counted(lambda: forward(sizes, images=2)) == least


def test_one_row_is_bound_by_reading_the_weights_and_many_by_arithmetic() -> None:
    sizes, card = NetworkSizes(), CARDS["H200"]  # ViT-B/32
    assert card.seconds(sizes, 1, 1) == weight_bytes(sizes) / card.bandwidth
    assert card.seconds(sizes, 1, 1) == pytest.approx(35e-6, rel=0.02)
    assert 512 / card.seconds(sizes, 64, 512) == pytest.approx(123_000, rel=0.01)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"), ("NVIDIA L40", None), ("Tesla T4", None),
    ],
)  # fmt: skip
def test_a_card_is_known_by_a_word_of_its_name(
    name: str, known: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_engine.torch.cuda, "get_device_name", lambda _: name)
    assert card_of(torch.device("cuda")) is (None if known is None else CARDS[known])
    assert card_of(CPU) is None
