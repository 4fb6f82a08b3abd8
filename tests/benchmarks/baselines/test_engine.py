"""The engine gives the logits of its network."""

import pytest
import torch

from benchmarks.baselines.engine import build_engine, predict
from benchmarks.measurement.sizes import SMALL_NETWORK
from benchmarks.measurement.workload import random_network
from eulerlora.settings import Draw


@pytest.mark.parametrize(
    ("precision", "compiler", "tolerance"),
    [("float32", None, 1e-4), ("bfloat16", None, 5e-2), ("float32", "eager", 1e-4)],
)
def test_the_engine_gives_the_logits_of_its_network_in_float32(
    workload, precision, compiler, tolerance
) -> None:
    network = random_network(SMALL_NETWORK)
    with torch.inference_mode():
        expected = network(workload.images, workload.rows, workload.draws)
    actual = build_engine(network, precision, compiler)(
        workload.images, workload.rows, workload.draws
    )
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_the_engine_does_not_change_its_network(workload) -> None:
    network = workload.network
    before = {name: (p.dtype, p.requires_grad) for name, p in network.named_parameters()}
    build_engine(network, "bfloat16")
    assert before == {n: (p.dtype, p.requires_grad) for n, p in network.named_parameters()}


def test_requests_of_both_modes_can_share_a_batch(workload) -> None:
    ours, network = build_engine(workload.network, "float32"), workload.network
    draws = [Draw(), Draw(mode="stoch", samples=3, seed=4)]
    batch = predict(ours, workload.images, draws, network)
    assert [len(logits) for logits in batch] == [2, 6]
    for index, draw in enumerate(draws):
        (single,) = predict(ours, workload.images[index, None], [draw], network)
        torch.testing.assert_close(batch[index], single, rtol=1e-4, atol=1e-4)


def test_a_random_network_has_adapters_and_is_deterministic() -> None:
    network = random_network(SMALL_NETWORK)
    assert all(parameter.abs().max() > 0 for _, parameter in network.adapter_parameters())
    again = random_network(SMALL_NETWORK)
    assert all(
        torch.equal(first, second)
        for first, second in zip(network.parameters(), again.parameters(), strict=True)
    )
