"""Tiny ImageNet, CIFAR-10, CIFAR-100 and SVHN from small files in their published formats.

HAM10000 in both layouts, with all splits.
"""

import csv
import hashlib
import pickle
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from eulerlora_contract.errors import DataError
from tests.training.conftest import write_image
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset, read_ood_set
from training.data.images import ImageParts, LabelledImage
from training.data.registry import OodSettings

METADATA = "HAM10000_metadata.csv"


def read_ham10000(folder: Path, split: str, skip_bad: bool = False) -> ImageParts:
    return read_dataset(DataSettings(kind="ham10000", split=split), folder, skip_bad)


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


def test_the_paper_split_is_the_published_one_and_the_default_reserves_a_tenth_for_calibration(
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

    default = read_dataset(DataSettings(kind=kind), published).parts
    classes, train, test = COUNTS[kind]
    expected = {"train": train * 9 // 10, "calibration": train // 10, "test": test}
    for part, count in expected.items():
        assert counts(default[part]) == [count] * classes


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
        read_dataset(DataSettings(kind="tiny-imagenet", split="paper"), tiny_imagenet / "tiny")


SPLITS = ("lesion", "lesion-validation", "lesion-best-epoch", "paper")
CLASSES = ["bkl", "nv", "df", "mel", "vasc", "bcc", "akiec"]
COLUMNS = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]


@pytest.fixture(scope="module")
def ham10000(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published layout with 120 images of 60 lesions; must not be changed."""
    folder = tmp_path_factory.mktemp("ham")
    noise = np.random.default_rng(0)
    table = [COLUMNS]
    for index in range(120):
        image = f"ISIC_{index:07}"
        part = folder / f"HAM10000_images_part_{1 + index % 2}"
        part.mkdir(exist_ok=True)
        write_image(part / f"{image}.jpg", (200, 100, 100), noise)
        dx = ("nv", "mel", "bkl")[index // 2 % 3]
        table.append([f"HAM_{index // 2}", image, dx, "histo", "50.0", "male", "back"])
    with (folder / METADATA).open("w", newline="") as file:
        csv.writer(file).writerows(table)
    return folder


@pytest.fixture
def copied(ham10000: Path, tmp_path: Path) -> Path:
    """A copy of `ham10000` that a test may change."""
    return Path(shutil.copytree(ham10000, tmp_path / "ham"))


@pytest.fixture
def metadata(ham10000: Path, tmp_path: Path) -> Path:
    """A copy of the metadata file alone."""
    return Path(shutil.copy(ham10000 / METADATA, tmp_path))


def by_id(images: ImageParts) -> dict[str, LabelledImage]:
    return {image.name: image for part in images.parts.values() for image in part}


def names_by_part(images: ImageParts) -> dict[str, list[str]]:
    return {part: [image.name for image in members] for part, members in images.parts.items()}


def test_the_published_layout_and_an_archive_give_the_same_data(
    ham10000: Path, tmp_path: Path
) -> None:
    shutil.copy(ham10000 / METADATA, tmp_path)
    with tarfile.open(tmp_path / "ham10000-small.tar", "w") as archive:
        for part in (1, 2):
            archive.add(ham10000 / f"HAM10000_images_part_{part}", "HAM10000_images")
    first, second = (read_ham10000(folder, "lesion") for folder in (ham10000, tmp_path))
    assert first.classes == second.classes
    names = [(label.name, label.description) for label in first.classes]
    assert names[:2] == [("nv", "melanocytic nevus"), ("mel", "melanoma")]  # as they appear
    assert first.name == "HAM10000, lesion split"
    assert names_by_part(first) == names_by_part(second)
    for part, images in first.parts.items():
        for one, other in zip(images, second.parts[part], strict=True):
            assert (one.label, one.cluster, one.attributes) == (
                other.label,
                other.cluster,
                other.attributes,
            )
            assert torch.equal(one.source, other.source)


def test_images_have_the_lesion_the_sex_the_age_group_and_the_body_site_of_their_row(
    copied: Path,
) -> None:
    header, first, *lines = (copied / METADATA).read_text().splitlines()
    first = first.replace("histo,50.0,male,back", "follow_up,35.0,female,")
    (copied / METADATA).write_text("\n".join([header, first, *lines]))
    images = by_id(read_ham10000(copied, "lesion"))
    assert images["ISIC_0000000"].attributes == {
        "diagnosed by": "follow-up", "sex": "female", "age": "0 to 39", "body site": "unknown"
    }  # fmt: skip
    assert images["ISIC_0000001"].attributes == {
        "diagnosed by": "histology", "sex": "male", "age": "40 to 59", "body site": "back"
    }  # fmt: skip
    for index in range(120):
        image = images[f"ISIC_{index:07}"]
        assert (image.label, image.cluster) == (index // 2 % 3, f"HAM_{index // 2}")


def test_age_groups_include_their_highest_age(copied: Path) -> None:
    groups = {
        "0.0": "0 to 39", "39": "0 to 39", "39.5": "40 to 59", "40": "40 to 59", "59": "40 to 59",
        "60": "60 and over", "85.0": "60 and over", "": "unknown", "nan": "unknown",
    }  # fmt: skip
    header, *lines = (copied / METADATA).read_text().splitlines()
    for index, years in enumerate(groups):
        lines[index] = lines[index].replace("50.0", years)
    (copied / METADATA).write_text("\n".join([header, *lines]))
    images = by_id(read_ham10000(copied, "lesion"))
    for index, group in enumerate(groups.values()):
        assert images[f"ISIC_{index:07}"].attributes["age"] == group


def test_splits_by_lesion_share_parts_and_no_lesion(ham10000: Path) -> None:
    whole, choosing, best_epoch = (
        read_ham10000(ham10000, split)
        for split in ("lesion", "lesion-validation", "lesion-best-epoch")
    )
    lesions = [{image.cluster for image in part} for part in best_epoch.parts.values()]
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 60
    names = {f"ISIC_{index:07}" for index in range(120)}
    present = [name for part in names_by_part(best_epoch).values() for name in part]
    assert Counter(present) == Counter(names)
    of_whole, of_choosing = names_by_part(whole), names_by_part(choosing)
    assert names_by_part(best_epoch) == {
        "train": of_choosing["train"],
        "validation": of_choosing["test"],
        "calibration": of_whole["calibration"],
        "test": of_whole["test"],
    }
    assert of_choosing["calibration"] == of_whole["calibration"]
    assert Counter(of_choosing["train"] + of_choosing["test"]) == Counter(of_whole["train"])
    assert {image.label for image in choosing.parts["test"]} == {0, 1, 2}
    assert 0.05 < len(of_choosing["test"]) / len(of_whole["train"]) < 0.15
    assert names_by_part(read_ham10000(ham10000, "lesion-validation")) == of_choosing


def test_the_validation_split_ignores_the_images_of_the_test_part(
    ham10000: Path, copied: Path
) -> None:
    whole = read_ham10000(ham10000, "lesion")
    hidden = set(names_by_part(whole)["test"])
    for path in copied.rglob("*.jpg"):
        if path.stem in hidden:
            path.write_bytes(b"broken")
    names = names_by_part(read_ham10000(copied, "lesion-validation"))
    assert set().union(*names.values()) == by_id(whole).keys() - hidden
    with pytest.raises(DataError):
        read_ham10000(copied, "lesion")


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda image: image.write_bytes(b"broken")], ids=["missing", "broken"]
)
def test_a_row_with_an_unusable_image_is_refused_or_skipped_without_changing_other_parts(
    ham10000: Path, copied: Path, damage: Callable[[Path], None]
) -> None:
    damage(copied / "HAM10000_images_part_1" / "ISIC_0000004.jpg")
    for split in SPLITS:
        with pytest.raises(DataError, match="ISIC_0000004"):
            read_ham10000(copied, split)
        rest = read_ham10000(copied, split, skip_bad=True)
        names = names_by_part(rest)
        assert [Path(name).stem for name in rest.skipped] == ["ISIC_0000004"]
        for part, whole in names_by_part(read_ham10000(ham10000, split)).items():
            assert names[part] == [name for name in whole if name != "ISIC_0000004"]


def test_an_unknown_dx_is_refused_with_its_row_or_skipped(copied: Path) -> None:
    row, metadata = "HAM_2,ISIC_0000004,bkl", copied / METADATA
    metadata.write_text(metadata.read_text().replace(row, row.replace("bkl", "mole")))
    with pytest.raises(DataError, match=r"row 5 \(ISIC_0000004\): expected dx .* got 'mole'"):
        read_ham10000(copied, "lesion")
    images = read_ham10000(copied, "lesion", skip_bad=True)
    assert len(images.skipped) == 1
    assert len(by_id(images)) == 119
    assert images.class_names == ("nv", "mel", "bkl")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_for_a_split_are_refused(copied: Path, split: str, rows: int) -> None:
    lines = (copied / METADATA).read_text().splitlines(keepends=True)
    (copied / METADATA).write_text("".join(lines[: 1 + rows]))
    with pytest.raises(DataError, match=f"enough rows .* got {rows}"):
        read_ham10000(copied, split)


def test_a_folder_without_metadata_or_images_is_refused(metadata: Path) -> None:
    with pytest.raises(DataError, match="HAM10000_images_part_1"):
        read_ham10000(metadata.parent, "lesion")
    metadata.unlink()
    with pytest.raises(DataError, match=METADATA):
        read_ham10000(metadata.parent, "lesion")


def counts(images: Sequence[LabelledImage]) -> list[int]:
    return np.bincount([image.label for image in images]).tolist()


@pytest.mark.data
def test_the_paper_split_has_the_published_counts_and_first_ids(ham10000_table: Path) -> None:
    images = read_ham10000(ham10000_table, "paper")
    assert list(images.class_names) == CLASSES
    parts = images.parts
    assert (len(parts["train"]), len(parts["test"])) == (8012, 2003)
    assert counts(parts["train"]) == [879, 5364, 92, 890, 114, 411, 262]
    first = [image.name for image in parts["test"][:3]]
    assert first == ["ISIC_0028975", "ISIC_0031866", "ISIC_0032427"]
    trained = {image.cluster for image in parts["train"]}
    shared = np.mean([image.cluster in trained for image in parts["test"]])
    assert shared == pytest.approx(0.387, abs=5e-4)


@pytest.mark.data
def test_the_lesion_splits_are_stratified_and_share_no_lesion(ham10000_table: Path) -> None:
    parts = read_ham10000(ham10000_table, "lesion-best-epoch").parts
    every = [image for part in parts.values() for image in part]
    shares = np.array(counts(every)) / len(every)
    for name, share in (("calibration", 0.1), ("test", 0.2)):
        assert len(parts[name]) / len(every) == pytest.approx(share, abs=0.01)
        of_part = np.array(counts(parts[name])) / len(parts[name])
        np.testing.assert_allclose(of_part, shares, atol=0.01)
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 6309, "validation": 701, "calibration": 1002, "test": 2003
    }  # fmt: skip
    assert counts(parts["validation"]) == [77, 469, 8, 78, 10, 36, 23]
    lesions = [{image.cluster for image in part} for part in parts.values()]
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 7470
