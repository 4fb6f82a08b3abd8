"""Device and provenance of a run; its stored state; rounding of stored weights."""

from pathlib import Path

import pytest
import torch
from torch import nn

from eulerlora_contract.errors import CheckpointError, DataError, NonFiniteError, SettingsError
from tests.conftest import random_network
from training.optimisation import run
from training.optimisation.run import (
    Progress,
    TrainedState,
    accelerator_on,
    load_state,
    round_parameters,
    save_state,
)
from training.recipe.schema import OptimisationSettings


@pytest.mark.parametrize(
    ("name", "current"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", []), ("cpu:0", [])]
)
def test_a_cuda_device_becomes_the_current_device_that_accelerate_uses(
    monkeypatch: pytest.MonkeyPatch, name: str, current: list[str]
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(str(device)))
    monkeypatch.setattr(run, "Accelerator", lambda cpu, **_: calls.append(f"cpu={cpu}"))
    accelerator_on(torch.device(name))
    assert calls == [*current, f"cpu={name.startswith('cpu')}"]


SETTINGS = OptimisationSettings(epochs=3)
PROGRESS = Progress(step=7, seconds=1.5, waited_s=0.5, epoch_loss=3.0, epoch_steps=2)


def trained() -> TrainedState:
    network = nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(network.parameters())
    network(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    return TrainedState(network, optimiser)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "below" / "state.safetensors"
    save_state(path, trained(), PROGRESS, SETTINGS, "data")
    return path


@pytest.mark.parametrize(
    ("cut", "epochs", "data", "error"),
    [
        (None, 4, "data", SettingsError),
        (None, 3, "other", DataError),
        (-9, 3, "data", CheckpointError),
    ],
)
def test_a_state_of_other_settings_or_data_and_a_damaged_one_are_refused_and_remain(
    path: Path, cut: int | None, epochs: int, data: str, error: type[Exception]
) -> None:
    content = path.read_bytes()[:cut]
    path.write_bytes(content)
    with pytest.raises(error, match=r"state\.safetensors"):
        load_state(path, trained(), OptimisationSettings(epochs=epochs), data)
    assert path.read_bytes() == content


def test_rounding_that_overflows_is_refused() -> None:
    network = random_network()
    with torch.no_grad():
        next(network.adapter_parameters())[1].fill_(1e6)
    with pytest.raises(NonFiniteError, match="float16"):
        round_parameters(network.adapter_parameters(), torch.float16)
