"""training.recipe: what a recipe may say."""

from pathlib import Path

import pytest

from eulerlora.errors import SettingsError
from training.recipe import AdapterRecipe, PretrainingRecipe, read_recipe

RECIPES = sorted((Path(__file__).parents[2] / "training" / "recipes").glob("*.toml"))


def test_there_are_recipes_to_test() -> None:
    assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_is_valid_and_says_its_command(path: Path) -> None:
    kind = PretrainingRecipe if path.stem.endswith("-pretrain") else AdapterRecipe
    read_recipe(path, kind)
    command = "pretrain" if kind is PretrainingRecipe else "train"
    assert f"eulerlora {command} training/recipes/{path.name}" in path.read_text()


def test_the_defaults_are_the_paper_s(tmp_path: Path) -> None:
    path = tmp_path / "least.toml"
    path.write_text(
        'name = "least"\n[data]\nkind = "imagefolder"\n'
        '[backbone]\nweights = "ViT_B_32_Weights.IMAGENET1K_V1"\n[training]\nepochs = 1\n'
    )
    recipe = read_recipe(path, AdapterRecipe)
    adapters, training = recipe.adapters, recipe.training
    assert (adapters.adapters, adapters.rank, adapters.min_rank) == (2, 20, 10)
    assert (adapters.steps, adapters.scale) == (2, 1.0)
    assert (training.batch_size, training.learning_rate, training.weight_decay) == (32, 1e-4, 0.01)
    assert (training.warmup_steps, training.clip_norm, training.samples) == (500, 1.0, 4)
    assert (training.precision, training.loss) == ("float32", "trajectory")


def test_an_override_replaces_one_value_and_needs_no_quotes(recipe_file: Path) -> None:
    overrides = ["training.epochs=7", "name=other", "evaluation.ood=[]", "data.split=paper"]
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    assert recipe.training.epochs == 7
    assert recipe.name == "other"
    assert recipe.evaluation.ood == ()
    assert recipe.data.split == "paper"
    assert recipe.training.batch_size == 8


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("training.epoch=1", "training.epoch"),
        ("training.epochs=0", "training.epochs"),
        ("adapters.min_rank=5", "adapters"),
        ("stored=int8", "stored"),
        ("training.learning_rate=nan", "training.learning_rate"),
        ("name.deeper=1", "name.deeper=1"),
        ("training.3=1", "training.3"),
        ("epochs", "epochs"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(recipe_file: Path, override: str, named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_recipe(recipe_file, AdapterRecipe, [override])
    assert named in str(caught.value)


@pytest.mark.parametrize("text", ["name = ", "\xff", ""])
def test_an_unreadable_recipe_is_refused_by_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"broken\.toml"):
        read_recipe(path, AdapterRecipe)


def test_a_missing_recipe_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml"):
        read_recipe(tmp_path / "absent.toml", AdapterRecipe)


def test_pretraining_must_end_at_the_backbone_s_image_size() -> None:
    path = next(path for path in RECIPES if path.stem.endswith("-pretrain"))
    with pytest.raises(SettingsError, match="last stage"):
        read_recipe(path, PretrainingRecipe, ["backbone.image_size=256"])
