"""The schema of recipes: defaults and the packaged recipes."""

import re
import tomllib
from pathlib import Path

import pytest

from eulerlora_contract.errors import SettingsError
from training.recipe.file import find_recipe, read_recipe
from training.recipe.schema import AdapterRecipe

FOLDER = find_recipe("imagefolder").parent
TABLES = {path: tomllib.loads(path.read_text()) for path in sorted(FOLDER.glob("*.toml"))}
PACKAGED = [path for path, tables in TABLES.items() if "name" in tables]


def variants_of(path: Path) -> list[str]:
    """The variants of a packaged recipe and of its bases."""
    base = TABLES[path].get("base")
    of_base = [] if base is None else variants_of(FOLDER / base)
    return [*of_base, *TABLES[path].get("variants", {})]


VARIANTS = [(path, name) for path in PACKAGED for name in variants_of(path)]
WHOLE_NETWORKS = ("single", "l2", "explicit", "snapshots")


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_every_packaged_recipe_is_valid_and_states_its_command(path: Path) -> None:
    read_recipe(path, AdapterRecipe)
    assert f"eulerlora train {path.stem} " in path.read_text()


@pytest.mark.parametrize(
    ("path", "variant"), VARIANTS, ids=lambda value: getattr(value, "stem", value)
)
def test_every_variant_is_valid_and_has_the_settings_in_its_name(path: Path, variant: str) -> None:
    recipe = read_recipe(path, AdapterRecipe, variant=variant)
    names = ("eulerlora", "lora", "ensemble", *WHOLE_NETWORKS)
    method = next(name for name in names if variant.startswith(name))
    adapters = recipe.adapters
    assert (recipe.whole_network is not None) == (method in WHOLE_NETWORKS)
    assert (adapters.min_rank < adapters.rank) == (method == "eulerlora")
    assert recipe.variant == variant


LORA = """\
name = "lora"
[data]
kind = "ham10000"
split = "lesion-best-epoch"
[adapters]
adapters = 1
min_rank = 20
[training]
epochs = 30
samples = 1
metrics_by_epoch = true
"""
DROPOUT = "training.adapter_dropout=0.1"
TFB = ("method.name=tfb", "training.sampling=false")
WHOLE = ("adapters={adapters = 1, rank = 1, min_rank = 1}", "whole_network.members=7")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ((DROPOUT, "training.micro_batch_rows=8"), "adapter_dropout"),
        ((DROPOUT, "method.name=blob"), "adapter_dropout"),
        ((DROPOUT, "method.name=dropkey"), "adapter_dropout"),
        ((DROPOUT, "method.name=ivon"), "adapter_dropout"),
        (("training.optimiser=ivon",), "training.optimiser"),
        (("method.name=ivon", "training.sampling=false"), "training.sampling"),
        (("method.name=tfb",), "training.sampling"),
        ((*TFB, "method.steps=3"), "method.tfb.steps"),
        (
            (
                "method.name=laplace",
                "training.sampling=false",
                "data.split=paper",
                "training.metrics_by_epoch=false",
            ),
            "data.split=lesion or",
        ),
        (("method.name=sngp",), "training.head"),
        (("method.name=batch-ensemble",), "adapters.rank"),
        (
            ("method.name=last-layer-ensemble", "adapters.rank=1", "adapters.min_rank=1"),
            "training.head",
        ),
        (("training.sampling=false", "training.samples=4"), "samples"),
        (("data.split=lesion",), "data.split"),
        (("training.epochs=0", "training.best_epoch=true"), "training.epochs"),
        (("whole_network={}",), "adapters=1"),
        ((*WHOLE, "training.samples=2"), "training.samples=1"),
        ((*WHOLE, "training.epochs=6", "whole_network.ensemble=snapshot"), "training.epochs"),
        (("whole_network.ensemble=snapshot",), "members"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(
    tmp_path: Path, overrides: tuple[str, ...], key: str
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(LORA)
    read_recipe(path, AdapterRecipe)
    with pytest.raises(SettingsError, match=re.escape(key)):
        read_recipe(path, AdapterRecipe, overrides)


def test_the_recipes_of_the_paper_differ_only_where_the_paper_does() -> None:
    recipes = {
        name: read_recipe(find_recipe(name), AdapterRecipe)
        for name in ("cifar10", "cifar100", "ham10000")
    }
    assert {name: recipe.training.epochs for name, recipe in recipes.items()} == {
        "cifar10": 16,
        "cifar100": 16,
        "ham10000": 65,
    }
    weighted = [name for name, recipe in recipes.items() if recipe.training.class_weights != "none"]
    assert weighted == ["ham10000"]
    assert all(recipe.data.split == "paper" for recipe in recipes.values())
