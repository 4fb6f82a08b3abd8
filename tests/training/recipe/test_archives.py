"""The attributes that the table of an archive gives its pictures."""

import tarfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from eulerlora_contract.errors import DataError
from training.data.images import LabelledImage
from training.recipe.archives import read_archive_labels, with_attributes

LABELS = """\
title = "clinic"
labels = { M = "mel" }
[table]
file = "facts.csv"
picture = "id"
[table.attributes]
"diagnosed by" = { column = "biopsy", values = { yes = "histology" } }
sex = { column = "sex" }
"""
IMAGES = [
    LabelledImage(name, torch.zeros(3, 1, 1), 0) for name in ("a/1.png", "a/2.png", "b/other.png")
]


@pytest.fixture(params=["folder", "tar"])
def archive(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "clinic"
    folder.mkdir()
    (folder / "facts.csv").write_text("id,sex,biopsy\n1,f,yes\n2,,perhaps\n")
    if request.param == "folder":
        return folder
    with tarfile.open(tmp_path / "clinic.tar", "w") as tar:
        tar.add(folder, "clinic")
    return tmp_path / "clinic.tar"


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.toml"
    path.write_text(LABELS)
    return path


def test_cells_become_words_and_everything_else_is_unknown(archive: Path, labels: Path) -> None:
    table = read_archive_labels(str(labels)).table
    assert [image.attributes for image in with_attributes(IMAGES, archive, table)] == [
        {"diagnosed by": "histology", "sex": "f"},
        {"diagnosed by": "unknown", "sex": "unknown"},
        {"diagnosed by": "unknown", "sex": "unknown"},
    ]


@pytest.mark.parametrize("stated", ["facts.csv", '"id"', '"biopsy"'])
def test_a_missing_table_or_column_is_named(archive: Path, labels: Path, stated: str) -> None:
    absent = "absent.csv" if stated == "facts.csv" else '"absent"'
    labels.write_text(LABELS.replace(stated, absent))
    table = read_archive_labels(str(labels)).table
    with pytest.raises(DataError, match="absent"):
        with_attributes(IMAGES, archive, table)


@pytest.mark.data
def test_the_packaged_table_describes_the_published_pictures(real_data: Path) -> None:
    table = read_archive_labels("pad-ufes-20").table
    assert table is not None
    archive = real_data / "pad-ufes-20.tar"
    with tarfile.open(archive) as tar:
        names = [member.name for member in tar if member.name.endswith((".jpg", ".png"))]
    images = [LabelledImage(name, torch.zeros(3, 1, 1), 0) for name in names]
    counts = Counter(
        image.attributes["skin type"] for image in with_attributes(images, archive, table)
    )
    published = {"I": 44, "II": 232, "III": 121, "IV": 27, "V": 3, "VI": 1}
    assert {name: counts[name] for name in published} == published
