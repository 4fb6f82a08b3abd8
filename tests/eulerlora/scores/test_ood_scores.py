"""OOD scores; feature distances against scikit-learn, scipy, pytorch-ood; damaged files."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_ood.detector import Mahalanobis
from safetensors.torch import save_file
from scipy.spatial.distance import cdist
from sklearn.covariance import empirical_covariance
from torch import Tensor

from eulerlora.checkpoint.config import FeatureConfig
from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.scores.ood_scores import (
    CrossFittedDistance,
    FeatureDistance,
    FeatureStatistics,
    fit_feature_statistics,
    ood_scores,
)
from eulerlora_contract.checkpoints import ScoreThreshold, Threshold
from eulerlora_contract.errors import CheckpointError
from tests.checkpoint_files import write_config
from tests.conftest import DET
from tests.damaged_checkpoints import Apply, removed, truncated

FEATURES_FILE = "ood.safetensors"
LOGITS = torch.tensor([[[2.0, 0.0], [1.0, 1.0]], [[5.0, -1.0], [4.0, 0.0]]], dtype=torch.float64)
ROW_FEATURES = torch.tensor([[[1.0, 0.0], [3.0, 0.0]], [[0.0, 4.0], [0.0, 4.0]]])
DISTANCE = FeatureDistance(FeatureStatistics(torch.zeros(1, 2), torch.diag(torch.tensor([1.0, 4]))))
THRESHOLDS = Threshold(
    options=DET,
    msp=0.9,
    kept=0.95,
    images=10,
    data="noise",
    energy=ScoreThreshold(threshold=-3.0, kept=0.95, upper_quartile=0),
    feature_distance=ScoreThreshold(threshold=1.5, kept=0.95, upper_quartile=0),
)


@pytest.fixture(scope="module")
def scored() -> Callable[[Threshold | None], Any]:
    msp = LOGITS.softmax(-1).mean(dim=1).amax(dim=-1)
    log_partition = LOGITS.logsumexp(-1).mean(dim=1)
    return partial(ood_scores, msp, log_partition, DISTANCE(ROW_FEATURES.mean(dim=1)))


def test_the_energy_is_minus_the_mean_log_sum_exp_of_the_logits(scored) -> None:
    expected = [-LOGITS[image].exp().sum(-1).log().mean() for image in range(2)]
    torch.testing.assert_close(scored(None)["energy"].value, torch.stack(expected))


def test_a_cross_fitted_distance_is_that_from_the_images_outside_of_the_fold() -> None:
    features = torch.randn(12, 20, generator=torch.Generator().manual_seed(0))
    labels, folds = torch.arange(12) % 2, torch.arange(12) % 3
    distance = CrossFittedDistance(features, labels, 2, folds)
    for image in range(12):
        others = folds != folds[image]
        statistics = fit_feature_statistics(features[others], labels[others], 2)
        expected = FeatureDistance(statistics)(features[image : image + 1])
        part = torch.arange(12) >= image
        torch.testing.assert_close(distance.images(part)(features[part])[:1], expected)
    whole = fit_feature_statistics(features, labels, 2)
    torch.testing.assert_close(distance.statistics.tensors, whole.tensors)


def test_the_feature_distance_is_that_of_the_mean_over_trajectories(scored) -> None:
    # means (2, 0) and (0, 4); standard deviations 1 and 2
    distances = scored(None)["feature_distance"].value
    torch.testing.assert_close(distances, torch.tensor([2.0, 2.0]).double())


def test_msp_is_flagged_below_its_threshold_and_other_scores_above(scored) -> None:
    flagged, plain = scored(THRESHOLDS), scored(None)
    for name, score in flagged.items():
        assert torch.equal(score.value, plain[name].value)
    assert flagged["msp"].threshold == THRESHOLDS.msp
    assert flagged["energy"].threshold == THRESHOLDS.energy.threshold
    assert flagged["msp"].flagged.tolist() == [True, False]
    assert flagged["energy"].flagged.tolist() == [True, False]
    assert flagged["feature_distance"].flagged.tolist() == [True, True]


def test_a_score_equal_to_its_threshold_is_not_flagged(scored) -> None:
    scores = scored(None)
    equal = THRESHOLDS.model_copy(
        update={
            "msp": scores["msp"].value[0].item(),
            "feature_distance": ScoreThreshold(
                threshold=scores["feature_distance"].value.max().item(), kept=0.95, upper_quartile=0
            ),
        }
    )
    flagged = scored(equal)
    assert not flagged["msp"].flagged[0]
    assert not flagged["feature_distance"].flagged.any()


def test_without_thresholds_nothing_is_known(scored) -> None:
    for score in scored(None).values():
        assert score.flagged is score.threshold is None
    old = THRESHOLDS.model_copy(update={"energy": None, "feature_distance": None})
    flagged = scored(old)
    assert flagged["msp"].flagged is not None
    assert flagged["energy"].flagged is flagged["feature_distance"].flagged is None


def test_without_statistics_there_is_no_feature_distance() -> None:
    scores = ood_scores(torch.tensor([0.5]), torch.tensor([1.0]), None, None)
    assert set(scores) == {"msp", "energy"}


CLASSES = 3
WIDTH = 6


@pytest.fixture(scope="module")
def labels() -> Tensor:
    return torch.randint(CLASSES, (200,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def features(labels: Tensor) -> Tensor:
    """Correlated features with another mean for every class."""
    generator = torch.Generator().manual_seed(2)
    mixing = torch.randn(WIDTH, WIDTH, generator=generator)
    noise = torch.randn(len(labels), WIDTH, generator=generator)
    return noise @ mixing + labels[:, None]


@pytest.fixture(scope="module")
def statistics(features: Tensor, labels: Tensor) -> FeatureStatistics:
    return fit_feature_statistics(features, labels, CLASSES)


def test_the_statistics_are_class_means_and_a_covariance_shrunk_to_its_diagonal(
    features: Tensor, labels: Tensor
) -> None:
    fitted = fit_feature_statistics(features, labels, CLASSES, shrinkage=0.3)
    means = [features[labels == label].numpy().mean(axis=0) for label in range(CLASSES)]
    np.testing.assert_allclose(fitted.means.numpy(), means, rtol=1e-5)
    centred = features.double().numpy() - np.array(means)[labels.numpy()]
    expected = empirical_covariance(centred, assume_centered=True)
    off_diagonal = ~np.eye(WIDTH, dtype=bool)
    actual = fitted.covariance.numpy()
    np.testing.assert_allclose(actual[off_diagonal], 0.7 * expected[off_diagonal], rtol=1e-4)
    np.testing.assert_allclose(actual.diagonal(), expected.diagonal(), rtol=1e-4)


@pytest.mark.parametrize("offset", [0.0, 1e6])  # products of the latter would cancel digits
def test_the_distance_is_scipys_mahalanobis_distance_to_the_nearest_mean(
    statistics: FeatureStatistics, features: Tensor, offset: float
) -> None:
    features = features + offset
    statistics = replace(statistics, means=statistics.means + offset)
    inverse = np.linalg.inv(statistics.covariance.double().numpy())
    expected = cdist(features, statistics.means, "mahalanobis", VI=inverse).min(axis=1)
    distance = FeatureDistance(statistics)
    np.testing.assert_allclose(distance(features), expected, rtol=1e-6)
    assert distance(features[:0]).shape == (0,)


def test_without_shrinkage_the_distance_is_that_of_pytorch_ood(
    features: Tensor, labels: Tensor
) -> None:
    reference = Mahalanobis(None).fit_features(features, labels)
    # pytorch-ood halves the squared distance, and its covariance is a sum over images.
    expected = 2 * len(features) * reference.predict_features(features)
    fitted = fit_feature_statistics(features, labels, CLASSES, shrinkage=0.0)
    actual = FeatureDistance(fitted)(features) ** 2
    torch.testing.assert_close(actual.float(), expected, rtol=1e-3, atol=1e-3)


def test_a_constant_feature_has_a_finite_distance(labels: Tensor) -> None:
    fitted = fit_feature_statistics(torch.ones(len(labels), 2), labels, CLASSES)
    near, far = FeatureDistance(fitted)(torch.tensor([[1.0, 1.0], [1.0, 2.0]])).tolist()
    assert near == pytest.approx(0, abs=1e-3)
    assert far > 100


def test_a_class_without_images_has_no_mean() -> None:
    features, labels = torch.tensor([[0.0], [4.0], [8.0]]), torch.tensor([0, 2, 2])
    assert fit_feature_statistics(features, labels, 3).means.tolist() == [[0.0], [6.0]]


def store(folder: Path, statistics: FeatureStatistics) -> None:
    save_file(statistics.tensors, folder / FEATURES_FILE)


@pytest.fixture
def fitted_folder(checkpoint_copy: Path) -> Path:
    checkpoint = load_checkpoint(checkpoint_copy)
    width = 3 * checkpoint.config.backbone.settings.width
    features = torch.randn(40, width, generator=torch.Generator().manual_seed(3))
    fitted = fit_feature_statistics(features, torch.arange(40) % 2, 2)
    store(checkpoint_copy, fitted)
    config = FeatureConfig(
        sha256=tensors_sha256(fitted.tensors), shrinkage=0.1, components=2, images=40, data="noise"
    )
    write_config(checkpoint_copy, checkpoint.config.model_copy(update={"features": config}))
    return checkpoint_copy


def test_a_checkpoint_loads_its_statistics_if_it_has_any(
    fitted_folder: Path, checkpoint_folder: Path
) -> None:
    assert load_checkpoint(checkpoint_folder).feature_distance is None
    distance = load_checkpoint(fitted_folder).feature_distance
    assert len(distance.statistics.means) == 2


@pytest.mark.parametrize("damage", [removed(FEATURES_FILE), truncated(FEATURES_FILE)])
def test_a_missing_or_truncated_file_is_refused(fitted_folder: Path, damage: Apply) -> None:
    damage(fitted_folder)
    with pytest.raises(CheckpointError, match=r"ood\.safetensors"):
        load_checkpoint(fitted_folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: FeatureStatistics(s.means + 1, s.covariance), "SHA-256"),
        (lambda s: FeatureStatistics(s.means[:1], s.covariance), "means: expected shape"),
        (lambda s: FeatureStatistics(s.means, s.covariance[:5]), "covariance: expected shape"),
        (lambda s: FeatureStatistics(s.means, s.covariance / 0), "NaN or infinity"),
    ],
)
def test_other_statistics_than_described_are_refused(
    fitted_folder: Path, change, reason: str
) -> None:
    distance = load_checkpoint(fitted_folder).feature_distance
    store(fitted_folder, change(distance.statistics))
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(fitted_folder)


def test_statistics_that_are_no_covariance_are_refused(fitted_folder: Path) -> None:
    checkpoint = load_checkpoint(fitted_folder)
    stored = checkpoint.feature_distance.statistics
    broken = FeatureStatistics(stored.means, -stored.covariance)
    store(fitted_folder, broken)
    features = checkpoint.config.features.model_copy(
        update={"sha256": tensors_sha256(broken.tensors)}
    )
    write_config(fitted_folder, checkpoint.config.model_copy(update={"features": features}))
    with pytest.raises(CheckpointError, match="positive definite"):
        load_checkpoint(fitted_folder)
