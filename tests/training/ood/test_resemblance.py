"""The relation of a set to the data in a checkpoint's provenance."""

from typing import Any

import pytest

from eulerlora.checkpoint.config import CheckpointConfig
from tests.conftest import config_of, random_network
from training.data.images import OodSet
from training.ood.resemblance import resemblance


def config(**facts: Any) -> CheckpointConfig:
    """Returns a config whose backbone was pretrained on two data sets."""
    config = config_of(
        random_network(), provenance={"recipe": {"data": {"kind": "ham10000", "path": "."}}} | facts
    )
    data = [
        {"kind": "tiny-imagenet", "path": "tiny-imagenet-200"},
        {"kind": "imagefolder", "path": "cifar10-jpeg.tar.xz"},
    ]
    provenance = {"recipe": {"data": data}, "stages": []}
    backbone = config.backbone.model_copy(update={"provenance": provenance})
    return config.model_copy(update={"backbone": backbone})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10-jpeg.tar.xz", "the same data set, used for pretraining"),
        ("cifar10-jpeg", "the same data set, used for pretraining"),
        ("HAM10000", "the same data set, used for training"),
        (
            "caltech101",
            "everyday photographs, as tiny-imagenet, cifar10-jpeg, used for pretraining",
        ),
        ("ph2", "dermatoscopic images, as ham10000, used for training"),
        ("svhn", None),
        ("noise", None),
    ],
)
def test_a_set_is_compared_by_name_and_family(name: str, expected: str | None) -> None:
    assert resemblance(OodSet(name, []), config()) == expected


def test_outlier_exposure_counts_as_shown() -> None:
    outliers = {"data": "svhn/train", "images": 100}
    assert (
        resemblance(OodSet("svhn", []), config(outliers=outliers))
        == "the same data set, used for outlier exposure"
    )
    outliers["data"] = "imagenette"
    related = resemblance(OodSet("caltech101", []), config(outliers=outliers))
    assert related is not None
    assert related.endswith("used for pretraining and outlier exposure")


def test_changed_test_images_resemble_the_data_set_itself() -> None:
    shifted = OodSet("darker", [], group="shifted", generated=True)
    assert resemblance(shifted, config()) == "the data set itself: changed test images"


def test_a_published_backbone_was_shown_the_data_that_its_name_contains() -> None:
    plain = config_of(random_network(), provenance={})
    assert resemblance(OodSet("caltech101", []), plain) is None
    published = plain.backbone.model_copy(update={"published": "ViT_B_32_Weights.IMAGENET1K_V1"})
    assert (
        resemblance(OodSet("caltech101", []), plain.model_copy(update={"backbone": published}))
        == "everyday photographs, as ViT_B_32_Weights.IMAGENET1K_V1, used for pretraining"
    )
