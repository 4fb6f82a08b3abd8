"""The members of an ensemble of whole networks."""

from pathlib import Path

import pytest

from eulerlora.errors import SettingsError
from training.adaptation.network import member_folders, member_recipe, starts_from_previous
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe

WHOLE = (
    "adapters={adapters = 1, rank = 1, min_rank = 1}",
    "training.samples=1",
    "training.epochs=6",
)


def recipe_of(file: Path, *overrides: str) -> AdapterRecipe:
    return read_recipe(file, AdapterRecipe, (*WHOLE, *overrides))


def test_members_of_an_explicit_ensemble_differ_in_their_seed_alone(recipe_file: Path) -> None:
    recipe = recipe_of(recipe_file, "whole_network={members = 4}")
    members = [member_recipe(recipe, index) for index in range(4)]
    assert members[0] == recipe
    assert len({member.seed for member in members}) == 4
    assert all(m.model_copy(update={"seed": recipe.seed}) == recipe for m in members)
    assert not any(starts_from_previous(recipe, index) for index in range(4))


def test_snapshots_share_the_epochs_of_one_run_and_warm_up_once(recipe_file: Path) -> None:
    recipe = recipe_of(recipe_file, 'whole_network={members = 3, ensemble = "snapshot"}')
    members = [member_recipe(recipe, index) for index in range(3)]
    assert [member.training.epochs for member in members] == [2, 2, 2]
    uneven = recipe_of(recipe_file, 'whole_network={members = 4, ensemble = "snapshot"}')
    epochs = [member_recipe(uneven, index).training.epochs for index in range(4)]
    assert epochs == [2, 2, 1, 1]
    assert [member.training.warmup_steps for member in members] == [2, 0, 0]
    assert [starts_from_previous(recipe, index) for index in range(3)] == [False, True, True]


def test_a_single_network_is_in_the_folder_of_its_run(recipe_file: Path) -> None:
    out = Path("out")
    assert member_folders(recipe_of(recipe_file, "whole_network={}"), out) == [out]
    ensemble = recipe_of(recipe_file, "whole_network={members = 12}")
    assert member_folders(ensemble, out)[::11] == [out / "members/01", out / "members/12"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["whole_network={}", "adapters.rank=2"], "expected adapters=1, rank=1 and min_rank=1"),
        (["whole_network={}", "training.samples=2"], "expected training.samples=1 with whole_net"),
        (
            ['whole_network={members = 7, ensemble = "snapshot"}'],
            "expected training.epochs of at least 7 with as many snapshots, got 6",
        ),
        (['whole_network={ensemble = "snapshot"}'], "expected members of at least 2"),
    ],
)
def test_settings_that_whole_networks_lack_are_refused(
    recipe_file: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        recipe_of(recipe_file, *overrides)
