"""The recipes of the studies: their variants, and what the variants of a study share."""

import tomllib
from pathlib import Path

import pytest

from eulerlora.methods.registry import method_type
from eulerlora_lab.tables.table import read_table
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe

RECIPES = Path(__file__).parents[1] / "eulerlora_lab" / "recipes"


def variant_names(path: Path) -> list[str]:
    """The variants of a recipe and of its bases in this folder."""
    if not path.is_file():
        return []
    tables = tomllib.loads(path.read_text())
    of_base = variant_names(RECIPES / tables["base"]) if "base" in tables else []
    return list(dict.fromkeys([*of_base, *tables.get("variants", {})]))


COMPLETE = [p for p in sorted(RECIPES.glob("*.toml")) if "name" in tomllib.loads(p.read_text())]
CHOICES = ("dermoscopy-choices",)
STUDIES = [path for path in COMPLETE if path.stem.startswith("overfitting-")]
VARIANTS = [
    (path, name)
    for path in COMPLETE
    if path.stem not in (*CHOICES, "default-model") and path not in STUDIES
    for name in variant_names(path)
]
METHODS = {
    "rank-dropout": "rank-dropout",
    "fixed-rank": "rank-dropout",
    "scalabl": "gaussian-coefficients",
    "blob": "blob",
    "bayeslora": "bayeslora",
    "ivon": "ivon",
    "dropkey": "dropkey",
    "batch-ensemble": "batch-ensemble",
    "last-layer-ensemble": "last-layer-ensemble",
    "sngp": "sngp",
    "epinet": "epinet",
    "tfb": "tfb",
    "laplace": "laplace",
    "swag": "swag",
}
COMPARED = read_table("ham10000-compact").variants


@pytest.mark.parametrize("path", COMPLETE, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_states_its_command(path: Path) -> None:
    read_recipe(path, AdapterRecipe)
    assert f"eulerlora train lab/eulerlora_lab/recipes/{path.name} " in path.read_text()


@pytest.mark.parametrize(
    ("path", "variant"), VARIANTS, ids=lambda value: getattr(value, "stem", value)
)
def test_every_variant_is_valid_and_has_the_method_in_its_name(path: Path, variant: str) -> None:
    recipe = read_recipe(path, AdapterRecipe, variant=variant)
    names = [name for name in METHODS if variant.startswith(name)]
    assert recipe.method.name == (METHODS[names[0]] if names else "eulerlora")
    sampled = method_type(recipe.method).is_sampled(recipe.adapters)
    assert recipe.training.samples == 1 or sampled


@pytest.mark.parametrize("name", ["frozen", "fine-tuned", "details"])
def test_the_candidates_for_the_embedded_model_have_four_adapters_at_the_rate_that_moves_them(
    name: str,
) -> None:
    recipe = read_recipe(RECIPES / "default-model.toml", AdapterRecipe, variant=name)
    assert (recipe.adapters.adapters, recipe.adapters.init_gain) == (4, 0.3)
    assert recipe.training.learning_rate == 1e-3
    assert recipe.adapters.adapters * recipe.evaluation.samples == recipe.evaluation.views == 8


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
