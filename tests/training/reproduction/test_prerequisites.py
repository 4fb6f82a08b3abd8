"""Prerequisites of runs are listed if missing, and read before the first training."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchvision import datasets
from torchvision.models import ViT_B_32_Weights

from eulerlora.errors import CheckpointError, DataError, SettingsError
from tests.conftest import TinyPublished
from training.data.ham10000 import METADATA
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe
from training.reproduction import prerequisites
from training.reproduction.prerequisites import missing_inputs, read_inputs
from training.reproduction.table import RECIPES

URL = ViT_B_32_Weights.IMAGENET1K_V1.url


@pytest.fixture(autouse=True)
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    yield tmp_path / "torch" / "hub" / "checkpoints"


def recipe(name: str, *overrides: str) -> AdapterRecipe:
    return read_recipe(RECIPES / f"{name}.toml", AdapterRecipe, overrides)


def test_missing_published_weights_are_listed_with_url_hash_and_path(
    tmp_path: Path, empty_hub_cache: Path
) -> None:
    weights, *_ = missing_inputs(recipe("ham10000"), RECIPES, tmp_path)
    file_name = Path(URL).name
    hash_prefix = Path(URL).stem.rpartition("-")[2]
    assert f"fetch {URL}, whose SHA-256 begins {hash_prefix}," in weights
    assert f"put it at {empty_hub_cache / file_name}" in weights


def test_missing_ham10000_files_are_listed_with_their_path(tmp_path: Path) -> None:
    _, *images = missing_inputs(recipe("ham10000"), RECIPES, tmp_path)
    assert images == [
        f"HAM10000: {tmp_path / METADATA}",
        f"HAM10000: {tmp_path} with HAM10000_images_part_1, HAM10000_images_part_2, "
        "HAM10000_images or ham10000*.tar*",
    ]
    (tmp_path / METADATA).touch()
    (tmp_path / "HAM10000_images_part_1").mkdir()
    assert len(missing_inputs(recipe("ham10000"), RECIPES, tmp_path)) == 1


def test_missing_tiny_imagenet_is_listed_with_its_path(tmp_path: Path) -> None:
    overrides = ("data.kind=tiny-imagenet", "data.path=tiny", "evaluation.ood=[]")
    _, *images = missing_inputs(recipe("cifar10", *overrides), RECIPES, tmp_path)
    assert images == [f"Tiny ImageNet: {tmp_path / 'tiny' / 'words.txt'}"]


def test_missing_torchvision_sets_are_listed_with_their_urls(tmp_path: Path) -> None:
    _, *images = missing_inputs(recipe("cifar10", "data.path=here"), RECIPES, tmp_path)
    svhn = [datasets.SVHN.split_list[part][0] for part in ("train", "test")]
    assert images == [
        f"cifar10: download {datasets.CIFAR10.url} to {tmp_path / 'here'}",
        *(f"svhn: download {url} to {tmp_path}" for url in svhn),
    ]


def test_a_downloaded_archive_is_missing_only_if_its_digest_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, archive = datasets.CIFAR100, tmp_path / datasets.CIFAR100.filename
    archive.write_bytes(b"as published")
    assert len(missing_inputs(recipe("cifar100"), RECIPES, tmp_path)) == 2
    monkeypatch.setattr(reader, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    assert len(missing_inputs(recipe("cifar100"), RECIPES, tmp_path)) == 1


def test_nothing_is_listed_if_all_inputs_exist(
    recipe_file: Path, image_folder: Path, tiny_published: TinyPublished
) -> None:
    local = read_recipe(recipe_file, AdapterRecipe)
    published = read_recipe(recipe_file, AdapterRecipe, [f"backbone.weights={tiny_published.name}"])
    for recipe_variant in (local, published):
        assert missing_inputs(recipe_variant, recipe_file.parent, image_folder) == []


def test_a_missing_backbone_file_and_missing_images_are_listed(
    recipe_file: Path, image_folder: Path
) -> None:
    overrides = ["backbone.weights=absent.safetensors", "data.path=gone", "evaluation.ood=[]"]
    absent = read_recipe(recipe_file, AdapterRecipe, overrides)
    assert missing_inputs(absent, recipe_file.parent, image_folder) == [
        f"the backbone {recipe_file.parent / 'absent.safetensors'}",
        f"the images {image_folder / 'gone'}",
    ]


def test_a_file_for_published_weights_replaces_the_cache(tmp_path: Path) -> None:
    with_file = recipe("ham10000", "backbone.file=fetched.pth")
    assert (
        missing_inputs(with_file, tmp_path, tmp_path)[0]
        == f"the backbone {tmp_path / 'fetched.pth'}"
    )
    (tmp_path / "fetched.pth").touch()
    assert not any("backbone" in line for line in missing_inputs(with_file, tmp_path, tmp_path))


def test_unknown_published_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"expected published weights among .*, got 'ViT_B_99'"):
        missing_inputs(recipe("ham10000", "backbone.weights=ViT_B_99"), RECIPES, tmp_path)


def test_shared_inputs_are_read_once(
    recipe_file: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    for name in ("read_backbone", "read_dataset", "read_ood_set"):
        original = getattr(prerequisites, name)

        def counted(*arguments, name=name, original=original):
            read.append(name)
            return original(*arguments)

        monkeypatch.setattr(prerequisites, name, counted)
    seeds = [read_recipe(recipe_file, AdapterRecipe, [f"seed={seed}"]) for seed in range(3)]
    read_inputs([(seeded, recipe_file.parent) for seeded in seeds], image_folder)
    assert sorted(read) == ["read_backbone", "read_dataset", "read_ood_set"]


def test_outliers_are_listed_and_read(recipe_file: Path, image_folder: Path) -> None:
    outliers = read_recipe(recipe_file, AdapterRecipe, ["outliers.path=strange"])
    assert missing_inputs(outliers, recipe_file.parent, image_folder) == [
        f"the images {image_folder / 'strange'}"
    ]
    with pytest.raises(DataError, match="strange"):
        read_inputs([(outliers, recipe_file.parent)], image_folder)


@pytest.mark.parametrize("name", ["train/red/03.png", "other/3.png"])
def test_an_undecodable_image_is_an_error_before_any_run(
    recipe_file: Path, image_folder: Path, tmp_path: Path, name: str
) -> None:
    data = Path(shutil.copytree(image_folder, tmp_path / "data"))
    (data / name).write_bytes(b"broken")
    with pytest.raises(DataError, match=name):
        read_inputs([(read_recipe(recipe_file, AdapterRecipe), recipe_file.parent)], data)


def test_a_broken_backbone_file_is_an_error_before_any_run(
    recipe_file: Path, image_folder: Path
) -> None:
    (recipe_file.parent / "backbone.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"backbone\.safetensors"):
        read_inputs([(read_recipe(recipe_file, AdapterRecipe), recipe_file.parent)], image_folder)
