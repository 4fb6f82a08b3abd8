"""OOD scores of images: definitions, directions of the thresholds, and missing statistics."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eulerlora.nn.runtime import ImageOutput
from eulerlora.prediction.answer import image_scores, with_distances
from eulerlora.scores.feature_distance import FeatureDistance, FeatureStatistics
from eulerlora.scores.ood_scores import ood_scores
from eulerlora_client.contract.answers import ScoreThreshold, Threshold

LOGITS = torch.tensor([[[2.0, 0.0], [1.0, 1.0]], [[5.0, -1.0], [4.0, 0.0]]], dtype=torch.float64)
FEATURES = torch.tensor([[[1.0, 0.0], [3.0, 0.0]], [[0.0, 4.0], [0.0, 4.0]]])
DISTANCE = FeatureDistance(FeatureStatistics(torch.zeros(1, 2), torch.diag(torch.tensor([1.0, 4]))))
THRESHOLDS = Threshold(
    mode="det",
    samples=1,
    msp=0.9,
    kept=0.95,
    images=10,
    data="noise",
    energy=ScoreThreshold(threshold=-3.0, kept=0.95, upper_quartile=0),
    feature_distance=ScoreThreshold(threshold=1.5, kept=0.95, upper_quartile=0),
)


@pytest.fixture(scope="module")
def scores() -> dict[str, Tensor]:
    outputs = [
        ImageOutput(logits.log_softmax(-1), logits.logsumexp(-1), features)
        for logits, features in zip(LOGITS, FEATURES, strict=True)
    ]
    msp = LOGITS.softmax(-1).mean(dim=1).amax(dim=-1)
    return image_scores(outputs, msp, DISTANCE)


def test_the_energy_is_minus_the_mean_log_sum_exp_of_the_logits(scores) -> None:
    expected = [-LOGITS[image].exp().sum(-1).log().mean() for image in range(2)]
    torch.testing.assert_close(scores["energy"], torch.stack(expected))


def test_the_feature_distance_is_that_of_the_mean_over_trajectories(scores) -> None:
    # means (2, 0) and (0, 4); standard deviations 1 and 2
    torch.testing.assert_close(scores["feature_distance"], torch.tensor([2.0, 2.0]).double())


def test_msp_is_flagged_below_its_threshold_and_other_scores_above(scores) -> None:
    flagged = ood_scores(scores, THRESHOLDS)
    assert flagged["msp"].flagged.tolist() == [True, False]
    assert flagged["energy"].flagged.tolist() == [True, False]
    assert flagged["feature_distance"].flagged.tolist() == [True, True]


def test_a_score_equal_to_its_threshold_is_not_flagged(scores) -> None:
    equal = THRESHOLDS.model_copy(
        update={
            "msp": scores["msp"][0].item(),
            "feature_distance": ScoreThreshold(
                threshold=scores["feature_distance"].max().item(), kept=0.95, upper_quartile=0
            ),
        }
    )
    flagged = ood_scores(scores, equal)
    assert not flagged["msp"].flagged[0]
    assert not flagged["feature_distance"].flagged.any()


def test_without_thresholds_nothing_is_known(scores) -> None:
    for score in ood_scores(scores, None).values():
        assert score.flagged is score.threshold is None
    old = THRESHOLDS.model_copy(update={"energy": None, "feature_distance": None})
    flagged = ood_scores(scores, old)
    assert flagged["msp"].flagged is not None
    assert flagged["energy"].flagged is flagged["feature_distance"].flagged is None


def test_without_statistics_there_is_no_feature_distance() -> None:
    output = ImageOutput(LOGITS[0].log_softmax(-1), LOGITS[0].logsumexp(-1), FEATURES[0])
    assert set(image_scores([output], torch.tensor([0.5]), None)) == {"msp", "energy"}
    assert set(image_scores([], torch.empty(0), None)) == {"msp", "energy"}


def test_distances_of_a_batch_are_those_of_its_images_and_are_not_computed_again() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(9, 5, generator=generator)
    statistics = FeatureStatistics(torch.randn(3, 5, generator=generator), factor.T @ factor)
    distance = FeatureDistance(statistics)
    outputs = [
        ImageOutput(torch.zeros(t, 2), torch.zeros(t), torch.randn(t, 5, generator=generator))
        for t in (1, 2, 4)
    ]
    scored = with_distances(outputs, distance)
    msp = torch.full((3,), 0.5)
    values = [image_scores(given, msp, distance)["feature_distance"] for given in (outputs, scored)]
    torch.testing.assert_close(*values)
    means = torch.stack([output.features.mean(dim=0) for output in outputs])
    torch.testing.assert_close(values[1], distance(means))
    known = replace(scored[0], distance=torch.tensor(7.0))
    assert image_scores([known], msp[:1], distance)["feature_distance"].item() == 7
    assert with_distances(outputs, None) == outputs
