"""The device that a run gets."""

import pytest
import torch

from training.fit import run
from training.fit.run import accelerator_on


@pytest.mark.parametrize(
    ("name", "current"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", []), ("cpu:0", [])]
)
def test_a_cuda_device_becomes_torch_s_current_one_which_accelerate_takes(
    monkeypatch: pytest.MonkeyPatch, name: str, current: list[str]
) -> None:
    made: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: made.append(str(device)))
    monkeypatch.setattr(run, "Accelerator", lambda cpu: made.append(f"cpu={cpu}"))
    accelerator_on(torch.device(name))
    assert made == [*current, f"cpu={name.startswith('cpu')}"]
