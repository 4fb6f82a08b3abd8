import torch

from benchmarks.baselines.engine import engine
from benchmarks.baselines.naive import naive_logits, ordinary_members


def test_ordinary_lora_modules_give_the_logits_of_our_network(question) -> None:
    expected = engine(question.network, "float32")(
        question.images, question.rows, question.coefficients
    )
    found = naive_logits(ordinary_members(question.network), question.images, question.own)
    torch.testing.assert_close(found.flatten(0, 1), expected, rtol=1e-4, atol=1e-4)
    assert found.std(dim=1).min() > 0.01


def test_only_lora_and_head_of_an_ordinary_member_are_trained(question) -> None:
    members = ordinary_members(question.network)
    trained = [{n for n, p in member.named_parameters() if p.requires_grad} for member in members]
    assert all("lora_" in name or name.startswith("head.") for name in trained[0])
    ours = sum(p.numel() for _, p in question.network.adapter_parameters())
    theirs = sum(p.numel() for m in members for p in m.parameters() if p.requires_grad)
    assert theirs == ours


def test_ordinary_members_share_their_frozen_weights(question) -> None:
    first, second = ordinary_members(question.network)
    for name, parameter in first.named_parameters():
        shared = parameter.data_ptr() == second.get_parameter(name).data_ptr()
        assert shared != parameter.requires_grad, name
