"""Local pictures are read with their labels and groups, or refused in one clear line."""

import csv
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError, SettingsError
from tests.training.conftest import write_image
from training.data.dataset import LabelTable
from training.data.datasets import read_ood_set
from training.data.images import OUTSIDE
from training.data.local_images import read_local_images
from training.data.registry import OodSettings
from training.recipe.archives import read_archive_labels

CLASSES = [
    ClassName(name="bkl", description="benign keratosis"),
    ClassName(name="mel", description="melanoma (of the skin)"),
    ClassName(name="nv", description="melanocytic nevus"),
]
NEVUS = LabelTable(renamed={"nevus": "nv"})


def write_images(folder: Path, *names: str) -> Path:
    """Writes one image for each relative name and returns the folder."""
    noise = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_image(folder / name, (128, 90, 60), noise)
    return folder


def write_table(folder: Path, text: str) -> Path:
    write_images(folder, "a.png", "b.png", "sub/c.png")
    (folder / "labels.csv").write_text(text)
    return folder


def test_a_folder_per_class_gives_labels_without_groups(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "clinic", "mel/1.png", "nevus/x/2.png", "nv/3.png")
    local = read_local_images(folder, CLASSES, NEVUS)
    assert [(image.name, image.label) for image in local.images] == [
        ("mel/1.png", 1),
        ("nevus/x/2.png", 2),
        ("nv/3.png", 2),
    ]
    assert {image.cluster for image in local.images} == {None}
    assert (local.name, local.units.unit, local.ignored) == ("clinic", "picture", 0)


def test_a_table_gives_labels_and_groups(tmp_path: Path) -> None:
    rows = "group,path,label\nL1,./b.png,nevus\n,a.png,mel\nL1,sub/c.png,nevus\n"
    local = read_local_images(write_table(tmp_path, rows), CLASSES, NEVUS)
    assert [(image.name, image.label, image.cluster) for image in local.images] == [
        ("a.png", 1, None),
        ("b.png", 2, "L1"),
        ("sub/c.png", 2, "L1"),
    ]
    assert local.units.unit == "group"


def test_ignored_labels_leave_their_pictures_out(tmp_path: Path) -> None:
    folder = write_images(tmp_path, "mel/1.png", "scc/2.png", "scc/3.png")
    local = read_local_images(folder, CLASSES, LabelTable(ignored=["scc"]))
    assert [image.name for image in local.images] == ["mel/1.png"]
    assert local.ignored == 2


def test_copies_under_two_labels_of_one_class_are_one_group(tmp_path: Path) -> None:
    folder = write_images(tmp_path, "mel/1.png", "mel/2.png", "nevus/3.png")
    copies = (("mel/1", "in_situ/4"), ("mel/2", "ignored/5"), ("nevus/3", "naevus/6"))
    for original, copy in copies:
        (folder / copy).parent.mkdir()
        shutil.copy(folder / f"{original}.png", folder / f"{copy}.png")
    table = LabelTable(renamed={"in_situ": "mel", "ignored": "mel"}, ignored=["ignored"])
    local = read_local_images(folder, CLASSES, table, outside=["nevus", "naevus"])
    cluster = {image.name: image.cluster for image in local.images}
    assert cluster == {
        "in_situ/4.png": "in_situ/4.png", "mel/1.png": "in_situ/4.png", "mel/2.png": None,
        "naevus/6.png": "naevus/6.png", "nevus/3.png": "naevus/6.png",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("table", "lesion", "named"),
    [
        (LabelTable(), None, "nevus"),
        (LabelTable(renamed={"nevus": "naevus"}), None, "nevus=naevus"),
        (LabelTable(renamed={"naevus": "nv"}), None, "naevus"),
        (LabelTable(ignored=["naevus"]), None, "naevus"),
        (LabelTable(ignored=["mel", "nevus"]), None, "got none"),
        (NEVUS, re.compile("x(.)"), r"mel/1\.png"),
    ],
)
def test_labels_without_a_class_and_names_that_do_not_exist_are_refused(
    tmp_path: Path, table: LabelTable, lesion: re.Pattern[str] | None, named: str
) -> None:
    folder = write_images(tmp_path, "mel/1.png", "nevus/2.png")
    with pytest.raises(DataError, match=named):
        read_local_images(folder, CLASSES, table, lesion=lesion)


def test_labels_without_a_class_suggest_options_that_work(tmp_path: Path) -> None:
    folder = write_images(tmp_path, "mel/1.png", "NV/2.png", "Benign Keratosis/3.png", "scc/4.png")
    with pytest.raises(DataError, match="--class scc=CLASS") as refused:
        read_local_images(folder, CLASSES)
    options = [*refused.value.suggestion.options]
    pairs = [*zip(options[::2], options[1::2], strict=True)]
    assert pairs == [
        ("--class", "Benign Keratosis=bkl"), ("--class", "NV=nv"), ("--ignore", "scc")
    ]  # fmt: skip
    renamed = dict(value.split("=") for option, value in pairs if option == "--class")
    local = read_local_images(folder, CLASSES, LabelTable(renamed=renamed, ignored=["scc"]))
    assert [CLASSES[image.label].name for image in local.images] == ["bkl", "nv", "mel"]


@pytest.mark.parametrize("labels", [("test", "mel"), ("scc", "akiec"), ("train", "test")])
def test_parts_and_pictures_of_no_class_suggest_nothing(
    tmp_path: Path, labels: tuple[str, ...]
) -> None:
    folder = write_images(tmp_path, *(f"{label}/x/{label}.png" for label in labels))
    with pytest.raises(DataError) as refused:
        read_local_images(folder, CLASSES)
    assert not hasattr(refused.value, "suggestion")
    assert ("--class akiec=CLASS" in str(refused.value)) is ("akiec" in labels)


def test_unusable_pictures_are_skipped_on_request_only(tmp_path: Path) -> None:
    folder = write_images(tmp_path, "mel/1.png", "loose.png")
    (folder / "mel" / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="use --skip-bad"):
        read_local_images(folder, CLASSES)
    local = read_local_images(folder, CLASSES, skip_bad=True)
    assert [image.name for image in local.images] == ["mel/1.png"]
    assert sorted(local.skipped) == ["mel/2.png"]
    assert "loose.png" in local.notes[0]


def test_an_archive_is_read_with_lesions_from_its_names(tmp_path: Path) -> None:
    write_images(tmp_path / "pad", "MEL/PAT_1_7_1.png", "MEL/PAT_1_7_2.png", "SCC/PAT_2_8_3.png")
    with tarfile.open(tmp_path / "pad.tar", "w") as archive:
        archive.add(tmp_path / "pad", "pad")
    table = LabelTable(renamed={"MEL": "mel"})
    lesion = re.compile(r"^PAT_((?P<group>\d+)_\d+)_")
    for path in (tmp_path / "pad.tar", tmp_path / "pad"):
        local = read_local_images(path, CLASSES, table, outside=["SCC"], lesion=lesion)
        assert [(image.label, image.cluster, image.lesion) for image in local.images] == [
            (1, "1", "1_7"),
            (1, "1", "1_7"),
            (OUTSIDE, "2", "2_8"),
        ]
        assert local.units.unit == "lesion"


@pytest.mark.parametrize("table", ["labels.csv", "./Labels.CSV", "site/labels.csv"])
def test_a_table_in_an_archive_is_refused_where_labels_are_read(tmp_path: Path, table: str) -> None:
    folder = write_table(tmp_path / "site", "path,label\na.png,mel\nb.png,nv\nsub/c.png,nv\n")
    with tarfile.open(tmp_path / "site.tar", "w") as archive:
        archive.add(folder / "labels.csv", table)
        for name in ("mel/a.png", "nv/b.png"):
            archive.add(folder / "a.png", f"site/{name}")
    for _ in ("decoded", "from the cache"):
        with pytest.raises(DataError, match="unpack"):
            read_local_images(tmp_path / "site.tar", CLASSES)
    outside = read_ood_set(OodSettings(kind="images", path="site.tar"), tmp_path)
    assert [image.name for image in outside.images] == ["site/mel/a.png", "site/nv/b.png"]


@pytest.mark.data
def test_the_lesions_of_pad_ufes_20_are_those_of_its_metadata(real_data: Path) -> None:
    labels = read_archive_labels("pad-ufes-20")
    assert labels.lesion is not None
    with tarfile.open(real_data / "pad-ufes-20.tar") as archive:
        table = archive.extractfile("pad-ufes-20/metadata.csv")
        rows = list(csv.DictReader(table.read().decode().splitlines()))
    assert len(rows) == 681
    for row in rows:
        found = re.search(labels.lesion, row["image_id"])
        assert found[1] == f"{row['patient_id'].removeprefix('PAT_')}_{row['lesion_id']}"


def test_the_packaged_archives_are_valid_and_map_melanoma() -> None:
    with pytest.raises(SettingsError, match="pad-ufes-20, ph2") as refused:
        read_archive_labels("ph3")
    names = str(refused.value).partition("one of ")[2].partition(", got")[0].split(", ")
    for name in names:
        assert "mel" in read_archive_labels(name).labels.values()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "title"),
        ('title = "A"\n[labels]\n', "labels"),
        ('title = "A"\nlesion = "("\n[labels]\na = "mel"\n', "lesion"),
        ('title = "A"\nlesion = "a"\n[labels]\na = "mel"\n', "lesion"),
        ('title = "A"\nlesions = "a"\n[labels]\na = "mel"\n', "lesions"),
        ("title", "TOML"),
    ],
)
def test_an_error_in_a_file_names_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=rf"own\.toml: .*{key}"):
        read_archive_labels(str(path))
