"""Tiny ImageNet, CIFAR-10, CIFAR-100 and SVHN from small files in their published formats."""

import hashlib
import pickle
import tarfile
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from eulerlora_client.errors import DataError
from tests.training.conftest import plain_view
from training.data.datasets import read_dataset, read_ood_set
from training.data.images import class_counts
from training.data.public_sets import read_tiny_imagenet
from training.fit.batches import ImageDataset
from training.recipe.schema import DataSettings, OodSettings

COUNTS = {"cifar10": (10, 20, 10), "cifar100": (100, 10, 1), "svhn": (10, 20, 3)}
"""Classes, and images per class in the train and test parts."""

Arrays = dict[str, tuple[np.ndarray[Any, Any], list[int]]]


@pytest.fixture(params=COUNTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def arrays(kind: str) -> Arrays:
    """(n, 3, 32, 32) random pixels, and labels, of both parts."""
    noise = np.random.default_rng(0)
    classes, train, test = COUNTS[kind]
    return {
        part: (
            noise.integers(0, 256, (classes * count, 3, 32, 32), dtype=np.uint8),
            list(range(classes)) * count,
        )
        for part, count in (("train", train), ("test", test))
    }


@pytest.fixture
def published(kind: str, arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The published files with other content; torchvision expects their digests."""
    folder = tmp_path / "published"
    folder.mkdir()
    if kind == "svhn":
        write_svhn(folder, arrays, monkeypatch)
    else:
        write_cifar(folder, READERS[kind], arrays, monkeypatch)
    return folder


READERS = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}


def write_cifar(folder: Path, reader: Any, arrays: Arrays, patch: pytest.MonkeyPatch) -> None:
    base = folder / reader.base_folder
    base.mkdir()
    labels_key = "labels" if reader is datasets.CIFAR10 else "fine_labels"
    for part, files in (("train", "train_list"), ("test", "test_list")):
        pixels, labels = arrays[part]
        names = [name for name, _ in getattr(reader, files)]
        shares = np.array_split(np.arange(len(labels)), len(names))
        known = []
        for name, share in zip(names, shares, strict=True):
            batch = {
                "data": pixels[share].reshape(-1, 3072),
                labels_key: [labels[i] for i in share],
            }
            (base / name).write_bytes(pickle.dumps(batch))
            known.append([name, md5(base / name)])
        patch.setattr(reader, files, known)
    meta = base / reader.meta["filename"]
    classes = len(set(arrays["train"][1]))
    meta.write_bytes(pickle.dumps({reader.meta["key"]: [f"class-{i}" for i in range(classes)]}))
    patch.setattr(reader, "meta", reader.meta | {"md5": md5(meta)})


def write_svhn(folder: Path, arrays: Arrays, patch: pytest.MonkeyPatch) -> None:
    known = {}
    for part, (pixels, labels) in arrays.items():
        url, name, _ = datasets.SVHN.split_list[part]
        digits = np.array([[label or 10] for label in labels], dtype=np.uint8)
        savemat(folder / name, {"X": pixels.transpose(2, 3, 1, 0), "y": digits})
        known[part] = [url, name, md5(folder / name)]
    patch.setattr(datasets.SVHN, "split_list", known)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No URL can be opened."""

    def refuse(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


def test_the_paper_split_is_the_published_one_without_a_calibration_part(
    kind: str, arrays: Arrays, published: Path
) -> None:
    data = read_dataset(DataSettings(kind=kind, split="paper"), published)
    assert data.parts.keys() == {"train", "test"}
    for part, (pixels, labels) in arrays.items():
        images = data.parts[part]
        assert [image.label for image in images] == labels
        sources = torch.stack([image.source for image in images])
        assert torch.equal(sources, torch.from_numpy(pixels))
    names = [name.name for name in data.classes]
    prefix = "" if kind == "svhn" else "class-"
    assert names == [f"{prefix}{index}" for index in range(COUNTS[kind][0])]
    assert data.name.endswith(", paper split")


def test_the_default_split_reserves_a_tenth_of_each_class_for_calibration(
    kind: str, published: Path
) -> None:
    data = read_dataset(DataSettings(kind=kind), published)
    classes, train, test = COUNTS[kind]
    for part, count in (
        ("train", train * 9 // 10),
        ("calibration", train // 10),
        ("test", test),
    ):
        assert class_counts(data.parts[part], classes).tolist() == [count] * classes
    assert ImageDataset(data.parts["train"], plain_view(16))[0][0].shape == (3, 16, 16)


def test_an_ood_set_is_the_whole_test_part(kind: str, arrays: Arrays, published: Path) -> None:
    ood = read_ood_set(OodSettings(kind=kind, path="published"), published.parent)
    assert len(ood.images) == len(arrays["test"][1])
    assert {image.label for image in ood.images} == {-1}
    assert ood.name == {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}[kind]


@pytest.mark.parametrize("damage", ["missing", "broken"])
def test_unavailable_files_are_refused_with_url_and_folder(
    kind: str, published: Path, damage: str
) -> None:
    for file in [path for path in published.rglob("*") if path.is_file()]:
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        read_dataset(DataSettings(kind=kind), published)
    url = READERS[kind].url if kind in READERS else datasets.SVHN.split_list["train"][0]
    message = str(caught.value)
    assert url in message
    assert str(published) in message
    assert "no route to host" in message
    assert len(message.splitlines()) == 1


def test_a_manually_downloaded_archive_is_sufficient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, noise = datasets.CIFAR10, np.zeros((20, 3, 32, 32), np.uint8)
    given = (noise, list(range(10)) * 2)
    write_cifar(tmp_path, reader, {"train": given, "test": given}, monkeypatch)
    manual = tmp_path / "manual"
    manual.mkdir()
    with tarfile.open(manual / reader.filename, "w:gz") as archive:
        archive.add(tmp_path / reader.base_folder, reader.base_folder)
    monkeypatch.setattr(reader, "tgz_md5", md5(manual / reader.filename))
    data = read_dataset(DataSettings(kind="cifar10", split="paper"), manual)
    assert len(data.parts["train"]) == 20


TINY = DataSettings(kind="tiny-imagenet", path="tiny", split="paper")
LEVELS = {"n02": 200, "n01": 40}  # gray, as some of the published images are


def write_gray(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((64, 64), level, dtype=np.uint8)).save(path, format="JPEG")


@pytest.fixture
def tiny_imagenet(tmp_path: Path) -> Path:
    """A directory with two classes of Tiny ImageNet in `tiny`; one image in `test` is broken."""
    folder = tmp_path / "tiny"
    for wnid, level in LEVELS.items():
        for index in range(3):
            write_gray(folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG", level)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t9\t9\n")
    for index, wnid in enumerate(("n02", "n01", "n02")):
        write_gray(folder / "val" / "images" / f"val_{index}.JPEG", LEVELS[wnid])
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\nval_2.JPEG\tn02\t1\t1\t2\t2\n"
    )
    (folder / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\n")
    (folder / "test" / "images").mkdir(parents=True)
    (folder / "test" / "images" / "test_0.JPEG").write_bytes(b"broken")
    return tmp_path


def test_labels_come_from_folders_and_annotations(tiny_imagenet: Path) -> None:
    images = read_dataset(TINY, tiny_imagenet)
    assert images.name == "Tiny ImageNet, paper split"
    assert [(name.name, name.description) for name in images.classes] == [
        ("n01", "goldfish, Carassius auratus"),
        ("n02", "n02"),
    ]
    assert {name: len(part) for name, part in images.parts.items()} == {"train": 6, "test": 3}
    for part in images.parts.values():
        for image in part:
            level = LEVELS[images.classes[image.label].name]
            assert image.source.shape == (3, 64, 64)
            assert abs(int(image.source.float().mean()) - level) < 3
    assert [image.label for image in images.parts["test"]] == [1, 0, 1]


def test_images_of_an_unknown_class_and_undecodable_ones_are_refused_or_skipped(
    tiny_imagenet: Path,
) -> None:
    annotations = tiny_imagenet / "tiny" / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text().replace("n01", "n09"))
    with pytest.raises(DataError, match=r"val/images/val_1\.JPEG"):
        read_dataset(TINY, tiny_imagenet)
    (tiny_imagenet / "tiny" / "train/n01/images/n01_1.JPEG").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"train/n01/images/n01_1\.JPEG"):
        read_dataset(TINY, tiny_imagenet)
    images = read_dataset(TINY, tiny_imagenet, skip_bad=True)
    assert list(images.skipped) == ["train/n01/images/n01_1.JPEG", "val/images/val_1.JPEG"]
    assert len(images.parts["train"]) == 5
    assert [image.label for image in images.parts["test"]] == [1, 1]


@pytest.mark.parametrize("absent", ["words.txt", "val/val_annotations.txt"])
def test_a_missing_table_is_named(tiny_imagenet: Path, absent: str) -> None:
    (tiny_imagenet / "tiny" / absent).unlink()
    with pytest.raises(DataError, match=Path(absent).name):
        read_tiny_imagenet(tiny_imagenet / "tiny", "paper")
