"""Results of a mode from predictions: by class, and of scores with intervals by lesion."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from eulerlora.answer import Predictions
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.checkpoints import ScoreThreshold, Threshold
from tests.conftest import DET
from training.data.images import LabelledImage
from training.evaluation.mode_report import EvaluatedSet, mode_report

CLASSES = ("bkl", "nv", "mel", "df")


def of_probabilities(probabilities: np.ndarray) -> Predictions:
    """Predictions with these probabilities, (n, classes), from one trajectory."""
    logits = torch.from_numpy(probabilities).clamp(min=1e-30).log()[:, None, None]
    views = torch.zeros(len(logits), 1, 1, dtype=torch.int64)
    return Predictions.of(Trajectories.of(logits, views[..., None].float(), views))


def class_metrics(
    probabilities: np.ndarray,
    labels: Sequence[int],
    lesions: Sequence[int],
    classes: Sequence[str],
    target: Sequence[str] = (),
):
    images = [
        LabelledImage(str(n), b"", label, str(lesion))
        for n, (label, lesion) in enumerate(zip(labels, lesions, strict=True))
    ]
    test = EvaluatedSet("test", "test", images, True, [of_probabilities(probabilities)])
    return mode_report(DET, 0, test, {}, classes, target).classes


def counts(share) -> tuple[int, int]:
    return share.hits, share.images


def test_hits_are_counted_by_class_with_the_target_first() -> None:
    predicted, labels = np.array([0, 1, 1, 2, 2, 0, 2]), np.array([0, 0, 1, 2, 2, 2, 1])
    lesions = np.array([0, 0, 1, 2, 2, 3, 4])
    probabilities = np.eye(4)[predicted]
    metrics = class_metrics(probabilities, labels, lesions, CLASSES, ["mel"])
    assert list(metrics) == ["mel", "bkl", "nv", "df"]
    assert counts(metrics["mel"].sensitivity) == (2, 3)
    assert counts(metrics["mel"].specificity) == (3, 4)
    assert counts(metrics["mel"].predictive_value) == (2, 3)
    shares = metrics["mel"].sensitivity, metrics["mel"].specificity, metrics["mel"].predictive_value
    assert [share and share.clusters for share in shares] == [2, 3, 2]
    assert counts(metrics["nv"].sensitivity) == (1, 2)
    assert counts(metrics["nv"].predictive_value) == (1, 2)
    assert counts(metrics["df"].specificity) == (7, 7)
    assert metrics["df"].sensitivity is None
    for index, name in enumerate(CLASSES[:3]):
        scores, is_true = probabilities[:, index], labels == index
        assert metrics[name].ranking["auroc"].value == pytest.approx(roc_auc_score(is_true, scores))
        assert metrics[name].ranking["auprc"].value == pytest.approx(
            average_precision_score(is_true, scores)
        )
    assert metrics["df"].ranking == {}


@pytest.mark.parametrize(("count", "interval"), [(20, True), (21, False)])
def test_the_ranking_of_many_classes_has_no_interval(count: int, interval: bool) -> None:
    labels = [0] * 20 + [*range(1, count)] * 2
    probabilities = np.random.default_rng(0).dirichlet(np.ones(count), len(labels))
    lesions, classes = range(len(labels)), [*map(str, range(count))]
    metrics = class_metrics(probabilities, labels, lesions, classes)
    for estimate in metrics["0"].ranking.values():
        assert estimate is not None
        assert (estimate.low is not None) == interval


def test_the_ranking_of_a_class_with_few_lesions_has_no_interval() -> None:
    labels = np.array([0] * 40 + [1] * 19 + [2] * 141)
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), 200)
    metrics = class_metrics(probabilities, labels, range(200), ["a", "b", "c"])
    few, enough = metrics["b"].ranking["auroc"], metrics["a"].ranking["auroc"]
    assert few.low is None
    assert enough.low is not None


DISTANCE = FeatureDistance(FeatureStatistics(torch.zeros(1, 2), torch.eye(2)))
THRESHOLDS = Threshold(
    options=DET, msp=0.6, kept=0.95, images=4, data="squares",
    energy=ScoreThreshold(threshold=-2.0, kept=0.95, upper_quartile=-3.0),
    feature_distance=ScoreThreshold(threshold=1.5, kept=0.95, upper_quartile=1.0),
)  # fmt: skip


def predictions(
    msp: list[float], partition: list[float], distance: list[float],
    thresholds: Threshold | None = THRESHOLDS,
) -> Predictions:  # fmt: skip
    """Predictions of two classes with these scores; partition: log-sum-exp of logits."""
    first = torch.tensor(msp, dtype=torch.float64)
    features = torch.tensor([[value, 0.0] for value in distance])
    logits = torch.stack([first, 1 - first], dim=1).log()
    logits += torch.tensor(partition, dtype=torch.float64)[:, None]
    views = torch.zeros(len(first), 1, 1, dtype=torch.int64)
    trajectories = Trajectories.of(logits[:, None, None], features[:, None, None], views)
    return Predictions.of(trajectories, DISTANCE, thresholds)


INSIDE = predictions([0.9, 0.8, 0.7, 0.6], [8.0, 7.0, 6.0, 5.0], [0.1, 0.2, 0.3, 0.4])
OUTSIDE = predictions([0.55, 0.51], [1.0, 3.0], [2.0, 1.0])


def evaluated(predictions: Predictions, of_test: bool = False) -> EvaluatedSet:
    images = [LabelledImage(str(index), b"", 0) for index in range(len(predictions))]
    return EvaluatedSet("set", "far", images, of_test, [predictions])


def scores_of(test: EvaluatedSet, outside: EvaluatedSet):
    return mode_report(DET, 0, test, {"set": outside}, ("a", "b")).ood["set"].scores


def auroc_of(inside: Predictions, outside: Predictions, of_test: bool = False):
    results = scores_of(evaluated(inside), evaluated(outside, of_test))
    return {score: result.metrics["auroc"] for score, result in results.items()}


def test_every_score_separates_and_flags_in_its_own_direction() -> None:
    names = ("msp", "energy", "feature_distance")
    for inside, outside, expected in ((INSIDE, OUTSIDE, 1.0), (OUTSIDE, INSIDE, 0.0)):
        found = {name: (of.value, of.low) for name, of in auroc_of(inside, outside).items()}
        assert found == dict.fromkeys(names, (expected, None))
    assert {score: flags.tolist() for score, flags in OUTSIDE.flags.items()} == {
        "msp": [True, True],
        "energy": [True, False],  # -1 and -3
        "feature_distance": [True, False],
    }
    of_outside = scores_of(evaluated(INSIDE), evaluated(OUTSIDE))
    flagged = [of_outside[name].flagged for name in names]
    assert [share and (share.hits, share.images) for share in flagged] == [(2, 2), (1, 2), (1, 2)]
    of_test = mode_report(DET, 0, evaluated(OUTSIDE), {}, ("a", "b")).flagged
    assert [share and share.hits for share in of_test.values()] == [2, 1, 1]
    plain = evaluated(predictions([0.5], [1.0], [2.0], thresholds=None))
    assert mode_report(DET, 0, plain, {}, ("a", "b")).flagged == {}
    assert all(score.flagged is None for score in scores_of(plain, plain).values())


def test_changed_test_images_are_resampled_together_with_their_lesions() -> None:
    """The interval is narrower for scores that move with the lesion."""
    lesion, values = np.random.default_rng(0).uniform(0.55, 0.9, 60), [0.0] * 60
    before, after = (predictions((lesion - d).tolist(), values, values) for d in (0, 0.01))
    widths = []
    for of_test in (True, False):
        auroc = auroc_of(before, after, of_test)["msp"]
        widths.append(auroc.high - auroc.low)
    assert widths[0] < 0.5 * widths[1]
