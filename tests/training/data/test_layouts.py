"""Folders of pictures that are no class folders, and the commands by which they are read."""

import shlex
import shutil
from pathlib import Path

import pytest

from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError
from tests.program import run
from tests.training.data.public_layouts import (
    LAYOUTS,
    busi,
    images_and_masks,
    write_pictures,
    write_table,
)
from training.data.dataset import DataSettings, LabelTable
from training.data.datasets import read_dataset, read_ood_set
from training.data.images import ImageParts
from training.data.local_images import read_local_images
from training.data.registry import OodSettings
from training.recipe.schema import AdapterRecipe

IMAGEFOLDER = DataSettings(kind="imagefolder")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_layout_is_read_or_refused_with_the_command_that_reads_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, folder, found = LAYOUTS[name], tmp_path / "set", list[ImageParts]()

    def read(recipe: AdapterRecipe, _recipes: Path, data: Path, _copies: None, skip: bool) -> bool:
        found.append(read_dataset(recipe.data, data, skip))
        return True

    monkeypatch.setattr("training.adaptation.train.check_data", read)
    layout.write(folder)
    done = run("train", "imagefolder", "--data", folder / layout.path, "--check")
    assert (done.status == 0) == layout.at_once
    if not layout.at_once:
        assert layout.known in done.err
    if not layout.classes:
        assert done.out == ""
        return
    if done.status:
        program, *words = shlex.split(done.out.splitlines()[0])
        assert program == "eulerlora"
        assert run(*words).status == 0
    (images,) = found
    assert sorted(images.class_names) == [*layout.classes]
    pictures = [image for part in images.parts.values() for image in part]
    assert not any("mask" in image.name for image in pictures)
    groups = [{image.cluster for image in part} - {None} for part in images.parts.values()]
    assert any(groups) == layout.grouped
    assert len(set().union(*groups)) == sum(map(len, groups))
    if layout.parts is not None:
        assert {part: len(members) for part, members in images.parts.items()} == layout.parts


@pytest.mark.parametrize("name", ["HAM10000 of Kaggle", "PAD-UFES-20", "BUSI in a folder"])
def test_a_folder_in_place_of_a_recipe_is_answered_with_the_command_that_trains_on_it(
    name: str, tmp_path: Path
) -> None:
    LAYOUTS[name].write(tmp_path / "set")
    done = run("train", tmp_path / "set")
    refused = run("train", "imagefolder", "--data", tmp_path / "set", "--check")
    assert (done.status, done.out) == (1, refused.out)


def test_readable_pictures_in_place_of_a_recipe_are_answered_with_the_command_too(
    tmp_path: Path,
) -> None:
    LAYOUTS["torchvision"].write(tmp_path / "set")
    archive = shutil.make_archive(str(tmp_path / "archive"), "gztar", tmp_path / "set")
    for data in (str(tmp_path / "set"), archive):
        done = run("train", data)
        expected = ["eulerlora", "train", "imagefolder", "--data", data, "--check"]
        assert (done.status, shlex.split(done.out)) == (1, expected)


def test_class_folders_are_read_by_a_table_that_groups_their_pictures(tmp_path: Path) -> None:
    pictures = [(f"{i}.png", ("mel", "nev")[i % 2], i // 4) for i in range(24)]
    write_pictures(tmp_path, [f"{label}/{name}" for name, label, _ in pictures])
    rows = [{"image": name, "dx": label, "patient": who} for name, label, who in pictures]
    write_table(tmp_path / "clinical.csv", rows)
    options = shlex.split(run("train", tmp_path).out)
    assert options[options.index("--group-column") + 1] == "patient"
    assert run(*options[1:]).status == 0
    write_table(tmp_path / "clinical.csv", [row | {"dx": f"{row['patient']}"} for row in rows])
    assert "--table" not in run("train", tmp_path).out


@pytest.mark.parametrize("cells", [("train", "test"), ("0", "1"), ("False", "True")])
def test_a_column_of_parts_is_read_unless_they_share_patients(
    tmp_path: Path, cells: tuple[str, str]
) -> None:
    column = "subset" if "train" in cells else "is_test"
    write_pictures(tmp_path, [f"{i}.png" for i in range(48)])
    rows = [
        {"image": i, "dx": "ab"[i % 2], "patient": i // 4, column: cells[i // 36]}
        for i in range(48)
    ]
    write_table(tmp_path / "clinical.csv", rows)
    options = shlex.split(run("train", tmp_path).out)
    assert options[options.index("--split-column") + 1] == column
    columns = {"path": "image", "label": "dx", "group": "patient", "split": column}
    settings = DataSettings(kind="imagefolder", tables=("clinical.csv",), columns=columns)
    assert len(read_dataset(settings, tmp_path).parts["test"]) == 12
    rows[-1]["patient"] = 0
    write_table(tmp_path / "clinical.csv", rows)
    options = shlex.split(run("train", tmp_path).out)
    assert "--split-column" not in options
    assert run(*options[1:]).status == 0


def test_masks_beside_class_folders_are_refused_or_ignored(tmp_path: Path) -> None:
    for index, name in enumerate(("benign", "malignant")):
        pictures = [f"{10 * index + i}.png" for i in range(8)]
        write_pictures(tmp_path, [f"{name}/{picture}" for picture in pictures])
        write_pictures(tmp_path, [f"masks/{picture}" for picture in pictures])
    with pytest.raises(DataError, match="masks") as refused:
        read_dataset(IMAGEFOLDER, tmp_path)
    assert refused.value.suggestion.options == ("--ignore", "masks")
    settings = DataSettings(kind="imagefolder", ignored=("masks",))
    assert read_dataset(settings, tmp_path).class_names == ("benign", "malignant")


def test_masks_are_no_out_of_distribution_images(tmp_path: Path) -> None:
    images_and_masks(tmp_path / "flowers")
    images = read_ood_set(OodSettings(kind="images", path="flowers"), tmp_path)
    assert {image.name.split("/")[0] for image in images.images} == {"images"}
    assert "20 masks" in images.notes[0]


def test_stated_classes_may_have_any_name(tmp_path: Path) -> None:
    write_pictures(tmp_path, [f"P{i % 2:03}/{i}.png" for i in range(12)])
    with pytest.raises(DataError, match="patients") as refused:
        read_dataset(IMAGEFOLDER, tmp_path)
    assert refused.value.suggestion.options[0] == "--set"
    settings = DataSettings(kind="imagefolder", classes={"P000": "Ada", "P001": "Grace"})
    assert read_dataset(settings, tmp_path).class_names == ("P000", "P001")


def test_numbers_beside_a_table_of_the_pictures_are_no_classes(tmp_path: Path) -> None:
    write_pictures(tmp_path, [f"{i % 2}/{i}.png" for i in range(12)])
    write_table(tmp_path / "notes.csv", [{"day": 1, "weather": "good"}])
    assert read_dataset(IMAGEFOLDER, tmp_path).class_names == ("0", "1")
    rows = [{"image": i, "diagnosis": "ab"[i // 6], "patient_id": i // 2} for i in range(12)]
    write_table(tmp_path / "clinical.csv", rows)
    with pytest.raises(DataError) as refused:
        read_dataset(IMAGEFOLDER, tmp_path)
    assert refused.value.suggestion.options == (
        "--table", "clinical.csv", "--path-column", "image", "--label-column", "diagnosis",
        "--group-column", "patient_id",
    )  # fmt: skip


def test_a_site_reads_a_table_too(tmp_path: Path) -> None:
    classes = [ClassName(name=name, description=name) for name in ("mel", "nv")]
    write_pictures(tmp_path, [f"batch_{i % 2}/{i}.png" for i in range(12)])
    rows = [{"image": i, "dx": ("mel", "nv")[i // 6]} for i in range(12)]
    write_table(tmp_path / "clinical.csv", rows)
    with pytest.raises(DataError, match="batch_0") as refused:
        read_local_images(tmp_path, classes)
    assert "clinical.csv" in refused.value.suggestion.options
    columns = {"path": "image", "label": "dx"}
    table = LabelTable(tables=("clinical.csv",), columns=columns)
    assert len(read_local_images(tmp_path, classes, table).images) == 12


def test_tables_are_joined_by_the_path_and_state_classes_by_columns(tmp_path: Path) -> None:
    write_pictures(tmp_path, [f"in/{i}.png" for i in range(8)])
    rows = [{"image": i, "A": int(i % 2 == 0), "B": i % 2, "UNK": 0} for i in range(8)]
    write_table(tmp_path / "truth.csv", rows)
    write_table(tmp_path / "meta.csv", [{"image": i, "person": i // 2} for i in range(7)])
    settings = DataSettings(
        kind="imagefolder", tables=("truth.csv", "meta.csv"), one_hot=("A", "B"),
        columns={"path": "image", "group": "person"}, ignore_columns=True,
    )  # fmt: skip
    images = read_dataset(settings, tmp_path)
    assert images.class_names == ("A", "B")
    clusters = {image.name: image.cluster for part in images.parts.values() for image in part}
    assert clusters == {f"in/{i}.png": str(i // 2) if i < 7 else None for i in range(8)}
    rows[5]["A"] = 1
    write_table(tmp_path / "truth.csv", rows)
    with pytest.raises(DataError, match=r"truth.csv line 7: expected a 1 for one class"):
        read_dataset(settings, tmp_path)
    with pytest.raises(DataError, match=r"absent\.csv"):
        read_dataset(settings.model_copy(update={"tables": ("absent.csv",)}), tmp_path)


@pytest.mark.parametrize("place", ["../pictures", "set.zip", "set.tar"])
@pytest.mark.parametrize("name", ["clinical.csv", "labels.csv"])
def test_pictures_are_in_another_folder_than_their_table_or_in_an_archive(
    tmp_path: Path, place: str, name: str
) -> None:
    data, pictures = tmp_path / "data", tmp_path / "pictures"
    write_pictures(pictures, [f"in/{i}.png" for i in range(24)])
    write_table(data / name, [{"image": i, "dx": "ab"[i % 2]} for i in range(24)])
    classes = [ClassName(name=name, description=name) for name in "ab"]
    if "." in place.removeprefix(".."):
        shutil.make_archive(str(data / "set"), place.partition(".")[2], pictures)
        for read in (
            lambda: read_dataset(IMAGEFOLDER, data),
            lambda: read_local_images(data, classes),
        ):
            with pytest.raises(DataError) as refused:
                read()
            assert refused.value.suggestion.options[:2] == ("--images", place)
    columns = {"path": "image", "label": "dx"}
    settings = DataSettings(kind="imagefolder", images=place, tables=(name,), columns=columns)
    images = read_dataset(settings, data)
    assert sorted(image.name for part in images.parts.values() for image in part) == sorted(
        f"in/{i}.png" for i in range(24)
    )
    table = LabelTable(images=place, tables=(name,), columns=columns)
    assert len(read_local_images(data, classes, table).images) == 24


def test_a_recognised_set_is_named(tmp_path: Path) -> None:
    busi(tmp_path)
    notes = " ".join(read_dataset(IMAGEFOLDER, tmp_path).notes)
    assert "BUSI" in notes and "39 masks" in notes
