"""Reports agree with metrics recomputed from predictions.

Classification results by class.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eulerlora.checkpoint.files import TRAINING_IMAGES_FILE, load_checkpoint
from eulerlora.model import EulerLoRA
from eulerlora_client.contract.answers import ClassName, TargetClasses
from training.data.digests import image_digests
from training.data.images import (
    ImageParts,
    ImageSource,
    LabelledImage,
    OodSet,
    evenly_spaced,
    list_images,
    read_image,
)
from training.evaluation.evaluate import class_metrics, evaluate
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import Estimates, Proportion, proportion, unit_weights
from training.evaluation.metrics import risk_coverage, selective_metrics
from training.evaluation.report_schema import OodSetFacts, Subset

DET = SamplingOptions("det")
STOCH = SamplingOptions("stoch", 4)


def labelled(folder: Path, labels: Sequence[int]) -> list[LabelledImage]:
    """Returns labelled images; two form a cluster, and every second one has the kind "b".

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
    """Returns the model with all classes but the first one as its target."""
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
    options = [DET, STOCH, SamplingOptions("stoch", 3)]
    evaluation = evaluate(model, dataset(model, test), ood, options)
    report = evaluation.report
    det, stoch, uncalibrated = report.modes

    paths = [image_folder / "test" / image.name for image in test]
    for index, (actual, mode) in enumerate(zip(report.modes, ("det", "stoch"), strict=False)):
        predictions = evaluation.sets.test.predictions[index]
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
        uncertainty = predictions.uncertainty
        torch.testing.assert_close(uncertainty.probabilities, prediction.probabilities)
        torch.testing.assert_close(uncertainty.msp, prediction.msp)
        outside = model.predict(sorted((image_folder / "other").iterdir()), mode)
        scores = evaluation.sets.ood["other"].predictions[index].scores
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
    assert evaluation.sets.test.labels.tolist() == [image.label for image in test]


def test_group_metrics_agree_with_predictions_for_the_group(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = with_target(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])
    (mode,) = evaluate(model, dataset(model, test), [], [DET]).report.modes
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
        assert prediction.ood is not None
        flagged = float(prediction.ood.double().mean())
        assert value(group.metrics, "flagged") == pytest.approx(flagged)


def test_the_sampler_can_be_chosen_and_is_reported(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 2])
    images = dataset(model, test)
    evaluation = evaluate(model, images, [], [DET, STOCH], sampler="balanced")
    det, stoch = evaluation.report.modes
    assert (det.title, stoch.title) == ("det", "stoch, 4 balanced samples")
    assert (det.sampler, stoch.sampler) == (None, "balanced")
    assert (det.thresholds, stoch.thresholds) == ({"msp": 0.5, "energy": 50.0}, {})
    paths = [image_folder / "test" / image.name for image in test]
    expected = model.predict(paths, "stoch", 4, sampler="balanced").probabilities
    actual = evaluation.sets.test.predictions[1].uncertainty.probabilities
    torch.testing.assert_close(actual, expected)


def test_a_larger_ood_set_is_reduced_to_evenly_spaced_images(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])
    train, other = (labelled(image_folder / name, [-1] * 3) for name in ("train", "other"))
    ood = [OodSet("train", train), OodSet("other", other)]
    evaluation = evaluate(model, dataset(model, test), ood, [DET], ood_images=6)
    used = {name: facts.used for name, facts in evaluation.report.ood_sets.items()}
    assert used == {"train": Subset(6, 60), "other": Subset(5, 5)}
    assert {name: len(part.images) for name, part in evaluation.sets.ood.items()} == {
        "train": 6,
        "other": 5,
    }
    assert evenly_spaced(train, 6) == train[::10]
    positions = [train.index(image) for image in evenly_spaced(train, 7)]
    assert {b - a for a, b in pairwise([*positions, 60])} <= {8, 9}
    assert evenly_spaced(other, None) == other


def test_images_of_the_training_are_counted_in_every_set(
    checkpoint_folder: Path, image_folder: Path, tmp_path: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test, other = labelled(image_folder / "test", [0, 1, 2]), labelled(image_folder / "other", [-1])
    stored = image_digests([*test[3:], *other[:2]]).sort().values
    save_file({"adapters": stored[:9], "backbone": stored[9:]}, tmp_path / TRAINING_IMAGES_FILE)
    sets = [OodSet("other", other)]
    report = evaluate(model, dataset(model, test), sets, [DET], folder=tmp_path).report
    assert (report.seen, report.ood_sets["other"].seen) == (len(test) - 3, 2)


def test_every_image_is_read_once_for_all_modes(
    checkpoint_folder: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "read"  # a file, because a worker process reads the images

    def logged(name: str, source: ImageSource) -> torch.Tensor:
        with log.open("a") as file:
            file.write(f"{name}\n")
        return read_image(name, source)

    monkeypatch.setattr("training.evaluation.inference.read_image", logged)
    images = [LabelledImage(*named, 0) for named in list_images(image_folder / "test").items()]
    model = EulerLoRA.load(checkpoint_folder)
    predict_all(model, images, [SamplingOptions("det"), SamplingOptions("stoch", 2)], "test")
    assert log.read_text().splitlines() == [image.name for image in images]


CLASSES = ("bkl", "nv", "mel", "df")


def counts(share: Proportion | None) -> tuple[int, int]:
    assert share is not None
    return share.hits, share.images


def test_hits_are_counted_by_class_with_the_target_first() -> None:
    predicted, labels = np.array([0, 1, 1, 2, 2, 0, 2]), np.array([0, 0, 1, 2, 2, 2, 1])
    lesions = np.array([0, 0, 1, 2, 2, 3, 4])
    metrics = class_metrics(predicted, labels, lesions, CLASSES, ["mel"])
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
