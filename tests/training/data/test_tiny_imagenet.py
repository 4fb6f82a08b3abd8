"""The publisher's layout."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eulerlora.errors import DataError
from training.data.datasets import read_dataset
from training.data.public_sets import read_tiny_imagenet
from training.recipe.schema import DataSettings

SETTINGS = DataSettings(kind="tiny-imagenet", path="tiny", split="paper")
COLOURS = {"n02": 200, "n01": 40}  # gray, as some of the published images are


def write(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((64, 64), level, dtype=np.uint8)).save(path, format="JPEG")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with two classes of Tiny ImageNet in `tiny`; one image in `test` is broken."""
    folder = tmp_path / "tiny"
    for wnid, level in COLOURS.items():
        for index in range(3):
            write(folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG", level)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t9\t9\n")
    for index, wnid in enumerate(("n02", "n01", "n02")):
        write(folder / "val" / "images" / f"val_{index}.JPEG", COLOURS[wnid])
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\nval_2.JPEG\tn02\t1\t1\t2\t2\n"
    )
    (folder / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\n")
    (folder / "test" / "images").mkdir(parents=True)
    (folder / "test" / "images" / "test_0.JPEG").write_bytes(b"broken")
    return tmp_path


def test_labels_come_from_folders_and_from_the_annotations(data: Path) -> None:
    images = read_dataset(SETTINGS, data)
    assert images.name == "Tiny ImageNet, paper split"
    assert [(each.name, each.description) for each in images.classes] == [
        ("n01", "goldfish, Carassius auratus"),
        ("n02", "n02"),
    ]
    assert {name: len(part) for name, part in images.parts.items()} == {"train": 6, "test": 3}
    for part in images.parts.values():
        for each in part:
            level = COLOURS[images.classes[each.label].name]
            assert each.source.shape == (3, 64, 64)
            assert abs(int(each.source.float().mean()) - level) < 3
    assert [each.label for each in images.parts["test"]] == [1, 0, 1]


def test_an_image_of_an_unknown_class_is_refused_or_left_out(data: Path) -> None:
    annotations = data / "tiny" / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text().replace("n01", "n09"))
    with pytest.raises(DataError, match=r"val/images/val_1\.JPEG: its class .* n09"):
        read_dataset(SETTINGS, data)
    images = read_dataset(SETTINGS, data, skip_bad=True)
    assert list(images.skipped) == ["val/images/val_1.JPEG"]
    assert [each.label for each in images.parts["test"]] == [1, 1]


def test_an_image_that_does_not_open_is_refused_or_left_out(data: Path) -> None:
    broken = "train/n01/images/n01_1.JPEG"
    (data / "tiny" / broken).write_bytes(b"broken")
    with pytest.raises(DataError, match=r"train/n01/images/n01_1\.JPEG"):
        read_dataset(SETTINGS, data)
    images = read_dataset(SETTINGS, data, skip_bad=True)
    assert list(images.skipped) == [broken]
    assert len(images.parts["train"]) == 5


@pytest.mark.parametrize("absent", ["words.txt", "val/val_annotations.txt"])
def test_a_missing_table_is_named(data: Path, absent: str) -> None:
    (data / "tiny" / absent).unlink()
    with pytest.raises(DataError, match=Path(absent).name):
        read_tiny_imagenet(data / "tiny")
