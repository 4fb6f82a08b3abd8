"""training.datasets: labelled parts of an image folder."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from eulerlora.errors import DataError
from training.augment import evaluation_view
from training.datasets import Pictures, class_counts, read_dataset
from training.recipe import DataSettings

SETTINGS = DataSettings(kind="imagefolder", classes={"red": "a red square"})


@pytest.fixture
def labelled(image_folder: Path, tmp_path: Path) -> Path:
    """The image folder without the images that have no label."""
    folder = tmp_path / "labelled"
    shutil.copytree(image_folder, folder, ignore=shutil.ignore_patterns("other"))
    return folder


def test_given_parts_are_kept_and_a_tenth_of_train_calibrates(labelled: Path) -> None:
    data = read_dataset(SETTINGS, labelled)
    assert [each.name for each in data.classes] == ["blue", "green", "red"]
    assert data.classes[2].description == "a red square"
    assert {name: len(part) for name, part in data.parts.items()} == {
        "train": 54,
        "calibration": 6,
        "test": 18,
    }
    assert class_counts(data.parts["calibration"], 3).tolist() == [2, 2, 2]
    assert all(each.name.startswith("test/") for each in data.parts["test"])
    for part in data.parts.values():
        assert all(data.classes[each.label].name in each.name for each in part)


def test_class_folders_alone_are_split_once_and_for_all(labelled: Path) -> None:
    flat = labelled / "train"
    first, second = read_dataset(SETTINGS, flat), read_dataset(SETTINGS, flat)
    assert first.parts == second.parts
    assert class_counts(first.parts["test"], 3).tolist() == [4, 4, 4]
    names = Counter(each.name for part in first.parts.values() for each in part)
    assert len(names) == 60
    assert set(names.values()) == {1}


def test_a_folder_with_one_class_is_refused(labelled: Path) -> None:
    shutil.rmtree(labelled / "train" / "red")
    shutil.rmtree(labelled / "train" / "blue")
    with pytest.raises(DataError, match="two classes"):
        read_dataset(SETTINGS, labelled / "train")


def test_a_class_with_too_few_images_is_refused(labelled: Path) -> None:
    for path in sorted((labelled / "train" / "red").iterdir())[1:]:
        path.unlink()
    with pytest.raises(DataError, match="split by class"):
        read_dataset(SETTINGS, labelled)


def test_pictures_are_transformed_and_keep_their_labels(labelled: Path) -> None:
    part = read_dataset(SETTINGS, labelled).parts["test"]
    pictures = Pictures(part, evaluation_view(16))
    assert len(pictures) == 18
    for index, image in enumerate(part):
        pixels, label = pictures[index]
        assert pixels.shape == (3, 16, 16)
        assert label == image.label
        assert int(pixels.mean(dim=(1, 2)).argmax()) == [2, 1, 0][label]  # its colour's channel


def test_an_absent_class_counts_zero(labelled: Path) -> None:
    images = [each for each in read_dataset(SETTINGS, labelled).parts["test"] if each.label != 1]
    assert torch.equal(class_counts(images, 4), torch.tensor([6, 0, 6, 0]))
