"""Recipe files: names, bases, variants, overrides and errors.

The keys of a recipe are described, documented and shown with what sets them.
"""

import tomllib
from pathlib import Path

import pytest

from eulerlora_contract.errors import SettingsError
from tests.program import run, succeed
from tests.training.conftest import set_options
from training.recipe.file import find_recipe, read_recipe
from training.recipe.schema import AdapterRecipe


def test_a_packaged_recipe_is_found_by_its_name_and_a_file_by_its_path(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "eulerlora train imagefolder" in find_recipe("imagefolder").read_text()
    assert find_recipe(str(recipe_file)) == recipe_file
    monkeypatch.chdir(recipe_file.parent)
    assert find_recipe("tiny.toml") == Path("tiny.toml")
    recipe_file.rename("imagefolder")
    assert find_recipe("imagefolder") == Path("imagefolder")


def test_an_unknown_recipe_name_is_refused_with_the_names_of_complete_recipes() -> None:
    with pytest.raises(SettingsError, match=r"imagefolder, .*got 'image-folder'") as refused:
        find_recipe("image-folder")
    names = set(str(refused.value).partition("one of ")[2].partition(", got")[0].split(", "))
    assert {"cifar10", "dermoscopy", "imagefolder"} < names
    assert not {"methods", "paper"} & names


def test_a_recipe_replaces_keys_of_its_base_recursively(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=1", "unknown key training.epoch; did you mean training.epochs?"),
        ("data.at_most={train=0}", "data.at_most.train: "),
        ("evaluation.ood=[{kynd='images'}]", "missing key evaluation.ood.0.kind"),
        ("training.epochs=many", "training.epochs: expected an integer or 'auto', got 'many'"),
        ("adapters.min_rank=5", "adapters: "),
        ("name.deeper=1", "--set name.deeper=1: "),
        (
            "training.metrics_by_epoch=true",
            "--set training.metrics_by_epoch=true: expected data.split=lesion-best-epoch",
        ),
        ("training.3=1", "unknown key training.3"),
        ("epochs", "got 'epochs'"),
    ],
)
def test_an_invalid_override_is_refused_with_key_and_value(
    recipe_file: Path, override: str, message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_recipe(recipe_file, AdapterRecipe, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["name = ", "\xff", ""])
def test_an_unreadable_recipe_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"broken\.toml"):
        read_recipe(path, AdapterRecipe)


@pytest.mark.parametrize(
    ("text", "variant", "named"),
    [
        ('base = "cycle.toml"\n', None, "cycle"),
        ('variant = "x"\n', None, "variant"),
        ("", "lora-20", "'lora-20'"),
        ("[variants.short]\n", "long", "short"),
        ("variants = 1\n", None, "variants"),
        ("variants.short = 1\n", "short", "variants"),
        ('base = "\\u0000"\n', None, "x00"),
        (f'base = "{"x" * 1000}"\n', None, "xxx"),
        (None, None, "cycle.toml"),
    ],
)
def test_a_recipe_that_cannot_be_selected_is_refused(
    tmp_path: Path, text: str | None, variant: str | None, named: str
) -> None:
    path = tmp_path / "cycle.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=named):
        read_recipe(find_recipe(str(path)), AdapterRecipe, variant=variant)


def test_a_shown_recipe_names_what_sets_each_value() -> None:
    overrides = set_options(("training.epochs=3", "evaluation.ood=[]"))
    done = succeed("train", "ham10000", "--show", "--variant", "lora-20", *overrides)
    lines = done.out.splitlines()
    sources = {line.split()[0]: line.rpartition("  # ")[2] for line in lines if "=" in line}
    assert sources["training.epochs"] == "command line"
    assert sources["evaluation.ood"] == "command line"
    assert sources["evaluation.calibrated"] == "variant lora-20"
    assert sources["training.beta"] == "ham10000.toml"
    assert sources["training.head"] == "paper.toml"
    assert sources["training.state_every_s"] == "default"
    (at,) = (n for n, line in enumerate(lines) if line.startswith("training.state_every_s"))
    assert lines[at - 1].startswith("# ")


@pytest.mark.parametrize("name", ["imagefolder", "dermoscopy", "cifar10"])
def test_a_shown_recipe_is_the_recipe(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.toml"
    path.write_text(succeed("train", name, "--show").out)
    assert tomllib.loads(path.read_text())
    original = read_recipe(find_recipe(name), AdapterRecipe)
    assert read_recipe(path, AdapterRecipe).without_source == original.without_source


def test_show_needs_no_data_and_prints_the_sources(recipe_file: Path) -> None:
    done = succeed("train", recipe_file, "--show", "--seed", "7", "--ignore-columns")
    assert "seed = 7" in done.out
    assert "data.ignore_columns = true" in done.out
    assert "# tiny.toml" in done.out
    assert run("train", recipe_file, "--show", "--set", "training.epoch=1").status == 1


@pytest.mark.parametrize("name", ["imagefolder", "dermoscopy", "cifar10"])
def test_the_least_rank_follows_the_rank_unless_stated(name: str) -> None:
    def ranks(*overrides: str) -> tuple[int, int]:
        adapters = read_recipe(find_recipe(name), AdapterRecipe, overrides).adapters
        return adapters.rank, adapters.min_rank

    assert ranks() == (20, 10)
    assert ranks("adapters.rank=5") == (5, 3)
    assert ranks("adapters.rank=5", "adapters.min_rank=5") == (5, 5)


def test_a_recipe_may_be_based_on_a_packaged_one_by_name(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('base = "imagefolder"\nname = "own"\n[data.classes]\na = "first"\nb = "b"\n')
    recipe = read_recipe(path, AdapterRecipe)
    assert (recipe.name, recipe.data.classes["a"]) == ("own", "first")
    assert recipe.training == read_recipe(find_recipe("imagefolder"), AdapterRecipe).training
