"""The networks of the baselines, and the engine of our side."""

from eulerlora_lab.benchmarks.baselines.naive import ordinary_members
from eulerlora_lab.benchmarks.workload import build_engine


def test_ordinary_members_train_lora_and_head_and_share_the_rest(workload_of) -> None:
    workload = workload_of(2)
    first, second = members = ordinary_members(workload.network)
    for name, parameter in first.named_parameters():
        assert parameter.requires_grad == ("lora_" in name or name.startswith("head.")), name
        shared = parameter.data_ptr() == second.get_parameter(name).data_ptr()
        assert shared != parameter.requires_grad, name
    expected = sum(p.numel() for _, p in workload.network.adapter_parameters())
    trained = sum(p.numel() for m in members for p in m.parameters() if p.requires_grad)
    assert trained == expected


def test_the_engine_does_not_change_its_network(workload_of) -> None:
    network = workload_of(2).network
    before = {name: (p.dtype, p.requires_grad) for name, p in network.named_parameters()}
    build_engine(network, "bfloat16")
    assert before == {n: (p.dtype, p.requires_grad) for n, p in network.named_parameters()}
