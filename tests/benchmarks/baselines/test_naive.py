"""The naive loop over ordinary LoRA modules gives the logits of the network."""

import torch

from benchmarks.baselines.engine import build_engine
from benchmarks.baselines.naive import naive_logits, ordinary_members


def test_ordinary_lora_modules_give_the_logits_of_our_network(workload) -> None:
    expected = build_engine(workload.network, "float32")(
        workload.images, workload.rows, workload.draws
    )
    actual = naive_logits(ordinary_members(workload.network), workload.images, workload.unstacked)
    torch.testing.assert_close(actual.flatten(0, 1), expected, rtol=1e-4, atol=1e-4)
    assert actual.std(dim=1).min() > 0.01


def test_only_lora_and_head_of_an_ordinary_member_are_trained(workload) -> None:
    members = ordinary_members(workload.network)
    trained = [{n for n, p in member.named_parameters() if p.requires_grad} for member in members]
    assert all("lora_" in name or name.startswith("head.") for name in trained[0])
    expected = sum(p.numel() for _, p in workload.network.adapter_parameters())
    actual = sum(p.numel() for m in members for p in m.parameters() if p.requires_grad)
    assert actual == expected


def test_ordinary_members_share_their_frozen_weights(workload) -> None:
    first, second = ordinary_members(workload.network)
    for name, parameter in first.named_parameters():
        shared = parameter.data_ptr() == second.get_parameter(name).data_ptr()
        assert shared != parameter.requires_grad, name
