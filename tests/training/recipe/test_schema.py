"""The schema of recipes: defaults and the packaged recipes."""

import re
from pathlib import Path

import pytest

from eulerlora.methods.registry import method_type
from eulerlora_contract.errors import SettingsError
from training.recipe.file import (
    RECIPES,
    find_recipe,
    read_layers,
    read_recipe,
    read_toml,
    recipe_names,
)
from training.recipe.pretraining import PretrainingRecipe
from training.recipe.schema import AdapterRecipe
from training.tables.table import read_table

PACKAGED = [find_recipe(name) for name in recipe_names()]
PRETRAINING = [path for path in PACKAGED if "[[stages]]" in path.read_text()]
CHOICES = ("dermoscopy-choices",)
STUDIES = [path for path in PACKAGED if path.stem.startswith("overfitting-")]
METHODS = list(
    dict.fromkeys(  # a recipe and its base may have the same variant
        (path, name)
        for path in PACKAGED
        if path.stem not in CHOICES and path not in STUDIES
        for layer in read_layers(path)
        for name in read_toml(RECIPES / layer.source).get("variants", {})
    )
)


WHOLE_NETWORKS = ("single", "l2", "explicit", "snapshots")
OTHER_METHODS = {
    "rank-dropout": "rank-dropout",
    "fixed-rank": "rank-dropout",
    "scalabl": "gaussian-coefficients",
    "blob": "blob",
    "ivon": "ivon",
    "dropkey": "dropkey",
    "batch-ensemble": "batch-ensemble",
    "last-layer-ensemble": "last-layer-ensemble",
    "sngp": "sngp",
    "epinet": "epinet",
}
POSTERIORS = ("tfb", "laplace", "swag")
COMPARED = read_table("ham10000-compact").variants


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_every_packaged_recipe_is_valid_and_states_its_command(path: Path) -> None:
    kind = PretrainingRecipe if path in PRETRAINING else AdapterRecipe
    read_recipe(path, kind)
    command = "pretrain" if kind is PretrainingRecipe else "train"
    assert f"eulerlora {command} {path.stem} " in path.read_text()


@pytest.mark.parametrize(
    ("path", "variant"), METHODS, ids=lambda value: getattr(value, "stem", value)
)
def test_every_variant_is_valid_and_has_the_settings_in_its_name(path: Path, variant: str) -> None:
    recipe = read_recipe(path, AdapterRecipe, variant=variant)
    adapters, whole = recipe.adapters, recipe.whole_network
    names = ("eulerlora", "lora", "ensemble", *WHOLE_NETWORKS, *OTHER_METHODS, *POSTERIORS)
    method = next(name for name in names if variant.startswith(name))
    assert recipe.method.name == OTHER_METHODS.get(method, "eulerlora")
    assert (recipe.posterior is not None) == (method in POSTERIORS)
    assert (whole is not None) == (method in WHOLE_NETWORKS)
    assert (adapters.min_rank < adapters.rank) == (method == "eulerlora")
    assert recipe.training.samples == 1 or method_type(recipe.method).is_sampled(adapters)
    assert recipe.variant == variant


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_variants_of_a_study_train_on_the_same_images_with_the_same_settings(
    path: Path,
) -> None:
    variants = [
        read_recipe(path, AdapterRecipe, variant=name) for name in read_table(path.stem).variants
    ]
    differing = {"samples", "sampling", "adapter_dropout", "best_epoch", "epochs"}
    assert len({recipe.training.model_dump_json(exclude=differing) for recipe in variants}) == 1
    assert len({recipe.data.model_dump_json() for recipe in variants}) == 1
    assert {recipe.training.epochs for recipe in variants} == {0, 30}
    assert all(recipe.adapters.rank == 20 for recipe in variants)
    by_name = {recipe.variant: recipe for recipe in variants}
    assert by_name["eulerlora-1"].training.samples == 4
    assert by_name["eulerlora-1-one-sample"].training.samples == 1
    sampled, plain = by_name["lora-20-sampled"], by_name["lora-20-best-epoch"]
    assert sampled.training.samples == 1 and not sampled.training.sampling  # mode det is LoRA
    assert sampled.adapters.min_rank < plain.adapters.min_rank == plain.adapters.rank


DROPOUT, IVON = "training.adapter_dropout=0.1", ("method.name=ivon", "training.optimiser=ivon")
SNGP = ("method.name=sngp", "training.head=random")
WHOLE = ("adapters={adapters = 1, rank = 1, min_rank = 1}", "whole_network.members=7")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ((DROPOUT, "training.micro_batch_rows=8"), "adapter_dropout"),
        ((DROPOUT, "training.activation_checkpointing=true"), "adapter_dropout"),
        ((DROPOUT, "method.name=blob"), "adapter_dropout"),
        ((DROPOUT, "method.name=dropkey"), "adapter_dropout"),
        ((DROPOUT, *IVON), "adapter_dropout"),
        (("method.name=ivon",), "training.optimiser"),
        (("training.optimiser=ivon",), "training.optimiser"),
        ((*IVON, "training.weight_decay=0"), "training.weight_decay"),
        (("method.name=blob", "posterior.name=tfb"), "posterior"),
        (("whole_network.members=1", "posterior.name=swag"), "posterior"),
        (("posterior.name=tfb", "posterior.steps=3"), "posterior.tfb.steps"),
        (("method.name=sngp",), "training.head"),
        ((*SNGP, "training.epochs=0", "training.best_epoch=false"), "training.epochs"),
        (("method.name=batch-ensemble",), "adapters.rank"),
        (
            ("method.name=last-layer-ensemble", "adapters.rank=1", "adapters.min_rank=1"),
            "training.head",
        ),
        (("training.sampling=false", "training.samples=4"), "samples"),
        (("data.split=lesion",), "data.split"),
        (("training.epochs=0", "training.best_epoch=true"), "training.epochs"),
        (("training.early_stop=2",), "best_epoch"),
        (("whole_network={}",), "adapters=1"),
        ((*WHOLE, "training.samples=2"), "training.samples=1"),
        ((*WHOLE, "training.epochs=6", "whole_network.ensemble=snapshot"), "training.epochs"),
        (("whole_network.ensemble=snapshot",), "members"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(overrides: tuple[str, ...], key: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(key)):
        read_recipe(find_recipe("overfitting-all"), AdapterRecipe, overrides, "lora-20")


@pytest.mark.parametrize(
    ("table", "variant"), [(name, row) for name in CHOICES for row in read_table(name).variants]
)
def test_a_choice_uses_the_validation_split_and_changes_one_setting(
    table: str, variant: str
) -> None:
    start, choice = (
        read_recipe(RECIPES / f"{table}.toml", AdapterRecipe, variant=name)
        for name in ("start", variant)
    )
    assert choice.data.split == "lesion-validation"
    changed = [
        (section, key)
        for section in ("data", "backbone", "adapters", "training", "evaluation")
        for key, value in getattr(choice, section)
        if value != getattr(getattr(start, section), key)
    ]
    dependent = {("adapters", "min_rank"), ("training", "beta")}  # depend on rank and class weights
    count = len(set(changed) - dependent) + sum(
        getattr(choice, key) != getattr(start, key) for key in ("outliers", "colour_constancy")
    )
    assert count == (variant != "start")


def test_compared_methods_with_the_same_number_of_adapters_have_the_same_budget() -> None:
    path = RECIPES / "ham10000-compact.toml"
    budgets = {
        (recipe.adapters.adapters, recipe.adapters.rank, recipe.training.model_dump_json())
        for recipe in (read_recipe(path, AdapterRecipe, variant=name) for name in COMPARED)
    }
    assert len(budgets) == 2
    assert {adapters for adapters, _, _ in budgets} == {1, 2}


def test_the_recipes_of_the_paper_differ_only_where_the_paper_does(tmp_path: Path) -> None:
    recipes = {
        name: read_recipe(RECIPES / f"{name}.toml", AdapterRecipe)
        for name in ("cifar10", "cifar100", "ham10000")
    }
    assert {name: recipe.training.epochs for name, recipe in recipes.items()} == {
        "cifar10": 16,
        "cifar100": 16,
        "ham10000": 65,
    }
    weighted = [name for name, recipe in recipes.items() if recipe.training.class_weights != "none"]
    assert weighted == ["ham10000"]
    minimal = tmp_path / "minimal.toml"
    minimal.write_text(
        'name = "minimal"\n[data]\nkind = "imagefolder"\n'
        '[backbone]\nweights = "ViT_B_32_Weights.IMAGENET1K_V1"\n[training]\nepochs = 16\n'
        "batch_size = 32\nwarmup_steps = 500\nworkers = 8\nmicro_batch_rows = 128\n"
        'head = "random"\n'
    )
    assert recipes["cifar10"].training == read_recipe(minimal, AdapterRecipe).training
    assert all(recipe.data.split == "paper" for recipe in recipes.values())
