"""Moved means follow a change of all features, and only if that lowers the threshold."""

import numpy as np
import pytest
import torch
from torch import Tensor

from eulerlora.scores.feature_distance import FeatureDistance, fit_feature_statistics
from training.site.features import fit_offset, moved

CLASSES, WIDTH = 3, 4
TPR = 0.95


def features_of(labels: Tensor, seed: int) -> Tensor:
    """Returns (n, WIDTH) features around a mean for each class."""
    noise = torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed))
    return noise + 5 * torch.eye(CLASSES, WIDTH)[labels]


@pytest.fixture(scope="module")
def distance() -> FeatureDistance:
    labels = torch.arange(600) % CLASSES
    return FeatureDistance(fit_feature_statistics(features_of(labels, 0), labels, CLASSES))


@pytest.fixture(scope="module")
def labels() -> Tensor:
    return torch.arange(200) % CLASSES


def test_means_follow_a_common_change(distance: FeatureDistance, labels: Tensor) -> None:
    change = torch.tensor([4.0, 0, -3, 6])
    local = features_of(labels, 1) + change
    offset = fit_offset(distance, local, labels, np.arange(200), TPR)
    assert offset.helps
    assert torch.allclose(offset.offset, change, atol=0.3)
    new = FeatureDistance(moved(distance.statistics, offset.offset))
    others = features_of(labels, 2) + change
    assert (new(others) <= offset.threshold_after).double().mean() > 0.9
    unchanged = (distance(local) <= offset.threshold_after).double().mean()
    assert unchanged < 0.2


def test_means_stay_if_one_picture_would_move_them(
    distance: FeatureDistance, labels: Tensor
) -> None:
    local = features_of(labels, 3)
    local[0] += 1000
    offset = fit_offset(distance, local, labels, np.arange(200), TPR)
    assert not offset.helps
    assert "not moved" in offset.summary


def test_the_offset_of_a_picture_does_not_depend_on_its_group(
    distance: FeatureDistance, labels: Tensor
) -> None:
    local, groups = features_of(labels, 1), np.arange(200) // 4
    offset = fit_offset(distance, local, labels, groups, TPR)
    changed = local.clone()
    changed[:4] += 100  # the first group
    assert torch.equal(
        fit_offset(distance, changed, labels, groups, TPR).by_picture[:4], offset.by_picture[:4]
    )


def test_distances_to_moved_means_are_those_of_features_moved_back(
    distance: FeatureDistance, labels: Tensor
) -> None:
    change, local = torch.tensor([1.0, -2, 0.5, 3]), features_of(labels, 1)
    new = FeatureDistance(moved(distance.statistics, change))
    assert torch.allclose(new(local), distance(local - change), rtol=1e-5)


def test_groups_count_alike_whatever_their_pictures(
    distance: FeatureDistance, labels: Tensor
) -> None:
    local = features_of(labels[:20], 1)
    once = fit_offset(distance, local, labels[:20], np.arange(20), TPR)
    times = torch.arange(20) % 3 + 1
    copies = torch.arange(20).repeat_interleave(times)
    often = fit_offset(distance, local[copies], labels[copies], copies.numpy(), TPR)
    assert torch.allclose(often.offset, once.offset, atol=1e-5)
