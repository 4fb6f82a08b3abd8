"""The computed ceiling of a GPU."""

import pytest
import torch

from benchmarks.inference import row_rates
from benchmarks.inference.row_rates import CARDS, card_of, weight_bytes
from benchmarks.measurement.sizes import NetworkSizes

CUDA = torch.device("cuda")


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
    monkeypatch.setattr(row_rates.torch.cuda, "get_device_name", lambda _: name)
    assert card_of(CUDA) is (None if known is None else CARDS[known])
    assert card_of(torch.device("cpu")) is None
