"""The program `benchmarks.peers`: the methods agree, and the tables show what was measured."""

import pytest
import torch

from benchmarks import peers
from benchmarks.inference import peers as methods
from benchmarks.inference.peers import METHODS, MethodCost, build, eight_members, random_images
from benchmarks.measurement.sizes import SMALL
from benchmarks.measurement.workload import random_network
from benchmarks.service.load.closed_loop import Exchange, Load
from benchmarks.service.load.connection import Response


def load(rate: float, seconds: float) -> Load:
    answered = Exchange(0, seconds, Response(200, {}, b""))
    return Load(10 / rate, 0.0, [answered] * 10)


def test_all_methods_give_the_logits_of_eight_members() -> None:
    sizes = eight_members(SMALL.large)
    network, images = random_network(sizes), random_images(sizes, 2)
    expected = build("ours", network)(images)
    assert expected.shape == (2 * 8, sizes.classes)
    for method in METHODS:
        actual = build(method, network)(images)
        torch.testing.assert_close(actual.reshape_as(expected), expected, rtol=1e-4, atol=1e-5)


def test_every_method_has_a_row_with_its_ratio_to_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_memory", lambda method, _sizes: 2**20 * len(method))
    costs = methods.method_costs(SMALL, torch.device("cpu"))
    assert costs["ours"].one_image_ratio == costs["ours"].images_ratio == 1
    assert all(cost.one_image > 0 and cost.images > 0 for cost in costs.values())
    table = peers.methods_table(costs | {"vmap": MethodCost(0.002, 2.0, 0.01, 2.5, 7 * 2**20)})
    assert "| 2.0 ms | 2.00 | 10.0 ms | 2.50 | 7 MiB |" in table
    assert table.count("\n") == len(METHODS) + 1


def test_the_rate_at_equal_p99_is_the_highest_within_the_limit() -> None:
    loads = {1: [load(50, 0.02)], 4: [load(90, 0.05), load(80, 0.06)], 16: [load(120, 0.4)]}
    assert peers.rate_within(loads, 0.06) == 85
    assert peers.rate_within(loads, 0.5) == 120
    assert peers.rate_within(loads, 0.01) is None


def test_the_limit_of_the_table_is_the_p99_of_ours() -> None:
    ours = {1: [load(50, 0.02)], 8: [load(100, 0.1)]}
    slower = {1: [load(40, 0.025)], 8: [load(90, 0.2)]}
    loads = {peers.OURS: ours, "another": slower}
    table = peers.servers_table(loads, {peers.OURS: 2**30, "another": 2**31}, clients=8)
    assert "answers/s with a p99 of 100 ms" in table
    assert f"| {peers.OURS} | 20.0 ms | 100.0 | 100 ms | 100.0 | 1024 MiB |" in table
    assert "| another | 25.0 ms | 90.0 | 200 ms | 40.0 | 2048 MiB |" in table
