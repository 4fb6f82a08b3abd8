"""`benchmarks.feature_scores` compares features and distances on made pictures."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from benchmarks.feature_scores import (
    CHANGES,
    VARIANTS,
    Features,
    backbone_tokens,
    comparison,
    features_of,
    made_sets,
    neighbour_distance,
    relative_distance,
    separation,
)
from eulerlora.images.preprocess import resize
from eulerlora.model import EulerLoRA
from training.data.images import LabelledImage, read_image

SKIN = (210, 160, 150)


@pytest.fixture
def model(checkpoint_folder) -> EulerLoRA:
    return EulerLoRA.load(checkpoint_folder)


@pytest.fixture
def lesions() -> list[LabelledImage]:
    """Two noisy pictures with plain skin in one corner."""
    noise = np.random.default_rng(0).integers(0, 256, (2, 3, 40, 50), dtype=np.uint8)
    noise[:, :, :10, :10] = np.array(SKIN)[:, None, None]
    return [LabelledImage(str(i), torch.from_numpy(noise[i]), label=i) for i in range(2)]


def normal(count: int, width: int, shift: float = 0.0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)) + shift


def test_the_backbone_token_is_the_feature_of_the_frozen_backbone(model, lesions) -> None:
    backbone = model.network.backbone
    size = model.config.preprocessing.size
    pixels = torch.stack([resize(read_image(i.name, i.source), size) for i in lesions])
    with torch.inference_mode():
        expected = torch.nn.functional.normalize(backbone(pixels), dim=-1)
    torch.testing.assert_close(backbone_tokens(model, lesions), expected, rtol=1e-4, atol=1e-5)


def test_the_rows_have_other_class_tokens_than_the_backbone(model, lesions) -> None:
    features = features_of(model, lesions, "lesions")
    width = model.network.backbone.settings.width
    assert features.rows.shape == (2, 3 * width)
    assert features.parts(2).shape == (2, 2 * width)
    assert not torch.allclose(features.parts(1), features.backbone, atol=1e-3)


def test_a_set_is_made_of_every_change_and_of_training_corners(lesions) -> None:
    sets = made_sets(lesions, lesions[:1], count=2)
    assert list(sets) == ["noise", "skin corners", *(change.name for change in CHANGES)]
    corner = sets["skin corners"][0]
    assert corner.name == "plain-skin/corner/0"
    assert read_image(corner.name, corner.source)[:, 20, 25].tolist() == list(SKIN)
    assert [len(images) for images in sets.values()] == [2, 2, 1, 1, 1, 1, 1]
    changed = {
        name: read_image(images[0].name, images[0].source)[:, 0, 0].tolist()
        for name, images in sets.items()
        if len(images) == 1
    }
    assert changed == {
        "dark": [105, 80, 75],
        "inverted": [45, 95, 105],
        "permuted": [160, 150, 210],
        "warm cast": [210, 128, 90],
        "cold cast": [158, 144, 165],
    }


def test_the_neighbour_distance_is_that_of_scikit_learn() -> None:
    train, tested = normal(80, 5), normal(7, 5)
    expected, _ = NearestNeighbors(n_neighbors=50).fit(train).kneighbors(tested)
    distance = neighbour_distance(train, torch.zeros(80))(tested)
    np.testing.assert_allclose(distance, expected[:, -1], rtol=1e-4)


def test_the_relative_distance_of_a_single_class_is_zero() -> None:
    train = normal(40, 4)
    score = relative_distance(train, torch.zeros(40, dtype=torch.int64))
    torch.testing.assert_close(score(normal(9, 4)), torch.zeros(9, dtype=torch.float64))


def test_the_relative_distance_is_lower_near_a_class_than_between_classes() -> None:
    labels = torch.arange(100) % 2
    train = normal(100, 4) + 8 * labels[:, None]
    near, between = relative_distance(train, labels)(torch.tensor([[0.0] * 4, [4.0] * 4]))
    assert near < between


def test_the_separation_has_the_share_above_the_threshold_and_the_auroc() -> None:
    familiar, unfamiliar = torch.arange(100.0), torch.tensor([94.0, 95.0, 200.0, -1.0])
    area = roc_auc_score([0] * 100 + [1] * 4, torch.cat([familiar, unfamiliar]))
    assert separation(familiar, unfamiliar) == f"0.50 / {area:.3f}"


def test_the_table_has_a_row_per_variant_and_a_column_per_set() -> None:
    def features(count: int, shift: float = 0.0) -> Features:
        return Features(normal(count, 3, shift), normal(count, 9, shift))

    far = {"far": features(21, 50.0), "same": features(20)}
    text = comparison(features(60), torch.arange(60) % 2, features(20), far)
    head, _, *rows = text.splitlines()
    assert head == "| share flagged / AUROC | far | same |"
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(VARIANTS)
    for row in rows:
        if "relative" not in row:
            assert row.endswith("| 1.00 / 1.000 | 0.05 / 0.500 |")
