"""The device of a run."""

import pytest
import torch
from accelerate import Accelerator

from training.optimisation.run import accelerator_on


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
