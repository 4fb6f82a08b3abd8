"""What a recipe may say, and how it is read."""

from pathlib import Path

import pytest

from eulerlora.errors import SettingsError
from training.recipe.file import read_recipe, variant_names
from training.recipe.pretraining import PretrainingRecipe
from training.recipe.schema import AdapterRecipe
from training.reproduction.table import read_table

FOLDER = Path(__file__).parents[3] / "training" / "recipes"
BASES = {"methods", "paper", "scale-check"}  # what recipes are based on
RECIPES = sorted(path for path in FOLDER.glob("*.toml") if path.stem not in BASES)
PRETRAINING = [path for path in RECIPES if "-pretrain" in path.stem]
CHOICES = FOLDER / "ham10000-choices.toml"
METHODS = [(path, name) for path in RECIPES if path != CHOICES for name in variant_names(path)]


COMPARED = read_table("ham10000-compact").variants


def test_there_are_recipes_to_test() -> None:
    assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_is_valid_and_says_its_command(path: Path) -> None:
    kind = PretrainingRecipe if path in PRETRAINING else AdapterRecipe
    read_recipe(path, kind)
    command = "pretrain" if kind is PretrainingRecipe else "train"
    assert f"eulerlora {command} training/recipes/{path.name}" in path.read_text()


@pytest.mark.parametrize(("path", "variant"), METHODS, ids=lambda it: getattr(it, "stem", it))
def test_every_variant_is_valid_and_says_in_its_name_what_it_is(path: Path, variant: str) -> None:
    recipe = read_recipe(path, AdapterRecipe, variant=variant)
    adapters, method = recipe.adapters, variant.partition("-")[0]
    numbers = {
        "eulerlora": str(adapters.adapters),
        "lora": str(adapters.rank),
        "ensemble": f"{adapters.rank}x{adapters.adapters}",
    }
    exposed = "-exposed" if recipe.outliers else ""
    assert variant == f"{method}-{numbers[method]}{exposed}"
    assert (adapters.min_rank < adapters.rank) == (method == "eulerlora")
    assert recipe.training.samples == 1 or method == "eulerlora"
    assert recipe.variant == variant


def test_the_compared_methods_have_the_same_budget_adapter_by_adapter() -> None:
    path = FOLDER / "ham10000-compact.toml"
    budgets = {
        (each.adapters.adapters, each.adapters.rank, each.training.model_dump_json())
        for each in (read_recipe(path, AdapterRecipe, variant=name) for name in COMPARED)
    }
    assert len(budgets) == 2
    assert {adapters for adapters, _, _ in budgets} == {1, 2}


@pytest.mark.parametrize("variant", read_table("ham10000-choices").variants)
def test_a_choice_is_made_on_validation_and_changes_one_thing_of_the_start(variant: str) -> None:
    start, choice = (
        read_recipe(CHOICES, AdapterRecipe, variant=name) for name in ("start", variant)
    )
    assert choice.data.split == "lesion-validation"
    changed = [
        (table, key)
        for table in ("data", "backbone", "adapters", "training", "evaluation")
        for key, value in getattr(choice, table)
        if value != getattr(getattr(start, table), key)
    ]
    beside = {("adapters", "min_rank"), ("training", "beta")}  # of the rank, of the class weights
    count = len(set(changed) - beside) + (choice.outliers != start.outliers)
    assert count == (variant != "start")


def test_the_paper_s_recipes_differ_in_what_the_paper_says(tmp_path: Path) -> None:
    recipes = {
        name: read_recipe(FOLDER / f"{name}.toml", AdapterRecipe)
        for name in ("cifar10", "cifar100", "ham10000")
    }
    assert {name: each.training.epochs for name, each in recipes.items()} == {
        "cifar10": 16,
        "cifar100": 16,
        "ham10000": 65,
    }
    weighted = [n for n, each in recipes.items() if each.training.class_weights != "none"]
    assert weighted == ["ham10000"]
    least = tmp_path / "least.toml"
    least.write_text(
        'name = "least"\n[data]\nkind = "imagefolder"\n'
        '[backbone]\nweights = "ViT_B_32_Weights.IMAGENET1K_V1"\n[training]\nepochs = 16\n'
        "workers = 8\nmicro_batch_rows = 128\n"
    )
    assert recipes["cifar10"].training == read_recipe(least, AdapterRecipe).training
    assert all(each.data.split == "paper" for each in recipes.values())


def test_a_recipe_replaces_keys_of_its_base_table_by_table(tmp_path: Path) -> None:
    base, path = tmp_path / "base.toml", tmp_path / "recipe.toml"
    base.write_text(
        '[data]\nkind = "imagefolder"\npath = "a"\n[backbone]\nweights = "b.safetensors"\n'
        "[training]\nepochs = 5\nbatch_size = 8\n[variants.short.training]\nepochs = 1\n"
    )
    path.write_text('base = "base.toml"\nname = "n"\n[data]\npath = "c"\n[training]\nepochs = 7\n')
    recipe = read_recipe(path, AdapterRecipe)
    assert (recipe.data.kind, recipe.data.path) == ("imagefolder", "c")
    assert (recipe.training.epochs, recipe.training.batch_size) == (7, 8)
    short = read_recipe(path, AdapterRecipe, ["training.batch_size=4"], "short")
    assert (short.training.epochs, short.training.batch_size) == (1, 4)
    assert (short.variant, short.overrides) == ("short", ("training.batch_size=4",))


def test_an_unknown_variant_names_those_there_are(recipe_file: Path) -> None:
    with pytest.raises(SettingsError, match="no variant 'lora-20'; it has none"):
        read_recipe(recipe_file, AdapterRecipe, variant="lora-20")
    with pytest.raises(SettingsError, match="no variant 'lora'; it has eulerlora-1, eulerlora-2"):
        read_recipe(FOLDER / "ham10000.toml", AdapterRecipe, variant="lora")


def test_a_recipe_based_on_itself_is_refused(tmp_path: Path) -> None:
    for name, base in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.toml").write_text(f'base = "{base}.toml"\n')
    with pytest.raises(SettingsError, match=r"a\.toml: is based on itself"):
        read_recipe(tmp_path / "a.toml", AdapterRecipe)


def test_what_the_command_line_sets_cannot_stand_in_a_recipe(recipe_file: Path) -> None:
    recipe_file.write_text('variant = "x"\n' + recipe_file.read_text())
    with pytest.raises(SettingsError, match="variant: is set on the command line"):
        read_recipe(recipe_file, AdapterRecipe)


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
    path = PRETRAINING[0]
    with pytest.raises(SettingsError, match="last stage"):
        read_recipe(path, PretrainingRecipe, ["backbone.image_size=256"])


def test_the_recipes_of_pretraining_differ_in_stages_alone() -> None:
    first, *others = (read_recipe(path, PretrainingRecipe) for path in PRETRAINING)
    assert others
    for other in others:
        same = {"name": first.name, "stages": first.stages}
        assert other.without_source.model_copy(update=same) == first.without_source


def test_how_a_recipe_was_asked_for_is_none_of_its_settings() -> None:
    path = FOLDER / "ham10000.toml"
    one, other = "training.epochs=3", "training.batch_size=8"
    asked = [
        read_recipe(path, AdapterRecipe, overrides, variant)
        for overrides in ((one, other), (other, one), (one, one, other))
        for variant in (None, "eulerlora-2")
    ]
    assert len({each.model_dump_json() for each in asked}) == len(asked)
    assert len({each.without_source.model_dump_json() for each in asked}) == 1
    different = read_recipe(path, AdapterRecipe, (one,))
    assert different.without_source != asked[0].without_source
