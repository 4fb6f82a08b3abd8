"""The schema of recipes: defaults and the packaged recipes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eulerlora.errors import SettingsError
from eulerlora.methods.eulerlora import EulerLoRASettings
from eulerlora.methods.registry import method_type
from training.recipe.file import RECIPES, find_recipe, read_recipe, recipe_names, variant_names
from training.recipe.pretraining import PretrainingRecipe
from training.recipe.schema import AdapterRecipe, WholeNetworkSettings
from training.tables.table import read_table

PACKAGED = [find_recipe(name) for name in recipe_names()]
PRETRAINING = [path for path in PACKAGED if "-pretrain" in path.stem]
CHOICES = ("dermoscopy-choices",)
STUDIES = [path for path in PACKAGED if path.stem.startswith("overfitting-")]
METHODS = [
    (path, name)
    for path in PACKAGED
    if path.stem not in CHOICES and path not in STUDIES
    for name in variant_names(path)
]


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
CHANGES: dict[str, Callable[[AdapterRecipe], bool]] = {
    "-four-samples": lambda recipe: recipe.training.samples == 4,
    "-adam-l2": lambda recipe: recipe.training.optimiser == "adam-l2",
    "-sigma-half": lambda recipe: recipe.adapters.scale == 0.5,
    "-steps-1": lambda recipe: recipe.adapters.steps == 1,
    "-steps-4": lambda recipe: recipe.adapters.steps == 4,
    "-kmin-1": lambda recipe: recipe.adapters.min_rank == 1,
    "-kmin-15": lambda recipe: recipe.adapters.min_rank == 15,
    "-input": lambda recipe: recipe.method == EulerLoRASettings(sides="input"),
    "-output": lambda recipe: recipe.method == EulerLoRASettings(sides="output"),
    "-last-layer": lambda recipe: getattr(recipe.posterior, "layers", None) == "last",
}


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
    adapters, whole = recipe.adapters, recipe.whole_network or WholeNetworkSettings()
    numbers = {
        "eulerlora": f"-{adapters.adapters}",
        "lora": f"-{adapters.rank}",
        "ensemble": f"-{adapters.rank}x{adapters.adapters}",
        "single": "",
        "l2": "",
        "explicit": f"-{whole.members}",
        "snapshots": f"-{whole.members}",
        **dict.fromkeys([*OTHER_METHODS, *POSTERIORS], f"-{adapters.adapters}"),
    }
    method = next(name for name in numbers if variant.startswith(name))
    change = next((ending for ending in CHANGES if variant.endswith(ending)), "")
    assert variant == f"{method}{numbers[method]}{change}"
    assert not change or CHANGES[change](recipe)
    assert recipe.method.name == OTHER_METHODS.get(method, "eulerlora")
    assert (recipe.posterior and recipe.posterior.name) == (
        method if method in POSTERIORS else None
    )
    assert (getattr(recipe.method, "law", None) == "fixed") == (method == "fixed-rank")
    assert (recipe.training.optimiser == "ivon") == (method == "ivon")
    assert (recipe.whole_network is not None) == (method in WHOLE_NETWORKS)
    assert (whole.ensemble == "snapshot") == (method == "snapshots")
    assert (whole.attention == "l2") == (method == "l2")
    assert (adapters.min_rank < adapters.rank) == (method == "eulerlora")
    assert recipe.training.samples == 1 or method_type(recipe.method).is_sampled(adapters)
    assert recipe.variant == variant


def test_compared_methods_with_the_same_number_of_adapters_have_the_same_budget() -> None:
    path = RECIPES / "ham10000-compact.toml"
    budgets = {
        (recipe.adapters.adapters, recipe.adapters.rank, recipe.training.model_dump_json())
        for recipe in (read_recipe(path, AdapterRecipe, variant=name) for name in COMPARED)
    }
    assert len(budgets) == 2
    assert {adapters for adapters, _, _ in budgets} == {1, 2}


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
    ("changes", "message"),
    [
        ({"training.adapter_dropout": 0.1, "training.micro_batch_rows": 8}, "adapter_dropout=0 wi"),
        (
            {"training.adapter_dropout": 0.1, "training.activation_checkpointing": "true"},
            "expected adapter_dropout=0 with",
        ),
        (
            {"training.adapter_dropout": 0.1, "method.name": "blob"},
            "adapter_dropout=0 with method blob",
        ),
        (
            {"method.name": "ivon"},
            "expected training.optimiser=ivon with method ivon, got training.opt",
        ),
        ({"training.optimiser": "ivon"}, "with method eulerlora, got training.optimiser=ivon"),
        (
            {"method.name": "ivon", "training.optimiser": "ivon", "training.weight_decay": 0},
            "a training.weight_decay above 0 with method ivon",
        ),
        (
            {"method.name": "ivon", "training.optimiser": "ivon", "training.adapter_dropout": 0.1},
            "adapter_dropout=0 with method ivon",
        ),
        (
            {"training.adapter_dropout": 0.1, "method.name": "dropkey"},
            "adapter_dropout=0 with method dropkey",
        ),
        (
            {"method.name": "blob", "posterior.name": "tfb"},
            "expected method eulerlora or rank-dropout and no whole_network with posterior, got me",
        ),
        (
            {"whole_network.members": 1, "posterior.name": "swag"},
            "and no whole_network with posterior, got whole_network",
        ),
        ({"posterior.name": "tfb", "posterior.steps": 3}, "posterior.tfb.steps"),
        ({"method.name": "sngp"}, "head=random with method sngp, got linear-probe"),
        (
            {
                "method.name": "sngp",
                "training.head": "random",
                "training.epochs": 0,
                "training.best_epoch": "false",
            },
            "epochs of at least 1 with method sngp",
        ),
        ({"method.name": "batch-ensemble"}, "rank=1 with method batch-ensemble, .* got 20"),
        (
            {"method.name": "last-layer-ensemble", "adapters.rank": 1, "adapters.min_rank": 1},
            "head=random or bootstrap-probes with method last-layer-ensemble",
        ),
        ({"training.sampling": "false", "training.samples": 4}, "expected samples=1 with sampling"),
        ({"data.split": "lesion"}, "expected data.split=lesion-best-epoch with .*metrics_by_epoch"),
        ({"training.epochs": 0, "training.best_epoch": "true"}, "epochs of at least 1"),
        ({"training.early_stop": 2}, "expected best_epoch=true with early_stop=2"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(
    changes: dict[str, object], message: str
) -> None:
    overrides = [f"{key}={value}" for key, value in changes.items()]
    with pytest.raises(SettingsError, match=message):
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


def test_the_defaults_follow_the_paper_but_for_length_and_head(tmp_path: Path) -> None:
    path = tmp_path / "minimal.toml"
    path.write_text('name = "minimal"\n[data]\nkind = "imagefolder"\n')
    recipe = read_recipe(path, AdapterRecipe)
    adapters, training = recipe.adapters, recipe.training
    assert (adapters.adapters, adapters.rank, adapters.min_rank) == (2, 20, 10)
    assert (adapters.steps, adapters.scale) == (2, 1.0)
    assert (training.learning_rate, training.weight_decay) == (1e-4, 0.01)
    assert (training.clip_norm, training.samples) == (1.0, 4)
    assert {training.epochs, training.batch_size, training.warmup_steps} == {"auto"}
    assert (training.head, recipe.backbone.weights) == ("linear-probe", "auto")
    assert (training.precision, training.loss) == ("float32", "trajectory")


def test_pretraining_must_end_at_the_image_size_of_the_backbone() -> None:
    path = PRETRAINING[0]
    with pytest.raises(SettingsError, match="last stage"):
        read_recipe(path, PretrainingRecipe, ["backbone.image_size=256"])


def test_a_recipe_for_a_gpu_has_the_data_of_the_one_for_a_cpu() -> None:
    for path in PRETRAINING:
        if path.stem.endswith("-gpu"):
            first = read_recipe(path.with_stem(path.stem.removesuffix("-gpu")), PretrainingRecipe)
            other = read_recipe(path, PretrainingRecipe)
            same = {"name": first.name, "stages": first.stages, "backbone": first.backbone}
            assert other.without_source.model_copy(update=same) == first.without_source
