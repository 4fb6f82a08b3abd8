"""Both layouts, both splits."""

import csv
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from eulerlora.errors import DataError
from tests.training.conftest import write_image
from training.data.datasets import read_dataset
from training.data.ham10000 import (
    METADATA,
    SPLITS,
    lesion_split,
    lesion_validation_split,
    paper_split,
    read_ham10000,
    read_metadata,
)
from training.recipe.schema import DataSettings, Split

CLASSES = ["bkl", "nv", "df", "mel", "vasc", "bcc", "akiec"]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """HAM10000 as its publisher ships it, but with 120 images of 60 lesions."""
    folder = tmp_path / "ham"
    noise = np.random.default_rng(0)
    with_header = [["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]]
    for index in range(120):
        image = f"ISIC_{index:07}"
        part = folder / f"HAM10000_images_part_{1 + index % 2}"
        part.mkdir(parents=True, exist_ok=True)
        write_image(part / f"{image}.jpg", (200, 100, 100), noise)
        dx = ("nv", "mel", "bkl")[index // 2 % 3]
        with_header.append([f"HAM_{index // 2}", image, dx, "histo", "50.0", "male", "back"])
    with (folder / METADATA).open("w", newline="") as file:
        csv.writer(file).writerows(with_header)
    return folder


def test_the_publisher_s_layout_and_one_archive_give_the_same_data(
    published: Path, tmp_path: Path
) -> None:
    archived = tmp_path / "archived"
    archived.mkdir()
    (archived / METADATA).write_bytes((published / METADATA).read_bytes())
    with tarfile.open(archived / "ham10000-small.tar.xz", "w:xz") as archive:
        for part in (1, 2):
            archive.add(published / f"HAM10000_images_part_{part}", "HAM10000_images")
    first, second = (read_ham10000(folder, "lesion") for folder in (published, archived))
    assert first.parts == second.parts
    assert first.classes == second.classes
    assert first.sources.keys() == second.sources.keys()
    for name, pixels in first.sources.items():
        assert torch.equal(pixels, second.sources[name])


def test_classes_are_in_order_of_first_appearance_and_described(published: Path) -> None:
    data = read_ham10000(published, "paper")
    assert [each.name for each in data.classes] == ["nv", "mel", "bkl"]
    assert data.classes[1].description == "melanoma"


def test_images_are_grouped_by_sex_age_and_body_site_as_far_as_they_are_known(
    published: Path,
) -> None:
    header, *lines = (published / METADATA).read_text().splitlines()
    ages = ["", "0.0", "35.0", "40.0", "55.0", "60.0", "85.0", "nan"]
    for index, age in enumerate(ages):
        lines[index] = lines[index].replace("50.0,male,back", f"{age},female,")
    (published / METADATA).write_text("\n".join([header, *lines]))
    rows, _ = read_metadata(published / METADATA)
    assert [row.groups["age"] for row in rows[:8]] == [
        "unknown", "0 to 39", "0 to 39", "40 to 59", "40 to 59", "60 and over", "60 and over",
        "unknown",
    ]  # fmt: skip
    assert rows[0].groups == {"sex": "female", "age": "unknown", "body site": "unknown"}
    assert rows[8].groups == {"sex": "male", "age": "40 to 59", "body site": "back"}
    images = read_dataset(DataSettings(kind="ham10000"), published)
    assert images.target == ("mel",)
    known = {row.image_id: row for row in rows}
    for image in images.parts["test"]:
        assert image.cluster == known[image.name].lesion_id
        assert image.groups == known[image.name].groups


def test_metadata_without_sex_age_and_site_is_read_too(published: Path) -> None:
    lines = (published / METADATA).read_text().splitlines()
    cut = [",".join(line.split(",")[:4]) for line in lines]
    (published / METADATA).write_text("\n".join(cut))
    rows, _ = read_metadata(published / METADATA)
    assert {value for row in rows for value in row.groups.values()} == {"unknown"}


def test_no_lesion_is_in_two_parts_of_the_lesion_split(published: Path) -> None:
    rows, _ = read_metadata(published / METADATA)
    parts = lesion_split(rows)
    lesions = [{row.lesion_id for row in part} for part in parts.values()]
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 60
    assert Counter(row for part in parts.values() for row in part) == Counter(rows)


def test_the_validation_split_tests_on_lesions_of_the_train_part_alone(published: Path) -> None:
    rows, _ = read_metadata(published / METADATA)
    whole, parts = lesion_split(rows), lesion_validation_split(rows)
    lesions = {name: {row.lesion_id for row in part} for name, part in parts.items()}
    assert parts["calibration"] == whole["calibration"]
    assert not lesions["train"] & lesions["test"]
    assert Counter(parts["train"] + parts["test"]) == Counter(whole["train"])
    assert {row.label for row in parts["test"]} == {0, 1, 2}
    assert 0.05 < len(parts["test"]) / len(whole["train"]) < 0.15
    assert lesion_validation_split(rows) == parts


def test_the_validation_split_opens_no_image_of_the_true_test_part(published: Path) -> None:
    rows, _ = read_metadata(published / METADATA)
    hidden = {row.image_id for row in lesion_split(rows)["test"]}
    for place in published.rglob("*.jpg"):
        if place.stem in hidden:
            place.write_bytes(b"broken")
    found = read_ham10000(published, "lesion-validation")
    assert found.sources.keys() == {row.image_id for row in rows} - hidden
    with pytest.raises(DataError):
        read_ham10000(published, "lesion")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda image: image.write_bytes(b"broken")], ids=["missing", "broken"]
)
def test_a_row_whose_image_cannot_be_used_is_refused_by_name_or_left_out_alone(
    published: Path, split: Split, damage: Callable[[Path], None]
) -> None:
    whole = read_ham10000(published, split)
    damage(published / "HAM10000_images_part_1" / "ISIC_0000004.jpg")
    with pytest.raises(DataError, match="ISIC_0000004"):
        read_ham10000(published, split)
    skipped: dict[str, str] = {}
    found = read_ham10000(published, split, skipped.__setitem__)
    assert [Path(name).stem for name in skipped] == ["ISIC_0000004"]
    for part, rows in whole.parts.items():
        assert found.parts[part] == [row for row in rows if row.image_id != "ISIC_0000004"]


def test_a_dx_outside_the_seven_is_refused_by_its_row_or_left_out(published: Path) -> None:
    text = (published / METADATA).read_text()
    row = "HAM_2,ISIC_0000004,bkl"
    (published / METADATA).write_text(text.replace(row, row.replace("bkl", "mole")))
    with pytest.raises(DataError, match=r"row 5 \(ISIC_0000004\): dx 'mole'"):
        read_ham10000(published, "lesion")
    skipped: dict[str, str] = {}
    rows, names = read_metadata(published / METADATA, skipped.__setitem__)
    assert len(skipped) == 1
    assert len(rows) == 119
    assert "mole" not in names


def test_metadata_of_which_too_little_is_left_is_refused(published: Path) -> None:
    lines = (published / METADATA).read_text().splitlines(keepends=True)
    for kept in (lines[:1], lines[:2]):
        (published / METADATA).write_text("".join(kept))
        for split in SPLITS:
            with pytest.raises(DataError, match="too few rows"):
                read_ham10000(published, split)


def test_a_folder_without_metadata_or_images_is_refused(published: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / METADATA).write_bytes((published / METADATA).read_bytes())
    with pytest.raises(DataError, match="HAM10000_images_part_1"):
        read_ham10000(tmp_path / "bare", "lesion")
    (published / METADATA).unlink()
    with pytest.raises(DataError, match=METADATA):
        read_ham10000(published, "lesion")


def test_metadata_without_the_wanted_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / METADATA
    path.write_text("image,label\na,b\n")
    with pytest.raises(DataError, match="image_id"):
        read_metadata(path)


@pytest.mark.data
def test_the_paper_s_split_has_its_counts_and_first_ids(real_data: Path) -> None:
    rows, names = read_metadata(real_data / METADATA)
    parts = paper_split(rows)
    counts = Counter(names[row.label] for row in parts["train"])
    assert names == CLASSES
    assert (len(parts["train"]), len(parts["test"])) == (8012, 2003)
    assert [counts[name] for name in CLASSES] == [879, 5364, 92, 890, 114, 411, 262]
    first = [row.image_id for row in parts["test"][:3]]
    assert first == ["ISIC_0028975", "ISIC_0031866", "ISIC_0032427"]
    trained = {row.lesion_id for row in parts["train"]}
    shared = np.mean([row.lesion_id in trained for row in parts["test"]])
    assert shared == pytest.approx(0.387, abs=5e-4)


@pytest.mark.data
def test_the_lesion_split_is_stratified_and_shares_no_lesion(real_data: Path) -> None:
    rows, _ = read_metadata(real_data / METADATA)
    parts = lesion_split(rows)
    everywhere = np.bincount([row.label for row in rows]) / len(rows)
    for name, share in (("train", 0.7), ("calibration", 0.1), ("test", 0.2)):
        assert len(parts[name]) / len(rows) == pytest.approx(share, abs=0.01)
        found = np.bincount([row.label for row in parts[name]]) / len(parts[name])
        np.testing.assert_allclose(found, everywhere, atol=0.01)
    lesions = [{row.lesion_id for row in part} for part in parts.values()]
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 7470


@pytest.mark.data
def test_the_validation_split_shares_no_lesion_with_the_true_test_part(real_data: Path) -> None:
    rows, names = read_metadata(real_data / METADATA)
    parts = lesion_validation_split(rows)
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 6309, "calibration": 1002, "test": 701
    }  # fmt: skip
    counts = Counter(names[row.label] for row in parts["test"])
    assert [counts[name] for name in CLASSES] == [77, 469, 8, 78, 10, 36, 23]
    lesions = [{row.lesion_id for row in part} for part in parts.values()]
    lesions.append({row.lesion_id for row in lesion_split(rows)["test"]})
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 7470
