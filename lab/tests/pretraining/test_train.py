"""Pretraining of a backbone on two data sets: its batches, its states and what it writes."""

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from eulerlora.checkpoint.weights import load_backbone, tensors_sha256
from eulerlora_contract.errors import DataError, OutputPathError, SettingsError
from eulerlora_lab.pretraining.classifier import ClassifierObjective
from eulerlora_lab.pretraining.recipe import PretrainingRecipe
from eulerlora_lab.pretraining.train import pretrain, stage_state_file
from training.recipe.file import find_recipe, read_recipe

CPU = torch.device("cpu")
RECIPES = Path(__file__).parents[2] / "eulerlora_lab" / "pretraining" / "recipes"
RECIPE_TEXT = """
name = "tiny-pretrain"
stored = "float16"
[[data]]
kind = "imagefolder"
path = "squares"
split = "paper"
[[data]]
kind = "imagefolder"
path = "two"
[backbone]
image_size = 32
patch_size = 8
layers = 2
heads = 2
width = 16
mlp_width = 24
[[stages]]
image_size = 16
epochs = 2
batch_size = 8
learning_rate = 1e-2
warmup_steps = 2
ema_decay = 0.9
stochastic_depth = 0.1
label_smoothing = 0.1
workers = 0
[[stages]]
image_size = 32
epochs = 2
batch_size = 8
learning_rate = 1e-2
warmup_steps = 2
ema_decay = 0.9
workers = 0
"""


def recipe_of(folder: Path, *overrides: str) -> PretrainingRecipe:
    path = folder / "tiny.toml"
    path.write_text(RECIPE_TEXT)
    return read_recipe(path, PretrainingRecipe, overrides)


def link_data(images: Path, data: Path) -> Path:
    """Creates a data directory: `squares` with three classes, and `two` with two of them."""
    for name, classes in (("squares", ("blue", "green", "red")), ("two", ("blue", "red"))):
        for part in ("train", "test"):
            (data / name / part).mkdir(parents=True)
            for folder in classes:
                (data / name / part / folder).symlink_to(images / part / folder)
    return data


@pytest.fixture(scope="module")
def data(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_data(image_folder, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def pretrained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "out"
    pretrain(recipe_of(data), data, out, CPU)
    return out / "backbone.safetensors"


def weights(path: Path) -> str:
    return tensors_sha256(load_backbone(path).backbone.state_dict())


def test_pretraining_writes_a_backbone_of_the_shape_of_the_recipe_with_provenance(
    data: Path, pretrained: Path
) -> None:
    file = load_backbone(pretrained)
    facts, recipe = file.provenance, recipe_of(data)
    assert file.backbone.settings == recipe.backbone
    assert facts["recipe"]["name"] == "tiny-pretrain"
    assert facts["data"] == "squares, image folder, paper split; two, image folder"
    assert facts["sha256"] == weights(pretrained)
    assert [stage["steps"] for stage in facts["stages"]] == [2 * 12, 2 * 12]
    assert facts["images_seen"] == 2 * 2 * (60 + 36)
    assert facts["seconds"] == pytest.approx(sum(stage["seconds"] for stage in facts["stages"]))
    assert facts["skipped"] == {"count": 0, "names": []}
    assert [*facts["top_one"].values()] == [1.0, 1.0]
    assert list(pretrained.parent.iterdir()) == [pretrained]


class StoppedError(Exception):
    """Ends a run at a given step like a crash."""


@pytest.mark.parametrize(("stage", "step"), [(0, 20), (1, 0), (1, 23)])
def test_a_resumed_pretraining_gives_the_same_weights(
    data: Path,
    pretrained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: int,
    step: int,
) -> None:
    recipe = recipe_of(data, f"stages.{stage}.state_every_s=0")
    steps: list[tuple[int, int]] = []

    def stop(objective: ClassifierObjective, seed: int, at: int, process: int) -> tuple[int, ...]:
        steps.append((seed, at))  # the seed of stage n is n
        if stopping and steps[-1] == (stage, step):
            raise StoppedError
        return draw(objective, seed, at, process)

    draw, stopping = ClassifierObjective.draw, True
    monkeypatch.setattr(ClassifierObjective, "draw", stop)
    with pytest.raises(StoppedError):
        pretrain(recipe, data, tmp_path, CPU)
    stopping = False
    torch.rand(3)  # changes the global generator
    pretrain(recipe, data, tmp_path, CPU, resume=True)
    assert len(steps) == 2 * 2 * 12 + 1  # no step is taken twice
    assert weights(tmp_path / pretrained.name) == weights(pretrained)
    assert not stage_state_file(tmp_path, 0).exists()


def test_states_of_finished_stages_remain_until_the_backbone_is_written(
    data: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr("eulerlora_lab.pretraining.train.save_backbone", crash)
        with pytest.raises(OSError, match="disk is full"):
            pretrain(recipe_of(data), data, tmp_path, CPU)
    assert all(stage_state_file(tmp_path, stage).exists() for stage in (0, 1))

    def step(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(ClassifierObjective, "loss", step)
    with pytest.raises(OutputPathError, match="--restart"):
        pretrain(recipe_of(data), data, tmp_path, CPU)
    other = Path(shutil.copytree(data, tmp_path / "other"))
    picture = other / "two" / "train" / "red" / "00.png"
    picture.rename(other / "two" / "train" / "blue" / "99.png")
    with pytest.raises(DataError, match="stage-1"):
        pretrain(recipe_of(other), other, tmp_path, CPU, resume=True)
    pretrain(recipe_of(data), data, tmp_path, CPU, resume=True)
    assert weights(tmp_path / pretrained.name) == weights(pretrained)


def test_unlabelled_images_take_part_and_a_convolutional_stem_is_stored_without_norms(
    data: Path, image_folder: Path, tmp_path: Path
) -> None:
    (data / "pictures").symlink_to(image_folder)
    recipe = recipe_of(
        data,
        'unlabelled=[{ kind = "images", path = "pictures" }]',
        "backbone.stem=convolution",
        "stages.0.repeats=[1, 0, 2]",
        "stages.1.epochs=1",
    )
    pretrain(recipe, data, tmp_path, CPU)
    file = load_backbone(tmp_path / "backbone.safetensors")
    assert file.backbone.settings.stem == "convolution"
    assert not any("running" in name for name in file.backbone.state_dict())
    assert [stage["images"] for stage in file.provenance["stages"]] == [
        2 * (60 + 2 * 60),
        60 + 36 + 60,
    ]
    assert file.provenance["data"].endswith(f"; {image_folder.name}")


def test_training_continues_from_a_backbone_file(
    data: Path, pretrained: Path, tmp_path: Path
) -> None:
    """With the least rates nothing but rounding changes: the file is that of the start."""
    (data / "start.safetensors").write_bytes(pretrained.read_bytes())
    text = RECIPE_TEXT.replace("[backbone]", "[unused]").split("[unused]")
    stages = text[1][text[1].index("[[stages]]") :]
    path = tmp_path / "from.toml"
    path.write_text('start = "start.safetensors"\n' + text[0] + stages)
    still = [f"stages.{stage}.learning_rate=1e-30" for stage in (0, 1)]
    recipe = read_recipe(path, PretrainingRecipe, [*still, "stages.0.image_size=32"])
    pretrain(recipe, data, tmp_path, CPU)
    file = load_backbone(tmp_path / pretrained.name)
    assert weights(tmp_path / pretrained.name) == weights(pretrained)
    assert file.provenance["start"] == load_backbone(pretrained).provenance
    with pytest.raises(SettingsError, match="backbone"):
        recipe_of(tmp_path, "start=start.safetensors")
    path.write_text(text[0] + stages)
    with pytest.raises(SettingsError, match="start"):
        read_recipe(path, PretrainingRecipe)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.toml")))
def test_every_packaged_recipe_is_valid_and_states_its_command(name: str) -> None:
    path = find_recipe(name, RECIPES)
    read_recipe(path, PretrainingRecipe)
    assert f"eulerlora pretrain {name} " in path.read_text()


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("stages.0.micro_batch_rows=4", "stochastic_depth"),
        ("stages.1.image_size=24", "last stage"),
        ("stages.0.repeats=[1]", "each of the 2 sets"),
        ("stages.0.repeats=[0, 0]", "one of them positive"),
        ('unlabelled=[{ kind = "video" }]', "unlabelled"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_key(
    tmp_path: Path, override: str, named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        recipe_of(tmp_path, override)


def test_bad_images_are_skipped_and_recorded_on_request(image_folder: Path, tmp_path: Path) -> None:
    for name in ("squares", "two"):
        for part in ("train", "test"):
            shutil.copytree(image_folder / part, tmp_path / name / part)
    (tmp_path / "two" / "train" / "red" / "03.png").write_bytes(b"broken")
    recipe = recipe_of(tmp_path, "stages.0.epochs=1", "stages.1.epochs=1")
    with pytest.raises(DataError, match=r"two/train/red/03\.png"):
        pretrain(recipe, tmp_path, tmp_path / "out", CPU)
    pretrain(recipe, tmp_path, tmp_path / "out", CPU, skip_bad=True)
    facts = load_backbone(tmp_path / "out" / "backbone.safetensors").provenance
    assert facts["skipped"] == {"count": 1, "names": ["two/train/red/03.png"]}


@pytest.mark.slow
def test_timeout_ends_the_command_which_says_how_to_continue(data: Path, tmp_path: Path) -> None:
    recipe_of(data)
    program = [
        *("-c", "from eulerlora_lab.pretraining.commands import pretrain_command as c; c()"),
        *(str(data / "tiny.toml"), "--data", str(data), "--out", str(tmp_path), "--device", "cpu"),
        *("--set", "stages.0.epochs=1000000", "--set", "stages.0.state_every_s=0"),
    ]
    process = subprocess.Popen([sys.executable, *program], stderr=subprocess.PIPE, text=True)
    state = stage_state_file(tmp_path, 0)
    while not state.exists():
        assert process.poll() is None
    process.terminate()
    _, error = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert f"is stored in {state}; use --resume to continue" in error


def write_pictures(folder: Path, levels: Sequence[int]) -> None:
    """A class for each gray level, with a picture in each part; that of the test is wider."""
    for part, width in (("train", 32), ("test", 33)):
        for level in levels:
            path = folder / part / ("a" * (level + 1)) / f"{level}.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (width, 32), (level,) * 3).save(path)


Batches = Callable[..., tuple[list[tuple[Tensor, Tensor]], int]]


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Pixels and labels of an epoch on 17 classes and on 10 others, and its number of images."""
    write_pictures(tmp_path / "squares", range(17))
    write_pictures(tmp_path / "two", range(17, 27))

    def trained(*overrides: str) -> tuple[list[tuple[Tensor, Tensor]], int]:
        shown: list[tuple[Tensor, Tensor]] = []
        loss = ClassifierObjective.loss

        def recorded(
            objective: ClassifierObjective, network: Any, images: Tensor, labels: Tensor, draw: Any
        ) -> Tensor:
            present = labels >= 0
            shown.append((images[present], labels[present]))
            return loss(objective, network, images, labels, draw)

        monkeypatch.setattr(ClassifierObjective, "loss", recorded)
        path = tmp_path / "tiny.toml"
        text = RECIPE_TEXT.replace('path = "two"', 'path = "two"\nsplit = "paper"')
        head, _, stage = text.split("[[stages]]")
        path.write_text(f"{head}[[stages]]{stage}")
        recipe = read_recipe(path, PretrainingRecipe, ["stages.0.epochs=1", *overrides])
        pretrain(recipe, tmp_path, tmp_path / "out", CPU)
        (of_stage,) = load_backbone(tmp_path / "out" / "backbone.safetensors").provenance["stages"]
        return shown, of_stage["images"]

    return trained


def levels(pixels: Tensor) -> list[int]:
    return (255 * pixels.mean(dim=(1, 2, 3))).round().int().tolist()


@pytest.mark.parametrize("repeats", [(1, 1), (0, 3), (2, 1)])
def test_an_epoch_repeats_the_images_of_a_set_as_often_as_it_says_with_their_labels(
    repeats: tuple[int, int], batches: Batches
) -> None:
    shown, images = batches(f"stages.0.repeats={list(repeats)}")
    seen: Counter[int] = Counter()
    for pixels, labels in shown:
        assert levels(pixels) == labels.tolist()
        seen.update(labels.tolist())
    assert seen == {label: repeats[label >= 17] for label in range(27) if repeats[label >= 17]}
    assert images == seen.total()


def test_every_unlabelled_image_has_two_different_views_in_a_batch(
    batches: Batches, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "noise").mkdir()
    for number in range(9):
        pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "noise" / f"{number}.png")
    shown, images = batches('unlabelled=[{ kind = "images", path = "noise" }]')
    assert images == 27 + 9
    seen = []
    for pixels, labels in shown:
        for label in labels[labels >= 27].unique():
            first, second = pixels[labels == label]
            assert not torch.equal(first, second)
            seen.append(int(label))
    assert sorted(seen) == list(range(27, 36))


def test_a_finished_backbone_is_neither_replaced_nor_trained_again_without_a_flag(
    data: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(pretrained.parent, tmp_path / "out"))
    content = (out / pretrained.name).read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("eulerlora_lab.pretraining.train.read_dataset", pytest.fail)
        with pytest.raises(SettingsError, match="--restart"):
            pretrain(recipe_of(data), data, out, CPU)
        with pytest.raises(SettingsError, match="another one"):
            pretrain(recipe_of(data, "seed=1"), data, out, CPU, resume=True)
        pretrain(recipe_of(data, "name='tiny-pretrain'"), data, out, CPU, resume=True)
    assert (out / pretrained.name).read_bytes() == content
    pretrain(recipe_of(data, "seed=1"), data, out, CPU, restart=True)
    assert weights(out / pretrained.name) != weights(pretrained)
