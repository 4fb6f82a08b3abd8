"""Image folders and out-of-distribution sets."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from eulerlora_contract.errors import DataError
from training.data.copies import check_images
from training.data.dataset import DataSettings, LabelTable
from training.data.datasets import (
    checkpoint_dataset,
    evaluated_dataset,
    pretraining_images,
    read_dataset,
    read_ood_set,
    read_unlabelled,
)
from training.data.images import ImageParts
from training.data.registry import OodSettings, UnlabelledData

CLASSES = {"blue": "blue", "green": "green", "red": "a red square"}
SETTINGS = DataSettings(kind="imagefolder", classes=CLASSES)


@pytest.fixture
def labelled(image_folder: Path, tmp_path: Path) -> Path:
    """The image folder without its unlabelled images."""
    folder = tmp_path / "labelled"
    shutil.copytree(image_folder, folder, ignore=shutil.ignore_patterns("other"))
    return folder


def names_by_part(data: ImageParts) -> dict[str, list[str]]:
    return {part: [image.name for image in images] for part, images in data.parts.items()}


def test_unlabelled_images_are_those_of_train_without_their_classes(image_folder: Path) -> None:
    settings = UnlabelledData(kind="images", path=image_folder.name)
    images = read_unlabelled(settings, image_folder.parent)
    assert len(images.images) == 60
    assert all(image.name.startswith("train/") and image.label < 0 for image in images.images)


@pytest.mark.parametrize(
    ("pretraining", "shown"),
    [
        ({"data": [{"kind": "imagefolder", "path": "elsewhere/set"}]}, 54),  # without calibration
        ({"data": [{"kind": "imagefolder", "split": "paper"}]}, 60),
        ({"data": [], "unlabelled": [{"kind": "images", "path": "elsewhere/set"}]}, 60),
        ({"data": [{"kind": "tiny-imagenet"}], "unlabelled": [{"kind": "ham10000"}]}, 0),
    ],
)
def test_images_of_a_pretraining_are_those_of_its_train_parts_labelled_or_not(
    labelled: Path, pretraining: dict[str, list[object]], shown: int
) -> None:
    settings = SETTINGS.model_copy(update={"path": labelled.name})
    recipe = {"unlabelled": [], **pretraining}
    here = "labelled, image folder and labelled, image folder, paper split and labelled"
    origin = {"recipe": recipe, "stages": [], "data": here}
    images = pretraining_images(origin, settings, labelled.parent)
    assert len(images) == shown
    other = origin | {"data": "set, image folder"}
    assert pretraining_images(other, settings, labelled.parent) == []
    assert pretraining_images({"imported": {}}, settings, labelled.parent) == []


@pytest.mark.data
@pytest.mark.slow  # decodes all pictures of the pretraining
def test_the_embedded_backbone_knows_the_test_images_of_the_paper_split(real_data: Path) -> None:
    """The image-level split shows most test images to a pretraining on other lesions."""
    origin = read_config(DEFAULT_CHECKPOINT).backbone.provenance
    shares = {}
    for split in ("paper", "lesion"):
        settings = DataSettings(kind="ham10000", split=split)
        shown = {image.name for image in pretraining_images(origin, settings, real_data)}
        test = read_dataset(settings, real_data).parts["test"]
        shares[split] = sum(image.name in shown for image in test) / len(test)
    assert shares["lesion"] == 0
    assert 0.6 < shares["paper"] < 0.65


def test_a_table_beside_the_images_gives_the_same_parts_as_folders(labelled: Path) -> None:
    by_folder = read_dataset(SETTINGS, labelled)
    names = sorted(path.relative_to(labelled) for path in labelled.rglob("*.png"))
    rows = [f"{name.as_posix()},{name.parts[1]},{name.parts[0]}" for name in names]
    (labelled / "labels.csv").write_text("\n".join(["path,label,split", *rows]))
    by_table = read_dataset(SETTINGS, labelled)
    assert names_by_part(by_table) == names_by_part(by_folder)
    assert by_table.name == "labelled, labels.csv"
    assert [image.label for image in by_table.parts["test"]] == [
        image.label for image in by_folder.parts["test"]
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("train/red/absent.png", "no such file"),
        ("notes.txt", r"expected an image \(.jfif"),
        (".hidden/0.png", "hidden"),
        ("../other/0.png", "no such file|without .."),
        ("train/red/broken.png", "expected a JPEG"),
    ],
)
def test_a_row_without_a_usable_image_is_refused_or_skipped(
    labelled: Path, name: str, reason: str
) -> None:
    (labelled / "notes.txt").touch()
    shutil.copytree(labelled / "test" / "red", labelled / ".hidden")
    (labelled / ".hidden" / "0.png").touch()
    (labelled / "train" / "red" / "broken.png").write_bytes(b"broken")
    images = sorted(path.relative_to(labelled) for path in (labelled / "test").rglob("*.png"))
    rows = [f"{image.as_posix()},{image.parts[1]}" for image in images]
    (labelled / "labels.csv").write_text("\n".join(["path,label", *rows, f"{name},red"]))
    with pytest.raises(DataError, match=f"{reason}.*labels.csv line 20, class red"):
        read_dataset(SETTINGS, labelled)
    data = read_dataset(SETTINGS, labelled, skip_bad=True)
    assert len(data.skipped) == 1
    assert sum(map(len, data.parts.values())) == 18


@pytest.mark.parametrize("images", ["others", "none"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_the_first_missing_path_is_named_when_all_are_missing(
    image_folder: Path, tmp_path: Path, images: str, skip_bad: bool
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    if images == "others":
        shutil.copy(image_folder / "other" / "0.png", folder / "7.PNG")
    rows = [f"pictures/{i}.png,{'red' if i % 2 else 'blue'}" for i in range(10)]
    (folder / "labels.csv").write_text("\n".join(["path,label", *rows]))
    with pytest.raises(DataError, match=r"pictures/\d.png: no such file") as caught:
        read_dataset(DataSettings(kind="imagefolder", path="set"), tmp_path, skip_bad)
    assert "line " in str(caught.value)


def test_a_folder_without_images_names_the_kinds_that_it_has(tmp_path: Path) -> None:
    for name in ("red", "blue"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 40), name).save(tmp_path / name / "a.bmp")
    with pytest.raises(DataError, match=r"BMP image \(.bmp\): 2"):
        read_dataset(DataSettings(kind="imagefolder"), tmp_path)


def test_turned_and_mirrored_copies_are_in_the_part_of_their_original(
    image_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(image_folder / "train", tmp_path / "set"))
    for picture in sorted(folder.rglob("*.png")):
        method = Image.Transpose(int(picture.stem) % len(Image.Transpose))
        with Image.open(picture) as image:
            image.transpose(method).save(picture.with_suffix(".turned.png"))
    images = read_dataset(DataSettings(kind="imagefolder"), folder)
    originals = {
        part: {image.name.split(".")[0] for image in members}
        for part, members in images.parts.items()
    }
    assert sum(map(len, originals.values())) == 60
    assert sum(map(len, images.parts.values())) == 120


def test_a_model_of_a_published_set_is_evaluated_on_folders_of_its_classes(
    image_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "clinic"
    for name, colour in (("mel", "red"), ("nevus", "blue"), ("keloid", "green")):
        shutil.copytree(image_folder / "test" / colour, folder / name)
    config = read_config(DEFAULT_CHECKPOINT)
    with pytest.raises(DataError, match="keloid, nevus"):
        evaluated_dataset(config, DEFAULT_CHECKPOINT, folder)
    table = LabelTable(renamed={"nevus": "nv"}, ignored=("keloid",))
    images = evaluated_dataset(config, DEFAULT_CHECKPOINT, folder, table=table)
    assert images.classes == config.classes
    labels = {image.name.split("/")[0]: image.label for image in images.parts["test"]}
    assert {name: config.class_names[label] for name, label in labels.items()} == {
        "mel": "mel", "nevus": "nv"
    }  # fmt: skip
    with pytest.raises(DataError, match="--class"):
        checkpoint_dataset(config, folder, table=table)


def test_labels_are_renamed_and_ignored_in_a_training(image_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(image_folder / "train", tmp_path / "set"))
    shutil.copytree(image_folder / "test" / "red", folder / "crimson. dark")
    (folder / "crimson. dark" / "00.png").rename(folder / "crimson. dark" / "new.png")
    settings = DataSettings(
        kind="imagefolder", renamed={"crimson. dark": "red"}, ignored=("green",)
    )
    images = read_dataset(settings, folder)
    assert images.class_names == ("blue", "red")
    assert sum(map(len, images.parts.values())) == 46
    with pytest.raises(DataError, match="labelled grene"):
        read_dataset(settings.model_copy(update={"ignored": ("grene",)}), folder)


def test_the_own_split_of_a_set_with_many_copies_is_never_refused(
    image_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(image_folder / "train", tmp_path / "set"))
    for picture in sorted(folder.rglob("*.png")):
        if int(picture.stem) % 2:
            shutil.copy(picture, picture.with_name(f"copy-{picture.name}"))
    for split in ("lesion", "lesion-validation", "lesion-best-epoch", "paper"):
        images = read_dataset(DataSettings(kind="imagefolder", split=split), folder)
        check = check_images(images, 32)
        check.refuse_copies()
        assert len(check.repeated) == sum(
            image.name.split("/")[1].startswith("copy")
            for members in images.parts.values()
            for image in members
        )


@pytest.mark.parametrize("split", ["lesion", "lesion-best-epoch", "paper"])
def test_the_folds_are_the_images_for_training_and_calibration_by_group(
    image_folder: Path, tmp_path: Path, split: str
) -> None:
    folder = tmp_path / "set"
    shutil.copytree(image_folder / "train", folder)
    rows = [
        f"{path.relative_to(folder)},{path.parent.name},{path.parent.name}-{int(path.stem) // 2}"
        for path in sorted(folder.rglob("*.png"))
    ]
    (folder / "labels.csv").write_text("\n".join(["path,label,group", *rows]) + "\n")
    settings = DataSettings(kind="imagefolder", split=split)
    whole = read_dataset(settings, folder)
    names = names_by_part(whole)
    divided = sorted([*names["train"], *names.get("calibration", ())])
    folds = [read_dataset(settings.model_copy(update={"fold": fold}), folder) for fold in range(3)]
    held_out = [name for one in folds for name in names_by_part(one)["calibration"]]
    assert sorted(held_out) == divided
    for fold, one in enumerate(folds):
        parts = names_by_part(one)
        assert sorted([*parts["train"], *parts["calibration"]]) == divided
        assert len(parts["calibration"]) == pytest.approx(len(divided) / 3, abs=6)
        groups, others = (
            {image.cluster for image in one.parts[part]} for part in ("calibration", "train")
        )
        assert not groups & others
        assert {image.label for image in one.parts["calibration"]} == {0, 1, 2}
        assert parts["test"] == names["test"]
        assert parts.get("validation") == names.get("validation")
        assert one.name == f"{whole.name}, fold {fold} of 3"
    again = read_dataset(settings.model_copy(update={"fold": 1}), folder)
    assert names_by_part(again) == names_by_part(folds[1])


def test_the_validation_split_tests_on_a_tenth_of_the_train_part(labelled: Path) -> None:
    whole = names_by_part(read_dataset(SETTINGS, labelled))
    for path in (labelled / "test").rglob("*.png"):
        path.write_bytes(b"broken")
    data = read_dataset(SETTINGS.model_copy(update={"split": "lesion-validation"}), labelled)
    parts = names_by_part(data)
    assert parts["calibration"] == whole["calibration"]
    assert sorted([*parts["train"], *parts["test"]]) == sorted(whole["train"])
    assert len(parts["test"]) == 6  # of 54
    assert data.name == "labelled, image folder, lesion-validation split"


def test_bad_images_are_refused_or_skipped_without_changing_other_parts(
    labelled: Path,
) -> None:
    whole = names_by_part(read_dataset(SETTINGS, labelled))
    bad = {"train/red/03.png", "test/blue/01.png"}
    for name in bad:
        (labelled / name).write_bytes(b"broken")
    with pytest.raises(DataError, match=r"red/03\.png|blue/01\.png") as caught:
        read_dataset(SETTINGS, labelled)
    assert "--skip-bad" in str(caught.value)
    data = read_dataset(SETTINGS, labelled, skip_bad=True)
    assert data.skipped.keys() == bad
    assert all("expected a JPEG" in reason for reason in data.skipped.values())
    expected = {part: [name for name in names if name not in bad] for part, names in whole.items()}
    assert names_by_part(data) == expected


def test_a_class_without_usable_images_is_refused_even_if_bad_images_are_skipped(
    labelled: Path,
) -> None:
    for path in (labelled / "train" / "red").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(DataError, match="class red"):
        read_dataset(SETTINGS, labelled, skip_bad=True)


def test_an_ood_set_with_a_test_folder_uses_only_that(image_folder: Path) -> None:
    whole = read_ood_set(OodSettings(kind="images"), image_folder)
    assert all(image.name.startswith("test/") for image in whole.images)
    assert len(whole.images) == 18
    other = read_ood_set(OodSettings(kind="images", path="other"), image_folder)
    assert other.name == "other"
    assert [image.label for image in other.images] == [-1] * 5


def test_an_ood_set_without_usable_images_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "broken.png").write_bytes(b"broken")
    settings = OodSettings(kind="images", path="set")
    with pytest.raises(DataError, match=r"set/broken\.png"):
        read_ood_set(settings, tmp_path)
    with pytest.raises(DataError, match="none that can be decoded"):
        read_ood_set(settings, tmp_path, skip_bad=True)


@pytest.mark.parametrize(
    ("limit", "fault"), [(8, "leaves no image of the class rare"), (2, "3 to"), (60, "3 to")]
)
def test_a_limit_of_a_part_that_leaves_out_a_class_names_key_and_class(
    tmp_path: Path, limit: int, fault: str
) -> None:
    for name, count in (("blue", 40), ("rare", 5), ("red", 40)):
        (tmp_path / name).mkdir()
        for index in range(count):
            picture = Image.new("RGB", (8, 8), (10 * len(name), 5 * index, 0))
            picture.save(tmp_path / name / f"{index:02}.png")
    settings = DataSettings(kind="imagefolder", at_most={"train": limit})
    with pytest.raises(DataError, match=f"data.at_most.train.*{fault}"):
        read_dataset(settings, tmp_path)
