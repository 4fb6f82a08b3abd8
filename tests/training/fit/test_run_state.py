"""What an unfinished run is continued from."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eulerlora.errors import CheckpointError, SettingsError
from training.fit.objective import Objective
from training.fit.run_state import Progress, load_state, save_state
from training.recipe.schema import OptimisationSettings

SETTINGS = OptimisationSettings(epochs=3)
TALLY = Progress(step=7, seconds=1.5, waited_s=0.5, epoch_loss=3.0, epoch_steps=2)


@pytest.fixture
def stepped() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module after three steps, a part of it frozen."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    optimiser = torch.optim.AdamW(module[1].parameters(), lr=0.1)
    for _ in range(3):
        module(torch.ones(1, 3)).sum().backward()
        optimiser.step()
    return module, optimiser


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    return module, torch.optim.AdamW(module[1].parameters(), lr=0.1)


def test_a_loaded_state_steps_on_as_the_saved_one(
    tmp_path: Path, stepped: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    path = tmp_path / "below" / "state.safetensors"
    save_state(path, *stepped, TALLY, SETTINGS)
    module, optimiser = fresh()
    module[0].load_state_dict(stepped[0][0].state_dict())
    assert load_state(path, module, optimiser, SETTINGS) == TALLY
    for each, its_optimiser in ((module, optimiser), stepped):
        its_optimiser.zero_grad()
        each(torch.ones(1, 3)).square().sum().backward()
        its_optimiser.step()
    torch.testing.assert_close(module.state_dict(), stepped[0].state_dict(), atol=0, rtol=0)


def test_frozen_weights_are_not_kept(
    tmp_path: Path, stepped: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, *stepped, TALLY, SETTINGS)
    module, optimiser = fresh()
    before = module[0].weight.clone()
    load_state(path, module, optimiser, SETTINGS)
    assert torch.equal(module[0].weight, before)


class Averaged(Objective):
    """An objective that keeps a running sum of its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(2))
        self.sum = torch.zeros(2)

    def forward(self, images: Tensor, labels: Tensor, step: int) -> Tensor:
        return self.weights.sum()

    def weight(self, labels: Tensor) -> Tensor:
        return torch.ones(())

    def rows_per_image(self) -> int:
        return 1

    def stepped(self) -> None:
        self.sum += self.weights.detach()

    def averages(self) -> dict[str, Tensor]:
        return {"sum": self.sum}


def test_what_follows_the_weights_is_kept_too(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    saved, loaded = Averaged(), Averaged()
    optimisers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (saved, loaded)]
    saved(torch.ones(1), torch.ones(1), 0).backward()
    optimisers[0].step()
    saved.stepped()
    save_state(path, saved, optimisers[0], TALLY, SETTINGS)
    load_state(path, loaded, optimisers[1], SETTINGS)
    assert torch.equal(loaded.sum, saved.weights)


def test_a_state_of_other_settings_is_refused(
    tmp_path: Path, stepped: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, *stepped, TALLY, SETTINGS)
    with pytest.raises(SettingsError, match="other settings"):
        load_state(path, *fresh(), OptimisationSettings(epochs=4))


def test_a_damaged_state_is_refused_by_name(
    tmp_path: Path, stepped: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, *stepped, TALLY, SETTINGS)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        load_state(path, *fresh(), SETTINGS)


def test_a_failed_save_keeps_the_older_state(
    tmp_path: Path, stepped: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, *stepped, TALLY, SETTINGS)
    before = path.read_bytes()
    (tmp_path / ".state.safetensors.partial").mkdir()  # where the new one would be written
    with pytest.raises(OSError):
        save_state(path, *stepped, Progress(step=9), SETTINGS)
    assert path.read_bytes() == before
