"""Our engine and every baseline give the logits of the same network."""

import torch
from torch.testing import assert_close

from eulerlora_lab.benchmarks.baselines.naive import ordinary_members
from eulerlora_lab.benchmarks.peers import METHODS, build, eight_members, random_images
from eulerlora_lab.benchmarks.workload import SMALL, build_engine, random_network


def test_all_methods_give_the_logits_of_eight_members() -> None:
    sizes = eight_members(SMALL.large)
    network, images = random_network(sizes), random_images(sizes, 2)
    expected = build("ours", network)(images)
    assert expected.shape == (2 * 8, sizes.classes)
    assert not torch.allclose(expected[0], expected[1], atol=1e-4)
    for method in METHODS:
        actual = build(method, network)(images)
        assert_close(actual.reshape_as(expected), expected, rtol=1e-4, atol=1e-5)


def test_ordinary_members_train_lora_and_head_and_share_the_rest(workload) -> None:
    first, second = members = ordinary_members(workload.network)
    for name, parameter in first.named_parameters():
        assert parameter.requires_grad == ("lora_" in name or name.startswith("head.")), name
        shared = parameter.data_ptr() == second.get_parameter(name).data_ptr()
        assert shared != parameter.requires_grad, name
    expected = sum(p.numel() for _, p in workload.network.adapter_parameters())
    trained = sum(p.numel() for m in members for p in m.parameters() if p.requires_grad)
    assert trained == expected


def test_the_engine_does_not_change_its_network(workload) -> None:
    network = workload.network
    before = {name: (p.dtype, p.requires_grad) for name, p in network.named_parameters()}
    build_engine(network, "bfloat16")
    assert before == {n: (p.dtype, p.requires_grad) for n, p in network.named_parameters()}
