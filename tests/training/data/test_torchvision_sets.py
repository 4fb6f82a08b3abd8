"""CIFAR-10, CIFAR-100 and SVHN from small files in their published formats."""

import hashlib
import pickle
import tarfile
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torchvision import datasets

from eulerlora.errors import DataError
from training.data.augmentation import evaluation_view
from training.data.datasets import read_dataset, read_ood_set
from training.data.labelled_images import ImageDataset, class_counts
from training.recipe.schema import DataSettings, OodSettings

COUNTS = {"cifar10": (10, 20, 10), "cifar100": (100, 10, 1), "svhn": (10, 20, 3)}
"""Classes, and images of each in the training and the test part."""

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
    """The published files with other content, whose digests torchvision then expects."""
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


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No URL can be opened."""

    def refuse(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.mark.usefixtures("offline")
def test_the_paper_split_is_the_publisher_s_without_a_calibration_part(
    kind: str, arrays: Arrays, published: Path
) -> None:
    data = read_dataset(DataSettings(kind=kind, split="paper"), published)
    assert data.parts.keys() == {"train", "test"}
    for part, (pixels, labels) in arrays.items():
        found = data.parts[part]
        assert [each.label for each in found] == labels
        ours = torch.stack([each.source for each in found])
        assert torch.equal(ours, torch.from_numpy(pixels))
    names = [each.name for each in data.classes]
    prefix = "" if kind == "svhn" else "class-"
    assert names == [f"{prefix}{index}" for index in range(COUNTS[kind][0])]
    assert data.name.endswith(", paper split")


@pytest.mark.usefixtures("offline")
def test_the_default_split_keeps_a_tenth_of_each_class_apart(kind: str, published: Path) -> None:
    data = read_dataset(DataSettings(kind=kind), published)
    classes, train, test = COUNTS[kind]
    for part, count in (
        ("train", train * 9 // 10),
        ("calibration", train // 10),
        ("test", test),
    ):
        assert class_counts(data.parts[part], classes).tolist() == [count] * classes
    assert Pictures(data.parts["train"], evaluation_view(16))[0][0].shape == (3, 16, 16)


@pytest.mark.usefixtures("offline")
def test_as_an_ood_set_it_is_the_whole_test_part(
    kind: str, arrays: Arrays, published: Path
) -> None:
    found = read_ood_set(OodSettings(kind=kind, path="published"), published.parent)
    assert len(found.images) == len(arrays["test"][1])
    assert {each.label for each in found.images} == {-1}
    assert found.name == {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}[kind]


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("damage", ["missing", "broken"])
def test_files_that_cannot_be_had_are_named_with_their_url_and_folder(
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


@pytest.mark.usefixtures("offline")
def test_an_archive_that_was_fetched_by_hand_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, noise = datasets.CIFAR10, np.zeros((20, 3, 32, 32), np.uint8)
    given = (noise, list(range(10)) * 2)
    write_cifar(tmp_path, reader, {"train": given, "test": given}, monkeypatch)
    by_hand = tmp_path / "by hand"
    by_hand.mkdir()
    with tarfile.open(by_hand / reader.filename, "w:gz") as archive:
        archive.add(tmp_path / reader.base_folder, reader.base_folder)
    monkeypatch.setattr(reader, "tgz_md5", md5(by_hand / reader.filename))
    data = read_dataset(DataSettings(kind="cifar10", split="paper"), by_hand)
    assert len(data.parts["train"]) == 20
