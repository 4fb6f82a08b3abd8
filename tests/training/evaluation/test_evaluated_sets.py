"""OOD scores: their directions, flags, and intervals that respect shared lesions."""

import numpy as np
import pytest
import torch

from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora_client.contract.answers import ScoreThreshold, Threshold
from training.data.images import LabelledImage
from training.evaluation.evaluated_sets import (
    EvaluatedSet,
    SetPredictions,
    flagged_shares,
    score_metrics,
)
from training.evaluation.inference import ModelOutputs
from training.evaluation.intervals import Estimate

DISTANCE = FeatureDistance(FeatureStatistics(torch.zeros(1, 2), torch.eye(2)))
THRESHOLDS = Threshold(
    mode="det", samples=1, msp=0.6, kept=0.95, images=4, data="squares",
    energy=ScoreThreshold(threshold=-2.0, kept=0.95, upper_quartile=-3.0),
    feature_distance=ScoreThreshold(threshold=1.5, kept=0.95, upper_quartile=1.0),
)  # fmt: skip


def predictions(
    msp: list[float], partition: list[float], distance: list[float],
    thresholds: Threshold | None = THRESHOLDS,
) -> SetPredictions:  # fmt: skip
    """Returns predictions of two classes with these scores; partition: log-sum-exp of logits."""
    first = torch.tensor(msp, dtype=torch.float64)
    features = torch.tensor([[value, 0.0] for value in distance])
    outputs = ModelOutputs(
        torch.stack([first, 1 - first], dim=1).log()[:, None, None],
        torch.tensor(partition, dtype=torch.float64)[:, None, None],
        features[:, None, None],
        torch.zeros(len(first), 1, 1, dtype=torch.int64),
    )
    return SetPredictions.of(outputs, DISTANCE, thresholds)


INSIDE = predictions([0.9, 0.8, 0.7, 0.6], [8.0, 7.0, 6.0, 5.0], [0.1, 0.2, 0.3, 0.4])
OUTSIDE = predictions([0.55, 0.51], [1.0, 3.0], [2.0, 1.0])


def evaluated(predictions: SetPredictions, of_test: bool = False) -> EvaluatedSet:
    images = [LabelledImage(str(index), b"", 0) for index in range(len(predictions.labels))]
    return EvaluatedSet("set", "far", images, of_test, [predictions])


def auroc_of(
    inside: SetPredictions, outside: SetPredictions, of_test: bool = False
) -> dict[str, Estimate | None]:
    results = score_metrics(evaluated(inside), evaluated(outside, of_test), 0)
    return {score: result.metrics["auroc"] for score, result in results.items()}


def test_every_score_separates_and_flags_in_its_own_direction() -> None:
    names = ("msp", "energy", "feature_distance")
    assert auroc_of(INSIDE, OUTSIDE) == dict.fromkeys(names, Estimate(1.0))
    assert auroc_of(OUTSIDE, INSIDE) == dict.fromkeys(names, Estimate(0.0))
    assert {score: flags.tolist() for score, flags in OUTSIDE.flags.items()} == {
        "msp": [True, True],
        "energy": [True, False],  # -1 and -3
        "feature_distance": [True, False],
    }
    shares = flagged_shares(OUTSIDE, np.arange(2))
    assert [share and share.hits for share in shares.values()] == [2, 1, 1]
    plain = predictions([0.5], [1.0], [2.0], thresholds=None)
    assert plain.flags == flagged_shares(plain, np.arange(1)) == {}


def test_changed_test_images_are_resampled_together_with_their_lesions() -> None:
    """The interval is narrower for scores that move with the lesion."""
    lesion, values = np.random.default_rng(0).uniform(0.55, 0.9, 60), [0.0] * 60
    before, after = (predictions((lesion - d).tolist(), values, values) for d in (0, 0.01))
    widths = []
    for of_test in (True, False):
        auroc = auroc_of(before, after, of_test)["msp"]
        assert auroc is not None
        widths.append(auroc.high - auroc.low)
    assert widths[0] < 0.5 * widths[1]


def test_an_ensemble_answers_with_the_mean_over_its_members() -> None:
    generator = torch.Generator().manual_seed(0)
    members = [
        ModelOutputs(
            torch.randn(4, 2, 1, 3, generator=generator, dtype=torch.float64).log_softmax(dim=-1),
            torch.randn(4, 2, 1, generator=generator, dtype=torch.float64),
            torch.randn(4, 2, 1, 2, generator=generator),
            torch.zeros(4, 2, 1, dtype=torch.int64),
        )
        for _ in range(3)
    ]
    distances = [
        FeatureDistance(FeatureStatistics(torch.full((1, 2), float(i)), torch.eye(2)))
        for i in range(3)
    ]
    ensemble = SetPredictions.of_ensemble(members, distances)
    for image in range(4):
        mean = torch.stack([m.log_probabilities[image].exp().mean(dim=(0, 1)) for m in members])
        torch.testing.assert_close(ensemble.uncertainty.probabilities[image], mean.mean(dim=0))
        assert ensemble.scores["msp"].value[image] == pytest.approx(float(mean.mean(dim=0).max()))
        energy = -np.mean([m.log_partition[image].mean() for m in members])
        assert ensemble.scores["energy"].value[image] == pytest.approx(energy)
        own = [
            float(d(m.features[image].mean(dim=(0, 1))[None]))
            for m, d in zip(members, distances, strict=True)
        ]
        assert ensemble.scores["feature_distance"].value[image] == pytest.approx(np.mean(own))
    assert ensemble.log_probabilities.shape == (4, 6, 3)
    assert ensemble.flags == {}
