"""Arguments of --ood name sets, groups and paths; wrong ones are refused in one line.

The relation of a set to the data in a checkpoint's provenance.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora_contract.errors import DataError, SettingsError
from tests.conftest import config_of, random_network
from training.data.images import OUTSIDE, LabelledImage, OodSet
from training.data.registry import OodSettings
from training.evaluation.ood_sets import (
    GeneratedSet,
    ood_sources,
    read_ood_sets,
    recipe_ood_sets,
    resemblance,
)

TEST = [
    LabelledImage("a", torch.full((3, 30, 40), 200, dtype=torch.uint8), 1, cluster="lesion"),
    LabelledImage("b", torch.full((3, 30, 40), 180, dtype=torch.uint8), 0),
]


GENERATED = {
    "noise": GeneratedSet("far", lambda test: test[:1]),
    "darker": GeneratedSet("shifted", lambda test: test),
}
"""What the entry point of a distribution names."""


@pytest.fixture(autouse=True)
def distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(load=lambda: GENERATED)
    monkeypatch.setattr("training.evaluation.ood_sets.entry_points", lambda **_: [point])


def sets(arguments: Sequence[str]) -> list[OodSet]:
    return read_ood_sets(ood_sources(arguments), TEST)


def groups(arguments: Sequence[str]) -> dict[str, str]:
    return {ood_set.name: ood_set.group for ood_set in sets(arguments)}


def test_a_path_is_far_unless_its_group_is_given(image_folder: Path) -> None:
    other, red = image_folder / "other", image_folder / "train" / "red"
    assert groups([str(other), f"near:{red}"]) == {"other": "far", "red": "near"}
    (ood_set,) = sets([f"shifted:{other}"])
    assert (ood_set.group, ood_set.generated, len(ood_set.images)) == ("shifted", False, 5)
    assert {image.label for image in ood_set.images} == {OUTSIDE}


def test_generated_stands_for_all_generated_sets_or_those_of_a_group() -> None:
    assert groups(["generated"]) == {"noise": "far", "darker": "shifted"}
    assert groups(["shifted:generated"]) == {"darker": "shifted"}
    (noise,) = sets(["noise"])
    assert (noise.group, noise.generated, noise.images) == ("far", True, TEST[:1])


@pytest.mark.parametrize("argument", ["generated", "noise"])
def test_without_generated_sets_the_error_names_the_distribution_that_has_some(
    argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.evaluation.ood_sets.entry_points", lambda **_: [])
    with pytest.raises(DataError, match="eulerlora-lab"):
        ood_sources([argument])


def test_paths_of_one_name_get_distinct_names(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noise").symlink_to(image_folder / "other")
    monkeypatch.chdir(tmp_path)
    train, test = image_folder / "train" / "red", image_folder / "test" / "red"
    expected = ["noise", f"{tmp_path.name}/noise", "red", "test/red"]
    arguments = ["noise", "./noise", f"{tmp_path}/noise", str(train), str(test), str(train)]
    assert list(groups(arguments)) == expected


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ("absent", DataError, "absent"),
        ("near:absent", DataError, "near:absent"),
        ("near:", DataError, "near:"),
        ("remote:other", SettingsError, "remote"),
        ("near:noise", SettingsError, "far"),
    ],
)
def test_an_unknown_set_or_group_is_refused_in_one_line(
    argument: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        ood_sources([argument])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_without_images_and_a_set_in_two_groups_are_refused(
    image_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=tmp_path.name):
        sets([str(tmp_path)])
    other = image_folder / "other"
    with pytest.raises(SettingsError, match=str(other)):
        sets([str(other), f"near:{other}"])


def config(**facts: Any) -> CheckpointConfig:
    """The backbone was pretrained on two data sets."""
    config = config_of(
        random_network(), provenance={"recipe": {"data": {"kind": "ham10000", "path": "."}}} | facts
    )
    data = [
        {"kind": "tiny-imagenet", "path": "tiny-imagenet-200"},
        {"kind": "imagefolder", "path": "cifar10-jpeg.tar.xz"},
    ]
    unlabelled = [{"kind": "images", "path": "isic-2020-test.tar"}]
    provenance = {"recipe": {"data": data, "unlabelled": unlabelled}, "stages": []}
    backbone = config.backbone.model_copy(update={"provenance": provenance})
    return config.model_copy(update={"backbone": backbone})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10-jpeg.tar.xz", "the same data set, used for pretraining"),
        ("cifar10-jpeg", "the same data set, used for pretraining"),
        ("isic-2020-test", "the same data set, used for pretraining"),
        ("HAM10000", "the same data set, used for training"),
        (
            "caltech101",
            "everyday photographs, as tiny-imagenet, cifar10-jpeg, used for pretraining",
        ),
        (
            "ph2",
            "dermatoscopic images, as isic-2020-test, ham10000, used for pretraining and training",
        ),
        ("svhn", None),
        ("noise", None),
    ],
)
def test_a_set_is_compared_by_name_and_family(name: str, expected: str | None) -> None:
    assert resemblance(OodSet(name, []), config()) == expected


def test_changed_test_images_and_data_of_a_published_backbone_are_named() -> None:
    shifted = OodSet("darker", [], group="shifted", generated=True)
    assert resemblance(shifted, config()) == "the data set itself: changed test images"
    plain = config_of(random_network(), provenance={})
    assert resemblance(OodSet("caltech101", []), plain) is None
    name = "ViT_B_32_Weights.IMAGENET1K_V1"
    for origin in (
        {"published": name},
        {"provenance": {"fine_tuned_from": name}},
        {"provenance": {"imported": {"source": name}}},
    ):
        backbone = plain.backbone.model_copy(update=origin)
        published = plain.model_copy(update={"backbone": backbone})
        assert resemblance(OodSet("caltech101", []), published) is not None


def test_outlier_exposure_counts_as_shown() -> None:
    outliers = {"data": "svhn/train", "images": 100}
    assert (
        resemblance(OodSet("svhn", []), config(outliers=outliers))
        == "the same data set, used for outlier exposure"
    )
    outliers["data"] = "imagenette"
    related = resemblance(OodSet("caltech101", []), config(outliers=outliers))
    assert related.endswith("used for pretraining and outlier exposure")


def test_sets_of_a_recipe_have_distinct_names_and_none_is_the_test_part(tmp_path: Path) -> None:
    settings = [OodSettings(kind="images", path=path) for path in ("a/other", "b/other", "test")]
    for one in settings:
        (tmp_path / one.path).mkdir(parents=True)
        Image.new("RGB", (80, 80)).save(tmp_path / one.path / "picture.png")
    names = [of_set.name for of_set in recipe_ood_sets(settings, tmp_path)]
    assert names == ["other", "b/other", f"{tmp_path.name}/test"]
