"""Labels of a user's images: layouts, checks and splits.

Splits keep groups whole and give every part every class.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from sklearn.model_selection import train_test_split

from eulerlora_contract.errors import DataError
from training.data.labels import SplitLabels, folder_labels, read_labels, split_labels
from training.data.splits import SPLIT_SEED, split_off
from training.recipe.schema import DataSettings, Split

CLASSES = ("blue", "green", "red")


def names(*folders: str, count: int = 10) -> list[str]:
    return [f"{folder}/{index}.png" for folder in folders for index in range(count)]


def split(
    folder: Path, images: Sequence[str], how: Split = "lesion", classes: Sequence[str] = ()
) -> SplitLabels:
    settings = DataSettings(kind="imagefolder", split=how, classes={name: name for name in classes})
    return split_labels(settings, folder, images)


def table(folder: Path, rows: Sequence[str], header: str = "path,label,group,split") -> Path:
    (folder / "labels.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return folder


def named(labels: SplitLabels) -> dict[str, set[str]]:
    return {part: {image.name for image in images} for part, images in labels.parts.items()}


def by_class(images: Sequence[str], label: int) -> list[str]:
    return [f"{name},{CLASSES[label]},," for name in images]


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


def test_the_outer_folder_of_an_archive_is_no_class() -> None:
    images = names("set/train/red", "set/train/blue", "set/test/red", "set/test/blue")
    labels = folder_labels(images, packed=True)
    assert Counter((row.part, row.label) for row in labels) == {
        (part, name): 10 for part in ("train", "test") for name in ("blue", "red")
    }
    assert {row.label for row in folder_labels(images)} == {"set"}


def test_every_part_has_every_class_even_a_small_one(tmp_path: Path) -> None:
    images = [*names("blue", "green", count=60), *names("red", count=3)]
    labels = split(tmp_path, images)
    for part, members in labels.parts.items():
        assert {image.label for image in members} == {*CLASSES}, part
    assert sum(len(members) for members in labels.parts.values()) == len(images)


@pytest.mark.parametrize("how", ["lesion", "lesion-best-epoch", "lesion-validation"])
def test_a_group_is_never_in_two_parts(tmp_path: Path, how: Split) -> None:
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
        (["set/blue", "set/red"], (), "data directory"),
        (["red", "blue", "Red"], (), "red/0.png"),
        (["train/red", "train/blue", "test/red"], (), "test/blue"),
        (["val/red", "val/blue", "test/red", "test/blue"], (), "train"),
        (["."], (), "folder for each class"),
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
        ("path,label,lesion_id,set", ("lesion_id", "group", "set", "split")),
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
    assert ("did you mean group" in got) == (named[1:2] == ("group",))


def test_ignored_columns_are_named_and_the_known_ones_are_read(tmp_path: Path) -> None:
    rows = [f"{name}/{i}.png,p{i},{name},{i}" for name in ("blue", "red") for i in range(10)]
    table(tmp_path, rows, "path,patient,label,group")
    labels = read_labels(tmp_path, names("blue", "red"), ignore_columns=True)
    assert (labels.rows[3].label, labels.rows[3].cluster) == ("blue", "3")
    assert labels.notes == ("ignored columns of labels.csv: patient",)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_other_separators_backslashes_and_byte_order_marks_are_read(
    tmp_path: Path, separator: str
) -> None:
    rows = [f"a\\{i}.png,{label},g{i}".replace(",", separator) for i, label in enumerate(CLASSES)]
    table(tmp_path, rows, "\ufeffpath,label,group".replace(",", separator))
    labels = read_labels(tmp_path, names("a", count=3))
    assert [(row.name, row.label, row.cluster) for row in labels.rows] == [
        (f"a/{i}.png", label, f"g{i}") for i, label in enumerate(CLASSES)
    ]
    assert len(labels.notes) == 1 + (separator != ",")


@dataclass(frozen=True)
class Picture:
    name: int
    label: int
    cluster: str | None = None


def test_without_groups_a_part_is_the_stratified_one_of_scikit_learn() -> None:
    items = [Picture(index, index % 3) for index in range(100)]
    first, second = split_off(items, 0.1)
    expected = train_test_split(
        items, test_size=0.1, stratify=[item.label for item in items], random_state=SPLIT_SEED
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
