"""Reports agree with metrics recomputed from predictions.

Classification results by class.

OOD scores: their directions, flags, and intervals that respect shared lesions.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from sklearn.metrics import average_precision_score, roc_auc_score

from eulerlora.answer import Predictions
from eulerlora.checkpoint.files import load_checkpoint, read_config
from eulerlora.model import EulerLoRA
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.checkpoints import ClassName, ScoreThreshold, TargetClasses, Threshold
from tests.checkpoint_files import write_config
from tests.conftest import DET
from tests.training.conftest import list_images, write_training_images
from training.data.copies import image_digests
from training.data.images import (
    ImageParts,
    LabelledImage,
    OodSet,
    evenly_spaced,
)
from training.evaluation.evaluate import (
    EvaluatedSet,
    class_metrics,
    ensemble_summary,
    evaluate,
    flagged_shares,
    score_metrics,
)
from training.evaluation.inference import predict_all
from training.evaluation.intervals import Estimate, Estimates, Proportion, proportion, unit_weights
from training.evaluation.metrics import risk_coverage, selective_metrics
from training.evaluation.report_schema import OodSetFacts, Report, Subset
from training.reporting.report import data_summary


def labelled(folder: Path, labels: Sequence[int]) -> list[LabelledImage]:
    """Labelled images; two form a cluster, and every second one has the kind "b".

    All have the same site.
    """
    sources = list_images(folder).items()
    return [
        LabelledImage(
            name,
            source,
            labels[index % len(labels)],
            str(index // 2),
            {"kind": "ab"[index % 2], "site": "same"},
        )
        for index, (name, source) in enumerate(sources)
    ]


def dataset(model: EulerLoRA, test: Sequence[LabelledImage]) -> ImageParts:
    classes = tuple(ClassName(name=name, description=name) for name in model.classes)
    return ImageParts("squares", classes, {"test": test})


def with_target(folder: Path) -> EulerLoRA:
    """The model with all classes but the first one as its target."""
    checkpoint = load_checkpoint(folder)
    names = tuple(label.name for label in checkpoint.config.classes[1:])
    target = TargetClasses.model_validate({"name": "target", "classes": names})
    config = checkpoint.config.model_copy(update={"target": target})
    return EulerLoRA(replace(checkpoint, config=config), torch.device("cpu"))


def value(estimates: Estimates, name: str) -> float:
    estimate = estimates[name]
    assert estimate is not None
    if estimate.low is not None and estimate.high is not None:
        assert estimate.low <= estimate.value <= estimate.high
    return estimate.value


def test_the_report_agrees_with_the_predictions_of_the_model(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 2])  # no image of class 1
    ood = [OodSet("other", labelled(image_folder / "other", [-1]), group="near")]
    options = [model.options(), model.options("stoch", 4), model.options("stoch", 3)]
    evaluation = evaluate(model, dataset(model, test), ood, options)
    report = evaluation.report
    det, stoch, uncalibrated = report.modes

    paths = [image_folder / "test" / image.name for image in test]
    for index, (actual, mode) in enumerate(zip(report.modes, ("det", "stoch"), strict=False)):
        predictions = evaluation.test.predictions[index]
        prediction = model.predict(paths, mode)
        correct = np.array(
            [
                label == model.classes[image.label]
                for label, image in zip(prediction.labels, test, strict=True)
            ]
        )
        assert value(actual.metrics, "accuracy") == pytest.approx(correct.mean())
        assert prediction.ood is not None
        flagged = actual.flagged["msp"]
        assert flagged is not None
        assert flagged.hits == int(prediction.ood.sum())
        assert actual.thresholds == {"msp": 0.5, "energy": 50.0}
        torch.testing.assert_close(predictions.probabilities, prediction.probabilities)
        torch.testing.assert_close(predictions.msp, prediction.msp)
        outside = model.predict(sorted((image_folder / "other").iterdir()), mode)
        scores = evaluation.ood["other"].predictions[index].ood_scores
        assert scores.keys() == outside.ood_scores.keys() == {"msp", "energy"}
        for name, score in scores.items():
            torch.testing.assert_close(score.value, outside.ood_scores[name].value)
        areas = selective_metrics(risk_coverage(prediction.msp.numpy(), ~correct, unit_weights(18)))
        assert value(actual.metrics, "aurc") == pytest.approx(areas["aurc"].item())
        other = actual.ood["other"].scores
        assert other["msp"].metrics.keys() == {"auroc", "auprc", "fpr_at_95_tpr"}
        assert other["msp"].flagged is not None
        assert other["msp"].flagged.hits == int(outside.ood.sum())
        assert other["energy"].flagged is not None
        assert other["energy"].flagged.hits == 0
    of_class = correct[[image.label == 2 for image in test]]
    lesions = np.array([int(image.cluster) for image in test if image.label == 2])
    assert stoch.classes[model.classes[2]].sensitivity == proportion(of_class, lesions)
    assert stoch.classes[model.classes[1]].sensitivity is None
    assert (det.trajectories, stoch.trajectories, uncalibrated.trajectories) == (2, 8, 6)
    assert (uncalibrated.thresholds, uncalibrated.flagged) == ({}, {})
    assert uncalibrated.ood["other"].scores["msp"].flagged is None
    assert (report.images, report.clusters) == (18, 9)
    assert report.ood_sets == {"other": OodSetFacts("near", False, Subset(5, 5), None, None)}
    assert evaluation.test.labels.tolist() == [image.label for image in test]


def test_group_metrics_agree_with_predictions_for_the_group(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = with_target(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])
    (mode,) = evaluate(model, dataset(model, test), [], [model.options()]).report.modes
    assert {kind: list(groups) for kind, groups in mode.groups.items()} == {"kind": ["a", "b"]}
    for start, name in enumerate("ab"):
        members = test[start::2]
        prediction = model.predict([image_folder / "test" / image.name for image in members])
        labels = np.array([image.label for image in members])
        predicted = prediction.probabilities.argmax(dim=-1).numpy()
        group = mode.groups["kind"][name]
        assert (group.images, group.clusters) == (9, 9)
        assert group.target == (labels > 0).sum()
        assert value(group.metrics, "accuracy") == pytest.approx((predicted == labels).mean())
        gap = float(prediction.msp.mean()) - (predicted == labels).mean()
        assert value(group.metrics, "overconfidence") == pytest.approx(gap)
        of_target = predicted[labels > 0] > 0
        assert group.sensitivity == proportion(of_target, np.arange(len(of_target)))
        of_others = predicted[labels == 0] == 0
        assert group.specificity == proportion(of_others, np.arange(len(of_others)))
        assert prediction.ood is not None
        flagged = float(prediction.ood.double().mean())
        assert value(group.metrics, "flagged") == pytest.approx(flagged)


def test_the_sampler_can_be_chosen_and_is_reported(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 2])
    images = dataset(model, test)
    balanced = model.options("stoch", 4, "balanced")
    evaluation = evaluate(model, images, [], [model.options(), balanced])
    det, stoch = evaluation.report.modes
    assert (det.title, stoch.title) == ("det", "stoch, 4 balanced samples")
    assert (det.sampler, stoch.sampler) == (None, "balanced")
    assert (det.thresholds, stoch.thresholds) == ({"msp": 0.5, "energy": 50.0}, {})
    paths = [image_folder / "test" / image.name for image in test]
    expected = model.predict(paths, "stoch", 4, sampler="balanced").probabilities
    actual = evaluation.test.predictions[1].probabilities
    torch.testing.assert_close(actual, expected)


def test_a_larger_ood_set_is_reduced_to_evenly_spaced_images(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])
    train, other = (labelled(image_folder / name, [-1] * 3) for name in ("train", "other"))
    ood = [OodSet("train", train), OodSet("other", other)]
    evaluation = evaluate(model, dataset(model, test), ood, [model.options()], ood_images=6)
    used = {name: facts.used for name, facts in evaluation.report.ood_sets.items()}
    assert used == {"train": Subset(6, 60), "other": Subset(5, 5)}
    assert {name: len(part.images) for name, part in evaluation.ood.items()} == {
        "train": 6,
        "other": 5,
    }
    assert evenly_spaced(train, 6) == train[::10]
    positions = [train.index(image) for image in evenly_spaced(train, 7)]
    assert {b - a for a, b in pairwise([*positions, 60])} <= {8, 9}
    assert evenly_spaced(other, None) == other


def test_images_of_the_training_are_counted_in_every_set(
    checkpoint_copy: Path, image_folder: Path
) -> None:
    test, other = labelled(image_folder / "test", [0, 1, 2]), labelled(image_folder / "other", [-1])
    stored = image_digests([*test[3:], *other[:2]]).sort().values
    digests = {"adapters": stored[:9], "backbone": stored[9:]}
    write_training_images(checkpoint_copy, save(digests))
    model, sets = EulerLoRA.load(checkpoint_copy), [OodSet("other", other)]
    report = evaluate(model, dataset(model, test), sets, [model.options()]).report
    assert (report.seen, report.ood_sets["other"].seen) == (len(test) - 3, 2)


def test_images_of_the_calibration_are_counted_by_digest_or_by_the_name_of_the_part(
    checkpoint_copy: Path, image_folder: Path
) -> None:
    test = labelled(image_folder / "test", [0, 1, 2])
    options = [EulerLoRA.load(checkpoint_copy).options()]
    config = read_config(checkpoint_copy)

    def fitted(data: str) -> Report:
        thresholds = tuple(of.model_copy(update={"data": data}) for of in config.thresholds)
        write_config(checkpoint_copy, config.model_copy(update={"thresholds": thresholds}))
        model = EulerLoRA.load(checkpoint_copy)
        images = replace(dataset(model, test), name="squares")
        return evaluate(model, images, [], options).report

    assert fitted("squares").fitted == len(test)
    assert fitted("squares, calibration part").fitted == 0
    unknown = fitted("circles, calibration part")
    assert unknown.fitted is None
    assert "not recorded" in data_summary(unknown).partition("fitted")[2]
    digests = image_digests(test[5:])
    write_training_images(checkpoint_copy, save({"calibration": digests}))
    config = read_config(checkpoint_copy)
    found = fitted("circles, calibration part")
    assert (found.fitted, found.seen) == (len(test) - 5, None)
    assert f"fitted to {len(test) - 5} of the {len(test)} test images" in data_summary(found)


def test_every_image_is_read_once_for_all_modes(checkpoint_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "read"  # a file, because a worker process reads the images

    def logged(name: str) -> torch.Tensor:
        with log.open("a") as file:
            file.write(f"{name}\n")
        return torch.zeros(3, 40, 40, dtype=torch.uint8)

    images = [LabelledImage(name, partial(logged, name), 0) for name in map(str, range(40))]
    model = EulerLoRA.load(checkpoint_folder)
    predict_all(model, images, [model.options(), model.options("stoch", 2)], "test")
    assert log.read_text().splitlines() == [image.name for image in images]


CLASSES = ("bkl", "nv", "mel", "df")


def counts(share: Proportion | None) -> tuple[int, int]:
    assert share is not None
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
        assert value(metrics[name].ranking, "auroc") == pytest.approx(
            roc_auc_score(is_true, scores)
        )
        assert value(metrics[name].ranking, "auprc") == pytest.approx(
            average_precision_score(is_true, scores)
        )
    assert metrics["df"].ranking == {}


@pytest.mark.parametrize(("count", "interval"), [(20, True), (21, False)])
def test_the_ranking_of_many_classes_has_no_interval(count: int, interval: bool) -> None:
    images = 20 * count
    labels = np.arange(images) % count
    probabilities = np.random.default_rng(0).dirichlet(np.ones(count), images)
    metrics = class_metrics(probabilities, labels, np.arange(images), [*map(str, range(count))], [])
    for estimate in metrics["0"].ranking.values():
        assert estimate is not None
        assert (estimate.low is not None) == interval


def test_the_ranking_of_a_class_with_few_lesions_has_no_interval() -> None:
    labels = np.array([0] * 40 + [1] * 19 + [2] * 141)
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), 200)
    metrics = class_metrics(probabilities, labels, np.arange(200), ["a", "b", "c"], [])
    few, enough = metrics["b"].ranking["auroc"], metrics["a"].ranking["auroc"]
    assert few is not None
    assert enough is not None
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


def auroc_of(
    inside: Predictions, outside: Predictions, of_test: bool = False
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
        Trajectories.of(
            torch.randn(4, 2, 1, 3, generator=generator, dtype=torch.float64),
            torch.randn(4, 2, 1, 2, generator=generator),
            torch.zeros(4, 2, 1, dtype=torch.int64),
        )
        for _ in range(3)
    ]
    distances = [
        FeatureDistance(FeatureStatistics(torch.full((1, 2), float(i)), torch.eye(2)))
        for i in range(3)
    ]
    ensemble = ensemble_summary(members, distances)
    for image in range(4):
        mean = torch.stack([m.log_probabilities[image].exp().mean(dim=(0, 1)) for m in members])
        torch.testing.assert_close(ensemble.probabilities[image], mean.mean(dim=0))
        assert ensemble.ood_scores["msp"].value[image] == pytest.approx(
            float(mean.mean(dim=0).max())
        )
        energy = -np.mean([m.log_partition[image].mean() for m in members])
        assert ensemble.ood_scores["energy"].value[image] == pytest.approx(energy)
        own = [
            float(d(m.features[image].mean(dim=(0, 1))[None]))
            for m, d in zip(members, distances, strict=True)
        ]
        assert ensemble.ood_scores["feature_distance"].value[image] == pytest.approx(np.mean(own))
    assert ensemble.log_probabilities.shape == (4, 6, 3)
    assert ensemble.flags == {}
