"""A tiny image folder, a tiny backbone file, and a recipe that trains on them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eulerlora.checkpoint.files import read_config
from eulerlora.checkpoint.weights import save_backbone
from eulerlora.images.preprocess import network_input
from eulerlora.settings import Preprocessing
from eulerlora_contract.output_files import write_text
from tests.checkpoint_files import write_config
from tests.conftest import random_backbone
from training.data.cache import DecodedImages, decoded_images
from training.data.units import Units

COLOURS = {"blue": (40, 40, 220), "green": (40, 200, 40), "red": (220, 40, 40)}
PER_CLASS = {"train": 20, "test": 6}

RECIPE = """\
name = "tiny-run"
seed = 3
stored = "float16"
[data]
kind = "imagefolder"
[data.classes]
blue = "blue"
green = "green"
red = "a red square"
[backbone]
weights = "backbone.safetensors"
[adapters]
adapters = 2
rank = 4
min_rank = 2
[training]
epochs = 1
batch_size = 8
learning_rate = 3e-2
warmup_steps = 2
samples = 2
head = "random"
workers = 0
[evaluation]
samples = 2
ood = [{ kind = "images", path = "other" }]
"""

METADATA = "HAM10000_metadata.csv"


def write_training_images(folder: Path, content: bytes) -> None:
    """Gives a checkpoint this `training_images.safetensors`, with its digest."""
    (folder / "training_images.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    config = read_config(folder).model_copy(update={"training_images_sha256": digest})
    write_config(folder, config)


@pytest.fixture(scope="session", autouse=True)
def undrawn_charts() -> Iterator[None]:
    """Writes the texts of a report's charts, whose drawing takes longer than a tiny training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.reporting.report.write_figure", _write_texts)
        yield


def _write_texts(figure: Any, path: Path) -> None:
    texts = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    write_text(path, "\n".join(text.get_text() for text in texts))


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/ and test/ of three noisy colours, and a folder other/."""
    folder = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for part, count in PER_CLASS.items():
        for name, colour in COLOURS.items():
            class_folder = folder / part / name
            class_folder.mkdir(parents=True)
            for index in range(count):
                write_image(class_folder / f"{index:02}.png", colour, noise)
    (folder / "other").mkdir()
    for index in range(5):
        write_image(folder / "other" / f"{index}.png", (128, 128, 128), noise)
    return folder


@pytest.fixture(scope="session")
def labelled(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with train/ and test/ in `set`, and the folder `other`."""
    data = tmp_path_factory.mktemp("data")
    (data / "set").mkdir()
    for part in ("train", "test"):
        (data / "set" / part).symlink_to(image_folder / part)
    (data / "other").symlink_to(image_folder / "other")
    return data


@pytest.fixture(scope="session")
def ham10000_table(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The published table of HAM10000, with one grey pixel in place of each image."""
    folder = tmp_path_factory.mktemp("ham10000")
    (folder / "HAM10000_images").mkdir()
    table = (real_data / METADATA).read_text()
    (folder / METADATA).write_text(table)
    names = [line.split(",")[1] for line in table.splitlines()[1:]]
    images = DecodedImages(dict.fromkeys(names, torch.zeros(3, 1, 1, dtype=torch.uint8)), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "training.data.ham10000.decoded_images",
            lambda path: images if path.is_relative_to(folder) else decoded_images(path),
        )
        yield folder


def list_images(folder: Path) -> dict[str, Path]:
    """The images below a folder by relative name, sorted."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.png")}
    return dict(sorted(files.items()))


def write_image(path: Path, colour: tuple[int, int, int], noise: np.random.Generator) -> None:
    pixels = np.array(colour) + noise.integers(-40, 36, (36, 48, 3))
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def set_options(settings: Iterable[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def write_recipe(folder: Path) -> Path:
    save_backbone(folder / "backbone.safetensors", random_backbone(), {}, torch.float16)
    path = folder / "tiny.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


def plain_view(size: int) -> Callable[[int, torch.Tensor], torch.Tensor]:
    return lambda _, pixels: network_input(pixels, Preprocessing(size=size))


def units_of(lesions: Sequence[object], groups: Sequence[object] | None = None) -> Units:
    """The units of images by their lesions, each of one group; labels do not matter."""
    _, first, indices = np.unique(list(lesions), return_index=True, return_inverse=True)
    names = np.asarray(list(lesions if groups is None else groups))[first]
    of_lesions = np.unique(names, return_inverse=True)[1]
    return Units(indices, np.zeros(len(first), np.int64), of_lesions, "lesion")
