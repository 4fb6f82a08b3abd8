"""Labels of a user's images: layouts, checks and splits.

Splits keep groups whole and give every part every class.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
import torch
from sklearn.model_selection import train_test_split

from eulerlora_contract.errors import DataError
from eulerlora_contract.printable import printable
from training.data.cache import DecodedImages
from training.data.dataset import DataSettings, LabelTable
from training.data.label_splits import split_labels
from training.data.labels import read_labels
from training.data.splits import split_off

CLASSES = ("blue", "green", "red")


def names(*folders: str, count: int = 10) -> list[str]:
    return [f"{folder}/{index}.png" for folder in folders for index in range(count)]


def decoded(images: Sequence[str], digests: Mapping[str, int] | None = None) -> DecodedImages:
    """`digests` are those of the pixels, different ones by default."""
    pixels = torch.zeros(3, 1, 1, dtype=torch.uint8)
    different = {name: index for index, name in enumerate(images)}
    return DecodedImages(dict.fromkeys(images, pixels), {}, different | dict(digests or {}))


def split(
    folder: Path,
    images: Sequence[str],
    how: str = "lesion",
    classes: Sequence[str] = (),
    digests: Mapping[str, int] | None = None,
):
    settings = DataSettings(kind="imagefolder", split=how, classes={name: name for name in classes})
    return split_labels(settings, folder, decoded(images, digests))


def read(folder: Path, images: Sequence[str], **table: Any):
    return read_labels(folder, decoded(images), LabelTable(**table))


def table(folder: Path, rows: Sequence[str], header: str = "path,label,group,split") -> Path:
    (folder / "labels.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return folder


def named(labels) -> dict[str, set[str]]:
    return {part: {image.name for image in images} for part, images in labels.parts.items()}


def by_class(images: Sequence[str], label: int) -> list[str]:
    return [f"{name},{CLASSES[label]},," for name in images]


def test_attributes_are_further_columns(tmp_path: Path) -> None:
    header = "path,label,Skin_Type,sex"
    folder = table(tmp_path, ["a.png,blue,III,f", "b.png,red,,m"], header)
    labels = read(folder, ["a.png", "b.png"], attributes=["skin_type"], ignore_columns=True)
    assert [row.attributes for row in labels.rows] == [
        {"skin_type": "III"}, {"skin_type": "unknown"}
    ]  # fmt: skip
    for attributes in (["age"], ["label"]):
        with pytest.raises(DataError, match=attributes[0]):
            read(folder, ["a.png", "b.png"], attributes=attributes, ignore_columns=True)


def test_stated_parts_are_kept_and_val_calibrates(tmp_path: Path) -> None:
    images = names(*(f"{part}/{name}" for part in ("train", "val", "test") for name in CLASSES))
    parts = named(split(tmp_path, images))
    assert parts == {
        part: {name for name in images if name.startswith(f"{folder}/")}
        for part, folder in (("train", "train"), ("calibration", "val"), ("test", "test"))
    }
    parts = named(split(tmp_path, images, "lesion-best-epoch"))
    assert parts["validation"] == {name for name in images if name.startswith("val/")}
    assert parts["test"] == {name for name in images if name.startswith("test/")}
    assert all(name.startswith("train/") for name in parts["train"] | parts["calibration"])
    assert len(parts["train"]) == 27


def test_val_without_test_is_the_test_part_and_is_not_mixed_with_train(tmp_path: Path) -> None:
    images = names(*(f"{part}/{name}" for part in ("train", "val") for name in CLASSES))
    labels = split(tmp_path, images)
    assert named(labels)["test"] == {name for name in images if name.startswith("val/")}
    assert labels.labels.notes == ("val is the test part, because no test part is given",)


def test_train_alone_is_split_with_a_note(tmp_path: Path) -> None:
    labels = split(tmp_path, names(*(f"train/{name}" for name in CLASSES)))
    assert {part: len(images) for part, images in labels.parts.items()} == {
        "train": 21,
        "calibration": 3,
        "test": 6,
    }
    assert "a fifth of them becomes the test part" in labels.labels.notes[0]


def test_the_class_is_the_first_folder_below_the_part(tmp_path: Path) -> None:
    labels = split(tmp_path, names("blue/a", "blue/b", "red/a"))
    assert list(labels.classes) == ["blue", "red"]
    labels = split(tmp_path, names("train/blue/x", "train/red", "test/blue", "test/red/y"))
    assert list(labels.classes) == ["blue", "red"]


@pytest.mark.parametrize(
    "folders",
    [
        {"seg_train/seg_train": "train", "seg_test/seg_test": "test"},  # Intel Image Classification
        {"train/images": "train", "test/images": "test"},
        {"train": "train", "test/test": "test"},
    ],
)
def test_a_part_may_have_one_folder_for_all_its_classes(
    tmp_path: Path, folders: dict[str, str]
) -> None:
    pictures = names(*(f"{folder}/{name}" for folder in folders for name in CLASSES))
    other = names("seg_pred/seg_pred")
    for name in (*pictures, *other):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    labels = split(tmp_path, [*pictures, *other])
    assert list(labels.classes) == [*CLASSES]
    parts = named(labels)
    assert {name for part, found in parts.items() if part != "test" for name in found} == {
        name for name in pictures if name.startswith("seg_train/") or name.startswith("train/")
    }
    (tmp_path / next(iter(folders)) / "purple").mkdir()
    with pytest.raises(DataError, match="purple") as refused:
        split(tmp_path, pictures)
    assert refused.value.suggestion.options == ("--ignore", "purple")
    settings = DataSettings(kind="imagefolder", ignored=("purple",))
    assert list(split_labels(settings, tmp_path, decoded(pictures)).classes) == [*CLASSES]


def test_the_outer_folder_of_an_archive_is_no_class(tmp_path: Path) -> None:
    images = names("set/train/red", "set/train/blue", "set/test/red", "set/test/blue")
    labels = read(tmp_path / "set.tar", images)
    assert Counter((row.part, row.label) for row in labels.rows) == {
        (part, name): 10 for part in ("train", "test") for name in ("blue", "red")
    }
    assert {row.label for row in read(tmp_path, images).rows} == {"set"}


def test_every_part_has_every_class_even_a_small_one(tmp_path: Path) -> None:
    images = [*names("blue", "green", count=60), *names("red", count=3)]
    labels = split(tmp_path, images)
    for part, members in labels.parts.items():
        assert {image.label for image in members} == {*CLASSES}, part
    assert sum(len(members) for members in labels.parts.values()) == len(images)


@pytest.mark.parametrize("how", ["lesion", "lesion-best-epoch", "lesion-validation"])
def test_a_group_is_never_in_two_parts(tmp_path: Path, how: str) -> None:
    rows = [
        f"{label}/{patient}-{index}.png,{name},P{patient},"
        for label, name in enumerate(CLASSES)
        for patient in range(12)
        for index in range(1 + patient % 4)
    ]  # patients have pictures of several classes
    labels = split(table(tmp_path, rows), [row.split(",")[0] for row in rows], how)
    groups = {part: {image.cluster for image in images} for part, images in labels.parts.items()}
    present = 12 if how != "lesion-validation" else 9  # it drops the test part
    assert sum(len(members) for members in groups.values()) == present
    assert len(set().union(*groups.values())) == present
    for members in labels.parts.values():
        assert {image.label for image in members} == {*CLASSES}


def test_a_table_states_parts_groups_and_labels_and_ignores_other_images(tmp_path: Path) -> None:
    rows = [
        f"{part}-{name}.png, {name} ,{part}{name},{part}"
        for part in ("train", "Val", "test")
        for name in CLASSES
    ]
    images = [row.split(",")[0] for row in rows]
    labels = split(table(tmp_path, rows, " Path,LABEL,group,split"), [*images, "more.png"])
    assert {part: len(members) for part, members in labels.parts.items()} == {
        "train": 3,
        "calibration": 3,
        "test": 3,
    }
    assert list(labels.classes) == list(CLASSES)
    assert labels.labels.notes == (
        "1 images are not in labels.csv and are left out, such as more.png",
    )


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (["a.png,red,,", "b.png,red,,"], ["'red'"]),
        (["a.png,red,,", "./a.png,blue,,"], ["a.png", "line 2", "line 3"]),
        (["a.png,red,,", "b.png,Red,,"], ["line 2", "line 3", "b.png"]),
        (["a.png,red,,", "b.png,red"], ["line 3"]),
        (["a.png,red,,", "b.png,red,,,"], ["line 3"]),
        (["a.png,red,,", "b.png,,,"], ["line 3"]),
        (["a.png,red,,train", "b.png,blue,,"], ["line 3", "b.png"]),
        (["a.png,red,,held out"], ["line 2", "held out"]),
        (
            ["a.png,red,P1,train", "b.png,red,P1,test", "c.png,blue,,train", "d.png,blue,,test"],
            ["P1", "line 2", "line 3"],
        ),
        (["a.png,red,,train", "b.png,red,,test", "c.png,blue,,train"], ["class blue", "test"]),
        (
            [*by_class(names("a"), 0), *by_class(names("b"), 1), *by_class(names("c", count=2), 2)],
            ["class red", "c/0.png"],
        ),
        ([*by_class(names("a"), 0), *(f"b/{i}.png,red,P7," for i in range(9))], ["red", "P7"]),
    ],
)
def test_unusable_tables_are_one_line_with_class_and_file(
    tmp_path: Path, rows: list[str], named: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        split(table(tmp_path, rows), [row.split(",")[0] for row in rows])
    assert all(part in str(caught.value) for part in [str(tmp_path / "labels.csv"), *named])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("folders", "classes", "named"),
    [
        (["red"], (), "'red'"),
        (["red", "blue", "Red"], (), "red/0.png"),
        (["train/red", "train/blue", "test/red"], (), "test/blue"),
        (["val/red", "val/blue", "test/red", "test/blue"], (), "train"),
        (["."], (), "folder for each class"),
        (["val/red", "val/blue"], ("blue", "red"), "train"),
        (["blue", "red"], ("blue", "red", "white"), "white"),
        (["blue", "green", "red"], ("blue", "green"), "red"),
    ],
)
def test_unusable_folders_are_refused_with_the_class(
    tmp_path: Path, folders: list[str], classes: Sequence[str], named: str
) -> None:
    with pytest.raises(DataError, match=re.escape(named)):
        split(tmp_path, names(*folders), classes=classes)


def test_an_empty_class_folder_is_refused_unless_the_classes_are_stated(tmp_path: Path) -> None:
    images = names("blue", "red", "part/train/blue", "part/train/red")
    for folder in ("blue", "red", ".hidden", "green", "part/train/green"):
        (tmp_path / folder).mkdir(parents=True)
    for path in (tmp_path, tmp_path / "part"):
        inside = [
            name.removeprefix("part/") for name in images if ("part" in name) == (path != tmp_path)
        ]
        with pytest.raises(DataError, match="green"):
            split(path, inside)
        assert len(split(path, inside, classes=("blue", "red")).classes) == 2


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("", ()),
        ("name,dx", ("path", "label")),
        ("path,label,groups", ("groups", "group")),
        ("path,label,Patient", ("patient", "group")),
        ("path,label,lesion_id,set", ("lesion_id", "lesion", "set", "split")),
        ("path,label,group,patient", ("patient",)),
        ("path,label,sex", ("sex",)),
        ("path,label,label", ("label",)),
        ("image,label", ("image", "path")),
    ],
)
def test_unknown_columns_are_refused_with_the_likely_name(
    tmp_path: Path, columns: str, named: tuple[str, ...]
) -> None:
    table(tmp_path, [], columns)
    with pytest.raises(DataError) as caught:
        split(tmp_path, [])
    place, _, got = str(caught.value).partition(": ")
    assert place == f"{tmp_path / 'labels.csv'} line 1"
    assert all(name in got.rpartition("got ")[2] for name in named)
    if named[1:2] == ("group",):
        assert f"did you mean --group-column {named[0]}?" in got
    else:
        assert "--group-column " not in got.partition("; rename")[0]
    if columns.startswith("image,"):
        assert "image (did you mean --path-column image?)" in got


def test_ignored_columns_are_named_and_the_known_ones_are_read(tmp_path: Path) -> None:
    rows = [f"{name}/{i}.png,p{i},{name},{i}" for name in ("blue", "red") for i in range(10)]
    table(tmp_path, rows, "path,patient,label,group")
    labels = read(tmp_path, names("blue", "red"), ignore_columns=True)
    assert (labels.rows[3].label, labels.rows[3].cluster) == ("blue", "3")
    assert labels.notes == ("ignored columns of labels.csv: patient",)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_other_separators_backslashes_and_byte_order_marks_are_read(
    tmp_path: Path, separator: str
) -> None:
    rows = [f"a\\{i}.png,{label},g{i}".replace(",", separator) for i, label in enumerate(CLASSES)]
    table(tmp_path, rows, "\ufeffpath,label,group".replace(",", separator))
    labels = read(tmp_path, names("a", count=3))
    assert [(row.name, row.label, row.cluster) for row in labels.rows] == [
        (f"a/{i}.png", label, f"g{i}") for i, label in enumerate(CLASSES)
    ]
    assert len(labels.notes) == 1 + (separator != ",")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Train", "train"), ("TRAINING", "train"), ("trn", "train"), ("images_train", "train"),
        ("train_set", "train"), ("trainset", "train"), ("TrainImages", "train"),
        ("train2017", "train"), ("01-train", "train"), ("Val", "validation"),
        ("valid", "validation"), ("Validation data", "validation"), ("dev", "validation"),
        ("Testing", "test"), ("Test-2024", "test"), ("myTestSet", "test"),
        ("nevus", None), ("trained", None), ("latest", None), ("contest", None),
        ("invalid", None), ("value", None), ("device", None), ("train_test", None), ("", None),
    ],
)  # fmt: skip
def test_a_part_is_a_word_of_a_name_in_any_case(
    tmp_path: Path, name: str, part: str | None
) -> None:
    table(tmp_path, [f"0.png,red,,{name}"])
    if name and part is None:
        with pytest.raises(DataError, match="expected a split of train, val or test"):
            read(tmp_path, ["0.png"])
        return
    assert read(tmp_path, ["0.png"]).rows[0].part == part


def test_folders_of_parts_have_any_usual_name_and_are_named(tmp_path: Path) -> None:
    folders = {"images_train": "train", "valid_set": "calibration", "Test-2024": "test"}
    images = names(*(f"{folder}/{name}" for folder in folders for name in CLASSES))
    labels = split(tmp_path, images)
    assert list(labels.classes) == [*CLASSES]
    assert named(labels) == {
        part: {name for name in images if name.startswith(folder)}
        for folder, part in folders.items()
    }
    assert all(folder in labels.labels.notes[0] for folder in folders)


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        (["Train/red", "Train/blue", "Exam/red", "Exam/blue"], "Exam"),  # a part of another name
        (["train/red", "train/blue", "train_test/red", "test/red", "test/blue"], "train_test"),
        (["train/red", "train/blue", "Test"], "Test"),  # a part without classes
        (["A/red", "A/blue", "B/red", "B/blue"], "A, B"),
        (["red/train", "red/test", "blue/train", "blue/test"], "blue, red"),
        (["Training", "Testing"], "Testing, Training"),
        (["red", "blue", "test/red", "test/blue"], "folders of classes in test"),
        (["red", "blue", "new pictures/red"], "folders of classes in new pictures"),
    ],
)
def test_a_part_that_would_be_left_out_or_be_a_class_is_refused(
    tmp_path: Path, folders: list[str], named: str
) -> None:
    with pytest.raises(DataError, match=re.escape(named)):
        split(tmp_path, names(*folders))


@pytest.mark.parametrize(
    "folders",
    [
        ["red/a", "red/b", "blue/a"],  # other sub-folders
        ["red/images", "blue/images"],
        ["train", "bus", "car"],
        ["bullet train/a", "bus/b"],
    ],
)
def test_class_folders_may_have_sub_folders_and_words_of_parts(
    tmp_path: Path, folders: list[str]
) -> None:
    labels = split(tmp_path, names(*folders))
    assert set(labels.classes) == {folder.split("/")[0] for folder in folders}


@pytest.mark.parametrize(
    "folders",
    [
        ["HAM10000_images_part_1", "HAM10000_images_part_2"],
        ["imgs_part_1", "imgs_part_2", "imgs_part_3"],
        ["batch1", "batch2"], ["Fold1", "Fold2"], ["images", "annotations"],
        ["images_001", "images_002"], ["Original Images", "Augmented Images"],
        ["P001", "P002"], ["patient1", "patient2"], ["PAT_8_15", "PAT_9_17"], ["sub-01", "sub-02"],
        ["case 12", "case 7"], ["1001", "1002"], ["001", "002", "003"], ["IMD002", "IMD003"],
        ["TCGA-01-0001", "TCGA-02-0007"], ["40X", "100X", "200X"],
        ["0a1b2c3d", "9f8e7d6c"], ["2021-03-05", "2021-04-01"], ["images", "masks"],
    ],
)  # fmt: skip
def test_parts_patients_and_identifiers_are_no_classes(tmp_path: Path, folders: list[str]) -> None:
    pictures = [f"{folder}/{folder}-{index}.png" for folder in folders for index in range(10)]
    with pytest.raises(DataError, match="got folders of"):
        split(tmp_path, pictures)


@pytest.mark.parametrize(
    "folders",
    [
        ["melanoma", "nevus"], ["0", "1"], [*map(str, range(10))], ["c0", "c1", "c2"],
        ["00000", "00001", "00002"], ["1", "2", "3"], ["Type_1", "Type_2", "Type_3"],
        ["grade 2", "grade 3"], ["BIRADS4", "BIRADS5"], ["n01440764", "n02102040"],
        ["class_001", "class_002"], ["mask", "no_mask"], ["with_mask", "without_mask"],
        ["case", "control"], ["patients", "healthy"], ["original", "forged"], ["0-2", "4-6"],
        ["train", "bus", "car"], ["A", "B"], ["p", "q"], ["Normal", "Person"],
        ["digit 3", "digit 8"], ["mask", "no_mask", "wrong_mask"],
    ],
)  # fmt: skip
def test_words_and_counted_numbers_are_classes(tmp_path: Path, folders: list[str]) -> None:
    assert sorted(split(tmp_path, names(*folders)).classes) == sorted(folders)


@pytest.mark.parametrize(
    ("pictures", "masks"),
    [
        (["a/x (1).png", "a/x (1)_mask.png", "a/x (1)_mask_1.png"], [1, 2]),
        (["a/x.jpg", "a/x_segmentation.png", "a/y_segmentation.png"], [1]),
        (["a/x.jpg", "a/x-Mask.PNG", "a/mask_x.png", "a/x.mask.png", "a/x_gt.png"], [1, 2, 3, 4]),
        (["images/x.png", "masks/x.png"], [1]),
        (["a/images/x.png", "a/masks/x_mask.png"], [1]),
        (["Input/x.jpg", "GroundTruth/x_segmentation.png"], [1]),
        (["a/x.jpg", "a/masks/x.png"], [1]),
        (["images/x.png", "masks/y.png"], []),
        (["mask/1.png", "no_mask/1.png"], []),
        (["mask/x_mask.png", "other/x.png"], []),
        (["a/mask.png", "a/label.png"], []),
    ],
)
def test_masks_are_told_by_their_names_and_the_pictures_that_they_belong_to(
    tmp_path: Path, pictures: list[str], masks: list[int]
) -> None:
    assert read(tmp_path, pictures).masks == {pictures[index] for index in masks}


@pytest.mark.parametrize("other", ["Red", "re d", "red\u200b", "red 1.0", "red 1.00"])
def test_two_spellings_of_a_class_are_refused(tmp_path: Path, other: str) -> None:
    first = "red 1" if "1" in other else "red"
    with pytest.raises(DataError, match="one spelling"):
        split(tmp_path, names(first, other, "blue"))


def test_stated_classes_with_equal_sub_folders_are_no_parts(tmp_path: Path) -> None:
    images = names("left/red", "left/blue", "right/red", "right/blue")
    assert len(split(tmp_path, images, classes=("left", "right")).classes) == 2


def test_another_table_and_another_spelling_of_labels_csv_are_named(tmp_path: Path) -> None:
    table(tmp_path, [f"{i}.png,{i % 2}" for i in range(4)], "path,label")
    (tmp_path / "labels.csv").rename(tmp_path / "Labels.CSV")
    (tmp_path / "metadata.csv").touch()
    labels = read(tmp_path, [f"{i}.png" for i in range(4)])
    assert ([row.label for row in labels.rows], len(labels.notes)) == (["0", "1", "0", "1"], 1)
    (tmp_path / "Labels.CSV").unlink()
    for images in (["0.png", "1.png"], names("images")):
        with pytest.raises(DataError, match=r"metadata.csv"):
            split(tmp_path, images)
    assert "metadata.csv" in split(tmp_path, names("blue", "red")).labels.notes[0]


@pytest.mark.parametrize(
    ("header", "column"),
    [("image,patient_id", "patient_id"), ("image,dx,lesion_id", "lesion_id"), ("image,age", None)],
)
def test_an_unread_table_with_patients_is_a_warning_of_leakage(
    tmp_path: Path, header: str, column: str | None
) -> None:
    images = names("blue", "red")
    rows = [",".join([name, *["1"] * header.count(",")]) for name in images]
    (tmp_path / "metadata.csv").write_text("\n".join([header, *rows]))
    warnings = [note for note in split(tmp_path, images).labels.notes if "too good" in note]
    assert [column in note for note in warnings] == [True] * (column is not None)


def test_two_tables_of_labels_are_refused(tmp_path: Path) -> None:
    for name in ("labels.csv", "Labels.csv"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"Labels.csv and labels.csv"):
        read(tmp_path, ["a.png"])


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "Unnamed: 0.1"])
def test_the_index_column_of_pandas_is_ignored_with_a_note(tmp_path: Path, name: str) -> None:
    rows = [f"{i},{i}.png,{label}" for i, label in enumerate(CLASSES)]
    images = [f"{i}.png" for i in range(3)]
    labels = read(table(tmp_path, rows, f"{name},path,label"), images)
    assert [row.label for row in labels.rows] == [*CLASSES]
    assert len(labels.notes) == 1
    with pytest.raises(DataError, match="line 1"):
        read(table(tmp_path, [f"P{row}" for row in rows], f"{name},path,label"), ["0.png"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_table_is_read_in_the_encoding_of_its_byte_order_mark(
    tmp_path: Path, encoding: str
) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n0.png,Nävus\n", encoding=encoding)
    assert read(tmp_path, ["0.png"]).rows[0].label == "Nävus"


def test_another_encoding_is_named_or_suggested(tmp_path: Path) -> None:
    rows = "".join(f"{i}.png,{'Nävus' if i % 2 else 'Fleck'}\n" for i in range(20))
    (tmp_path / "labels.csv").write_text(f"path,label\n{rows}", encoding="cp1252")
    images = names(".", count=20)
    labels = read(tmp_path, images, encoding="cp1252")
    assert {row.label for row in labels.rows} == {"Nävus", "Fleck"}
    with pytest.raises(DataError, match=r"labels\.csv") as refused:
        split(tmp_path, images)
    assert refused.value.suggestion.options == ("--encoding", "cp1252")
    for absent in ("cp12", "utf-16"):
        with pytest.raises(DataError):
            read(tmp_path, images, encoding=absent)


@pytest.mark.parametrize("line", ["[1]", "{", "3", r'{"label": "\ud800"}'])
def test_a_line_that_is_no_json_object_is_refused(tmp_path: Path, line: str) -> None:
    good = '{"file_name": "0.png", "label": 1, "group": null}'
    (tmp_path / "metadata.jsonl").write_text(f"{good}\n\n")
    (row,) = read(tmp_path, ["0.png"]).rows
    assert (row.name, row.label, row.cluster) == ("0.png", "1", None)
    (tmp_path / "metadata.jsonl").write_text(f"{good}\n\n{line}\n")
    with pytest.raises(DataError, match=r"metadata\.jsonl line 3"):
        read(tmp_path, ["0.png"], tables=["metadata.jsonl"])


def test_metadata_without_labels_leaves_them_to_the_folders(tmp_path: Path) -> None:
    images = names("blue", "red")
    (tmp_path / "metadata.csv").write_text(
        "\n".join(["file_name,age", *(f"{n},4" for n in images)])
    )
    assert {row.label for row in read(tmp_path, images).rows} == {"blue", "red"}


def test_a_table_in_each_part_names_pictures_beside_it(tmp_path: Path) -> None:
    for part, label in (("train", "blue"), ("test", "red")):
        (tmp_path / part).mkdir()
        (tmp_path / part / "truth.csv").write_text(f"path,label\n0.png,{label}\n1.png,green\n")
    images = [f"{part}/{i}.png" for part in ("train", "test") for i in range(2)]
    labels = read(tmp_path, images, tables=["truth.csv"])
    assert {row.name: (row.label, row.place) for row in labels.rows} == {
        "train/0.png": ("blue", "train/truth.csv line 2"),
        "train/1.png": ("green", "train/truth.csv line 3"),
        "test/0.png": ("red", "test/truth.csv line 2"),
        "test/1.png": ("green", "test/truth.csv line 3"),
    }
    (tmp_path / "test" / "truth.csv").write_text("path,diagnosis\n0.png,red\n")
    with pytest.raises(DataError, match="diagnosis"):
        read(tmp_path, images, tables=["truth.csv"])


@pytest.mark.parametrize("group", ["", "P1"])
def test_folders_of_parts_are_the_parts_of_a_table_unless_they_divide_a_group(
    tmp_path: Path, group: str
) -> None:
    images = names(*(f"{part}/{name}" for part in ("train", "valid") for name in CLASSES))
    table(tmp_path, [f"{name},{name.split('/')[1]},{group}" for name in images], "path,label,group")
    parts = {row.part for row in read(tmp_path, images).rows}
    assert parts == ({None} if group else {"train", "validation"})


def test_a_suffix_tells_pictures_of_one_name_apart(tmp_path: Path) -> None:
    images = [f"{kind}/{i}.{kind}" for i in range(12) for kind in ("jpg", "png")]
    rows = [{"path": i, "label": "ab"[i % 2]} for i in range(12)]
    table(tmp_path, [f"{row['path']},{row['label']}" for row in rows], "path,label")
    labels = read(tmp_path, images, suffix=".png")
    assert {row.name for row in labels.rows} == {f"png/{i}.png" for i in range(12)}
    with pytest.raises(DataError, match=r"jpg/0\.jpg and png/0\.png") as refused:
        split(tmp_path, images)
    assert refused.value.suggestion.options[0] == "--suffix"


def test_columns_of_ones_are_the_classes_if_no_other_column_is(tmp_path: Path) -> None:
    rows = [f"{i}.png,{int(i % 2 == 0)},{i % 2}" for i in range(4)]
    images = names(".", count=4)
    labels = read(table(tmp_path, rows, "path,MEL,nv"), images)
    assert [row.label for row in labels.rows] == ["MEL", "nv", "MEL", "nv"]
    with pytest.raises(DataError, match="label"):
        read(table(tmp_path, [*rows[:3], "3.png,1,1"], "path,MEL,nv"), images)


def test_columns_are_named_by_settings(tmp_path: Path) -> None:
    rows = [f"P{i},{i}.png,{label},dev,x" for i, label in enumerate(CLASSES)]
    table(tmp_path, rows, "Patient,File Name,DX,fold,site")
    columns = {"path": "file name", "label": "dx", "group": "patient", "split": "Fold"}
    with pytest.raises(DataError, match="site"):
        read(tmp_path, ["0.png"], columns=columns)
    images = [f"{i}.png" for i in range(3)]
    labels = read(tmp_path, images, columns=columns, ignore_columns=True)
    assert [(row.name, row.label, row.cluster, row.part) for row in labels.rows] == [
        (f"{i}.png", label, f"P{i}", "validation") for i, label in enumerate(CLASSES)
    ]


@pytest.mark.parametrize("column", ["path", "label", "group", "lesion", "split"])
def test_a_missing_column_that_a_setting_names_is_refused(tmp_path: Path, column: str) -> None:
    table(tmp_path, ["0.png,blue,P0,train"], "path,label,patient_id,fold")
    columns = {"group": "patient_id", "split": "fold"}
    assert read(tmp_path, ["0.png"], columns=columns).rows[0].cluster == "P0"
    with pytest.raises(DataError, match="absent"):
        read(tmp_path, ["0.png"], columns=columns | {column: "absent"}, ignore_columns=True)


def test_the_default_name_of_an_optional_column_may_be_given_without_the_column(
    tmp_path: Path,
) -> None:
    table(tmp_path, ["0.png,blue"], "path,label")
    columns = {"group": "group", "split": "Split"}
    assert read(tmp_path, ["0.png"], columns=columns).rows[0].cluster is None


def test_a_column_that_is_likely_to_be_the_named_one_is_stated(tmp_path: Path) -> None:
    table(tmp_path, ["0.png,blue,P0"], "path,label,patient_id")
    with pytest.raises(DataError, match=r"did you mean --group-column patient_id\?"):
        read(tmp_path, ["0.png"], columns={"group": "patient"})


def test_absolute_paths_and_other_unicode_forms_are_names_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    stored = [normalize("NFD", "Fälle/ä.png"), normalize("NFC", "Fälle/ö.png"), "b.png", "c.png"]
    cells = [
        normalize("NFC", stored[0]), normalize("NFD", stored[1]),
        f"{tmp_path}/link/b.png", f"{tmp_path}/real/c.png",
    ]  # fmt: skip
    forms = [normalize("NFC", "Nävus"), normalize("NFD", "Nävus"), "other", "other"]
    rows = [f"{cell},{label},{label}" for cell, label in zip(cells, forms, strict=True)]
    labels = read(table(tmp_path / "link", rows, "path,label,group"), stored)
    assert [row.name for row in labels.rows] == stored
    assert len({row.label for row in labels.rows}) == len({row.cluster for row in labels.rows}) == 2


def test_a_cell_is_the_end_of_one_path(tmp_path: Path) -> None:
    stored = ["a/x.png", "b/x.png", "b/images/Y.jpg", "c/y.jpg.png", "b/masks/Y.jpg", "d/Y2.jpg"]

    def picture_of(cell: str) -> str:
        return read(table(tmp_path, [f"{cell},red"], "path,label"), stored).rows[0].name

    assert [picture_of(cell) for cell in ("a/x.png", "a/x", "y2", "Y2.JPG", "no")] == [
        "a/x.png", "a/x.png", "d/Y2.jpg", "d/Y2.jpg", "no"
    ]  # fmt: skip
    of_label_studio = "/data/local-files/?d=b/x.png"
    assert picture_of(of_label_studio) == "b/x.png"
    assert picture_of("Y.jpg") == "b/images/Y.jpg"
    assert picture_of("y.jpg") == "c/y.jpg.png"
    with pytest.raises(DataError, match=r"a/x.png and b/x.png"):
        picture_of("x.png")


def test_a_converted_picture_has_the_path_of_its_original(tmp_path: Path) -> None:
    rows = ["a.bmp,red", "b.TIF,blue", "c.png,blue"]
    labels = read(table(tmp_path, rows, "path,label"), ["a.bmp.png", "b.TIF.png", "c.png"])
    assert [row.name for row in labels.rows] == ["a.bmp.png", "b.TIF.png", "c.png"]


def test_class_folders_in_other_unicode_forms_are_one_class(tmp_path: Path) -> None:
    forms = [f"train/{normalize('NFC', 'Nävus')}", f"test/{normalize('NFD', 'Nävus')}"]
    images = names(*forms, "train/other", "test/other")
    assert list(split(tmp_path, images).classes) == ["Nävus", "other"]


@pytest.mark.parametrize("name", [os.fsdecode(b"m\xe9lanome"), " "])
def test_a_folder_whose_name_is_no_class_is_refused_with_its_printable_name(
    tmp_path: Path, name: str
) -> None:
    for part in ("", "train/"):
        with pytest.raises(DataError, match="rename") as refused:
            split(tmp_path, names(f"{part}{name}", f"{part}red"))
        assert printable(f"{tmp_path}/{part}{name}: ") in str(refused.value)


@pytest.mark.parametrize("missing", ["", "nan", "NaN", "NA", "<NA>", "null"])
def test_missing_labels_are_refused_and_missing_groups_are_none(
    tmp_path: Path, missing: str
) -> None:
    labels = read(table(tmp_path, [f"0.png,red,{missing}"], "path,label,group"), ["0.png"])
    assert labels.rows[0].cluster is None
    with pytest.raises(DataError, match="line 2"):
        read(table(tmp_path, [f"0.png,{missing},P1"], "path,label,group"), ["0.png"])


def test_rows_of_unknown_patients_are_no_group_and_spellings_of_one_are(tmp_path: Path) -> None:
    rows = [
        f"{i}.png,red,{group}" for i, group in enumerate(["-1", "-1", "P-1", "p001", "unknown"])
    ]
    labels = read(table(tmp_path, rows, "path,label,group"), [f"{i}.png" for i in range(5)])
    clusters = [row.cluster for row in labels.rows]
    assert clusters == [None, None, "P-1", "P-1", None]
    assert len(labels.notes) == 2


def test_lesions_numbered_within_patients_are_unknown_where_the_patient_is(tmp_path: Path) -> None:
    rows = ["0.png,red,P1,1", "1.png,red,P2,1", "2.png,red,unknown,1", "3.png,red,,1"]
    labels = read(table(tmp_path, rows, "path,label,group,lesion"), names(".", count=4))
    assert [(row.cluster, row.lesion) for row in labels.rows] == [
        ("P1", "P1/1"), ("P2", "P2/1"), (None, None), (None, None)
    ]  # fmt: skip


def test_copies_of_a_class_are_one_group_of_the_split(tmp_path: Path) -> None:
    images = names("blue", "red", count=40)
    digests = {f"blue/{i}.png": -1 - i // 2 for i in range(40)}  # twenty pairs
    labels = split(tmp_path, images, "lesion-best-epoch", digests=digests)
    groups = {part: {image.cluster for image in members} for part, members in labels.parts.items()}
    pairs = [{c for c in groups[part] if c is not None} for part in groups]
    assert sum(map(len, pairs)) == len(set().union(*pairs)) == 20
    assert labels.labels.notes[0].startswith("20 copies")
    assert all(image.cluster is None for image in labels.parts["train"] if image.label == "red")


def test_copies_unite_their_groups_and_those_of_other_classes_or_parts_do_not(
    tmp_path: Path,
) -> None:
    rows = ["a.png,red,P1", "b.png,red,P2", "c.png,red,", "d.png,blue,P3", "e.png,red,P2",
            *(f"{i}.png,{CLASSES[i % 2 * 2]},Q{i}" for i in range(30))]  # fmt: skip
    copies = dict.fromkeys(["a.png", "b.png", "c.png", "d.png"], -1)
    images = [row.split(",")[0] for row in rows]
    labels = split(table(tmp_path, rows, "path,label,group"), images, digests=copies)
    cluster = {row.name: row.cluster for row in labels.labels.rows}
    assert len({cluster[name] for name in ("a.png", "b.png", "c.png", "e.png")}) == 1
    assert cluster["d.png"] == "P3"

    parts = [f"{part}/{name}" for part in ("train", "test") for name in CLASSES]
    copies = dict.fromkeys(["train/red/0.png", "test/red/0.png"], -1)
    assert all(
        row.cluster is None
        for row in split(tmp_path / "other", names(*parts), digests=copies).labels.rows
    )


def test_lesions_are_numbered_within_their_group_and_are_the_group_without_one(
    tmp_path: Path,
) -> None:
    rows = [
        "0.png,red,P1,1",
        "1.png,red,P1,2",
        "2.png,blue,P2,1",
        "3.png,blue,,L7",
        "4.png,red,P3,",
    ]
    labels = read(table(tmp_path, rows, "path,label,group,lesion"), names(".", count=5))
    assert [(row.cluster, row.lesion) for row in labels.rows] == [
        ("P1", "P1/1"), ("P1", "P1/2"), ("P2", "P2/1"), ("L7", "L7"), ("P3", None),
    ]  # fmt: skip


def test_copies_are_one_lesion_where_lesions_are_known(tmp_path: Path) -> None:
    rows = [f"{i}.png,{CLASSES[i % 3]},P{i},{'' if i == 3 else 1}" for i in range(60)]
    copies = dict.fromkeys(["0.png", "3.png", "6.png"], -1)
    images = [row.split(",")[0] for row in rows]
    labels = split(table(tmp_path, rows, "path,label,group,lesion"), images, digests=copies)
    same = [(row.cluster, row.lesion) for row in labels.labels.rows if row.name in copies]
    assert len(same) == 3 and len(set(same)) == 1 and same[0][1] is not None


@dataclass(frozen=True)
class Picture:
    name: int
    label: int
    cluster: str | None = None


def test_without_groups_a_part_is_the_stratified_one_of_scikit_learn() -> None:
    items = [Picture(index, index % 3) for index in range(100)]
    first, second = split_off(items, 0.1)
    expected = train_test_split(
        items, test_size=0.1, stratify=[item.label for item in items], random_state=42
    )
    assert [list(first), list(second)] == expected


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_class_with_two_groups_is_in_both_parts(share: float) -> None:
    items = [Picture(index, 0, f"p{index // 4}") for index in range(80)]
    items += [Picture(80 + index, 1, f"q{index // 5}") for index in range(10)]
    first, second = split_off(items, share)
    assert Counter(item.label for item in first).keys() == {0, 1}
    assert Counter(item.label for item in second).keys() == {0, 1}
    assert not {item.cluster for item in first} & {item.cluster for item in second}
    assert sorted(item.name for item in (*first, *second)) == list(range(90))


def test_a_class_that_occurs_only_beside_rarer_ones_is_in_both_parts() -> None:
    items = [Picture(2 * index + label, label, f"p{index}") for index in range(8)
             for label in (0, 1)]  # fmt: skip
    items += [Picture(16 + index, 2) for index in range(40)]
    first, second = split_off(items, 0.1)
    for part in (first, second):
        assert {item.label for item in part} == {0, 1, 2}
