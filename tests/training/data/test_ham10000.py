"""HAM10000 in both layouts, with all splits."""

import csv
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from eulerlora_client.errors import DataError
from tests.training.conftest import write_image
from training.data.ham10000 import (
    METADATA,
    Ham10000Row,
    age_group,
    read_ham10000,
    read_rows,
    split_rows,
)
from training.data.images import ImageParts
from training.recipe.schema import Split

SPLITS: tuple[Split, ...] = get_args(Split)
CLASSES = ["bkl", "nv", "df", "mel", "vasc", "bcc", "akiec"]
COLUMNS = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def copied(published: Path, tmp_path: Path) -> Path:
    """A copy of `published` that a test may change."""
    return Path(shutil.copytree(published, tmp_path / "ham"))


@pytest.fixture
def metadata(published: Path, tmp_path: Path) -> Path:
    """A copy of the metadata file alone."""
    return Path(shutil.copy(published / METADATA, tmp_path))


@pytest.fixture(scope="module")
def rows(published: Path) -> list[Ham10000Row]:
    return read_rows(published / METADATA)[0]


def names_by_part(images: ImageParts) -> dict[str, list[str]]:
    return {part: [image.name for image in members] for part, members in images.parts.items()}


def test_the_published_layout_and_an_archive_give_the_same_data(
    published: Path, tmp_path: Path
) -> None:
    shutil.copy(published / METADATA, tmp_path)
    with tarfile.open(tmp_path / "ham10000-small.tar", "w") as archive:
        for part in (1, 2):
            archive.add(published / f"HAM10000_images_part_{part}", "HAM10000_images")
    first, second = (read_ham10000(folder, "lesion") for folder in (published, tmp_path))
    assert first.classes == second.classes
    assert names_by_part(first) == names_by_part(second)
    for part, images in first.parts.items():
        for one, other in zip(images, second.parts[part], strict=True):
            assert (one.label, one.cluster, one.groups) == (
                other.label,
                other.cluster,
                other.groups,
            )
            assert torch.equal(one.source, other.source)


def test_classes_are_in_order_of_first_appearance_with_descriptions(published: Path) -> None:
    data = read_ham10000(published, "paper")
    assert data.name == "HAM10000, paper split"
    assert [name.name for name in data.classes] == ["nv", "mel", "bkl"]
    assert data.classes[1].description == "melanoma"


@pytest.mark.parametrize(
    ("years", "group"),
    [
        ("0.0", "0 to 39"),
        ("39", "0 to 39"),
        ("39.5", "40 to 59"),
        ("40", "40 to 59"),
        ("59", "40 to 59"),
        ("60", "60 and over"),
        ("85.0", "60 and over"),
        ("", "unknown"),
        ("nan", "unknown"),
    ],
)
def test_age_groups_include_their_highest_age(years: str, group: str) -> None:
    assert age_group(years) == group


def test_images_have_the_lesion_the_sex_the_age_group_and_the_body_site_of_their_row(
    copied: Path,
) -> None:
    header, first, *lines = (copied / METADATA).read_text().splitlines()
    first = first.replace("50.0,male,back", "35.0,female,")
    (copied / METADATA).write_text("\n".join([header, first, *lines]))
    rows, _ = read_rows(copied / METADATA)
    assert rows[0].groups == {"sex": "female", "age": "0 to 39", "body site": "unknown"}
    assert rows[1].groups == {"sex": "male", "age": "40 to 59", "body site": "back"}
    by_id = {row.image_id: row for row in rows}
    for images in read_ham10000(copied, "lesion").parts.values():
        for image in images:
            row = by_id[image.name]
            assert (image.label, image.cluster, image.groups) == (
                row.label,
                row.lesion_id,
                row.groups,
            )


def test_splits_by_lesion_share_parts_and_no_lesion(rows: list[Ham10000Row]) -> None:
    whole, choosing, best_epoch = (
        split_rows(rows, split) for split in ("lesion", "lesion-validation", "lesion-best-epoch")
    )
    lesions = [{row.lesion_id for row in part} for part in best_epoch.values()]
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 60
    assert Counter(row for part in best_epoch.values() for row in part) == Counter(rows)
    assert best_epoch == {
        "train": choosing["train"],
        "validation": choosing["test"],
        "calibration": whole["calibration"],
        "test": whole["test"],
    }
    assert choosing["calibration"] == whole["calibration"]
    assert Counter(choosing["train"] + choosing["test"]) == Counter(whole["train"])
    assert {row.label for row in choosing["test"]} == {0, 1, 2}
    assert 0.05 < len(choosing["test"]) / len(whole["train"]) < 0.15
    assert split_rows(rows, "lesion-validation") == choosing


def test_the_validation_split_ignores_the_images_of_the_test_part(
    copied: Path, rows: list[Ham10000Row]
) -> None:
    hidden = {row.image_id for row in split_rows(rows, "lesion")["test"]}
    for path in copied.rglob("*.jpg"):
        if path.stem in hidden:
            path.write_bytes(b"broken")
    names = names_by_part(read_ham10000(copied, "lesion-validation"))
    assert set().union(*names.values()) == {row.image_id for row in rows} - hidden
    with pytest.raises(DataError):
        read_ham10000(copied, "lesion")


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda image: image.write_bytes(b"broken")], ids=["missing", "broken"]
)
def test_a_row_with_an_unusable_image_is_refused_or_skipped_without_changing_other_parts(
    published: Path, copied: Path, damage: Callable[[Path], None]
) -> None:
    damage(copied / "HAM10000_images_part_1" / "ISIC_0000004.jpg")
    for split in SPLITS:
        with pytest.raises(DataError, match="ISIC_0000004"):
            read_ham10000(copied, split)
        skipped: dict[str, str] = {}
        names = names_by_part(read_ham10000(copied, split, skipped.__setitem__))
        assert [Path(name).stem for name in skipped] == ["ISIC_0000004"]
        for part, whole in names_by_part(read_ham10000(published, split)).items():
            assert names[part] == [name for name in whole if name != "ISIC_0000004"]


def test_an_unknown_dx_is_refused_with_its_row_or_skipped(metadata: Path) -> None:
    row = "HAM_2,ISIC_0000004,bkl"
    metadata.write_text(metadata.read_text().replace(row, row.replace("bkl", "mole")))
    with pytest.raises(DataError, match=r"row 5 \(ISIC_0000004\): expected dx .* got 'mole'"):
        read_rows(metadata)
    skipped: dict[str, str] = {}
    rows, names = read_rows(metadata, skipped.__setitem__)
    assert len(skipped) == 1
    assert len(rows) == 119
    assert "mole" not in names


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_for_a_split_are_refused(copied: Path, split: Split, rows: int) -> None:
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


@pytest.fixture(scope="module")
def real_rows(real_data: Path) -> list[Ham10000Row]:
    rows, names = read_rows(real_data / METADATA)
    assert names == CLASSES
    return rows


def counts(rows: list[Ham10000Row]) -> list[int]:
    return np.bincount([row.label for row in rows]).tolist()


@pytest.mark.data
def test_the_paper_split_has_the_published_counts_and_first_ids(
    real_rows: list[Ham10000Row],
) -> None:
    parts = split_rows(real_rows, "paper")
    assert (len(parts["train"]), len(parts["test"])) == (8012, 2003)
    assert counts(parts["train"]) == [879, 5364, 92, 890, 114, 411, 262]
    first = [row.image_id for row in parts["test"][:3]]
    assert first == ["ISIC_0028975", "ISIC_0031866", "ISIC_0032427"]
    trained = {row.lesion_id for row in parts["train"]}
    shared = np.mean([row.lesion_id in trained for row in parts["test"]])
    assert shared == pytest.approx(0.387, abs=5e-4)


@pytest.mark.data
def test_the_lesion_splits_are_stratified_and_share_no_lesion(real_rows: list[Ham10000Row]) -> None:
    shares = np.array(counts(real_rows)) / len(real_rows)
    parts = split_rows(real_rows, "lesion-best-epoch")
    for name, share in (("calibration", 0.1), ("test", 0.2)):
        assert len(parts[name]) / len(real_rows) == pytest.approx(share, abs=0.01)
        of_part = np.array(counts(parts[name])) / len(parts[name])
        np.testing.assert_allclose(of_part, shares, atol=0.01)
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 6309, "validation": 701, "calibration": 1002, "test": 2003
    }  # fmt: skip
    assert counts(parts["validation"]) == [77, 469, 8, 78, 10, 36, 23]
    lesions = [{row.lesion_id for row in part} for part in parts.values()]
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 7470
