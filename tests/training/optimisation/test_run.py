"""The device of a run; rounding of stored weights."""

import pytest
import torch
from accelerate import Accelerator

from eulerlora_contract.errors import NonFiniteError
from tests.conftest import random_network
from training.optimisation.run import accelerator_on, round_parameters


@pytest.mark.parametrize(
    ("name", "current"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", []), ("cpu:0", [])]
)
def test_a_cuda_device_becomes_the_current_device_that_accelerate_uses(
    monkeypatch: pytest.MonkeyPatch, name: str, current: list[str]
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(str(device)))
    monkeypatch.setattr(Accelerator, "__init__", lambda _, cpu, **__: calls.append(f"cpu={cpu}"))
    accelerator_on(torch.device(name))
    assert calls == [*current, f"cpu={name.startswith('cpu')}"]


def test_rounding_that_overflows_is_refused() -> None:
    network = random_network()
    with torch.no_grad():
        next(network.adapter_parameters())[1].fill_(1e6)
    with pytest.raises(NonFiniteError, match="float16"):
        round_parameters(network.adapter_parameters(), torch.float16)
