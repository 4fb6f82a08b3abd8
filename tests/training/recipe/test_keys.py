"""The keys of a recipe are described, documented and shown with what sets them."""

import tomllib
from pathlib import Path

import pytest

from tests.program import run
from training.recipe.file import RECIPES, read_recipe
from training.recipe.keys import recipe_keys, recipe_with_sources
from training.recipe.schema import AdapterRecipe


def test_a_shown_recipe_names_what_sets_each_value() -> None:
    lines = recipe_with_sources(
        RECIPES / "ham10000-compact.toml",
        AdapterRecipe,
        ["training.epochs=3", "evaluation.ood=[]", "backbone.image_size=32"],
        "eulerlora-2",
    )
    sources = {line.split()[0]: line.rpartition("  # ")[2] for line in lines if "=" in line}
    assert sources["training.epochs"] == "command line"
    assert sources["evaluation.ood"] == "command line"
    assert sources["evaluation.calibrated"] == "variant eulerlora-2"
    assert (
        sources["adapters.rank"] == "variant eulerlora-2"
        or "ham10000" in (sources["adapters.rank"])
    )
    assert sources["training.head"] == "ham10000-compact.toml"
    assert sources["training.clip_norm"] == "default"
    (text,) = (key.text for key in recipe_keys(AdapterRecipe) if key.name == "training.shuffle")
    assert f"# {text}" in lines


@pytest.mark.parametrize("name", ["imagefolder", "ham10000-compact", "cifar10"])
def test_a_shown_recipe_is_the_recipe(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.toml"
    path.write_text("\n".join(recipe_with_sources(RECIPES / f"{name}.toml", AdapterRecipe)))
    assert tomllib.loads(path.read_text())
    original = read_recipe(RECIPES / f"{name}.toml", AdapterRecipe)
    assert read_recipe(path, AdapterRecipe).without_source == original.without_source


def test_show_needs_no_data_and_prints_the_sources(recipe_file: Path) -> None:
    done = run("train", recipe_file, "--show", "--seed", "7", "--ignore-columns")
    assert done.status == 0, done.err
    assert "seed = 7" in done.out
    assert "data.ignore_columns = true" in done.out
    assert "# tiny.toml" in done.out
    assert run("train", recipe_file, "--show", "--set", "training.epoch=1").status == 1


def test_a_recipe_may_be_based_on_a_packaged_one_by_name(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('base = "imagefolder"\nname = "own"\n[data.classes]\na = "first"\nb = "b"\n')
    recipe = read_recipe(path, AdapterRecipe)
    assert (recipe.name, recipe.data.classes["a"]) == ("own", "first")
    assert recipe.training == read_recipe(RECIPES / "imagefolder.toml", AdapterRecipe).training
