"""training.evaluate: a report that can be recomputed from predictions."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from eulerlora.config import ClassName
from eulerlora.model import EulerLoRA
from training.datasets import ImageParts, LabelledImage
from training.evaluate import Subset, evaluate, evenly_spaced
from training.image_sources import list_images
from training.inference import Question
from training.selective import risk_coverage, selective_metrics
from training.sensitivity import sensitivity


def labelled(folder: Path, labels: Sequence[int]) -> list[LabelledImage]:
    found = list_images(folder).items()
    return [
        LabelledImage(name, source, labels[index % len(labels)])
        for index, (name, source) in enumerate(found)
    ]


def test_the_figures_are_those_of_the_model_s_predictions(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 2])  # no image of class 1
    classes = tuple(ClassName(name=name, description=name) for name in model.classes)
    images = ImageParts("squares", classes, {"test": test})
    ood = {"other": labelled(image_folder / "other", [-1])}
    evaluation = evaluate(model, images, ood, [("det", 1), ("stoch", 4), ("stoch", 3)])
    report = evaluation.report
    det, stoch, uncalibrated = report.modes

    paths = [image_folder / "test" / each.name for each in test]
    for each, answers, mode in zip(
        report.modes, evaluation.answers, ("det", "stoch"), strict=False
    ):
        prediction = model.predict(paths, mode, 4)
        right = [
            label == model.classes[image.label]
            for label, image in zip(prediction.labels, test, strict=True)
        ]
        assert each.metrics["accuracy"] == pytest.approx(sum(right) / len(right))
        assert prediction.ood is not None
        assert each.flagged["test"] == float(prediction.ood.double().mean())
        assert each.threshold == 0.5
        torch.testing.assert_close(answers.probabilities, prediction.probabilities)
        torch.testing.assert_close(answers.msp, prediction.msp)
        outside = model.predict(sorted((image_folder / "other").iterdir()), mode, 4)
        torch.testing.assert_close(answers.outside["other"], outside.msp)
        wrong = ~np.array(right)
        assert each.selective == selective_metrics(risk_coverage(prediction.msp.numpy(), wrong))
        assert each.ood["other"].keys() == {"auroc", "auprc", "fpr_at_95_tpr"}
    of_class = [hit for hit, image in zip(right, test, strict=True) if image.label == 2]
    assert stoch.sensitivity[model.classes[2]] == sensitivity(sum(of_class), len(of_class))
    assert stoch.sensitivity[model.classes[1]] is None
    assert (det.trajectories, stoch.trajectories, uncalibrated.trajectories) == (2, 8, 6)
    assert uncalibrated.threshold is None
    assert uncalibrated.flagged == {}
    assert report.images == 18
    assert report.ood_images == {"other": Subset(5, 5)}
    assert evaluation.labels.tolist() == [each.label for each in test]


def test_samples_are_drawn_as_asked_and_the_report_says_so(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 2])
    classes = tuple(ClassName(name=name, description=name) for name in model.classes)
    images = ImageParts("squares", classes, {"test": test})
    questions: list[Question] = [("det", 1), ("stoch", 4)]
    evaluation = evaluate(model, images, {}, questions, sampler="balanced")
    det, stoch = evaluation.report.modes
    assert (det.title, stoch.title) == ("det", "stoch, 4 balanced samples")
    assert (det.sampler, stoch.sampler) == (None, "balanced")
    assert (det.threshold, stoch.threshold) == (0.5, None)
    paths = [image_folder / "test" / each.name for each in test]
    expected = model.predict(paths, "stoch", 4, sampler="balanced").probabilities
    torch.testing.assert_close(evaluation.answers[1].probabilities, expected)


def test_of_a_larger_ood_set_evenly_spaced_images_are_used_and_counted(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])
    classes = tuple(ClassName(name=name, description=name) for name in model.classes)
    ood = {
        "train": labelled(image_folder / "train", [-1] * 3),
        "other": labelled(image_folder / "other", [-1]),
    }
    images = ImageParts("squares", classes, {"test": test})
    evaluation = evaluate(model, images, ood, [("det", 1)], ood_images=6)
    assert evaluation.report.ood_images == {"train": Subset(6, 60), "other": Subset(5, 5)}
    assert {name: len(msp) for name, msp in evaluation.answers[0].outside.items()} == {
        "train": 6,
        "other": 5,
    }
    assert evenly_spaced(ood["train"], 6) == ood["train"][::10]
    positions = [ood["train"].index(each) for each in evenly_spaced(ood["train"], 7)]
    assert {b - a for a, b in pairwise([*positions, 60])} <= {8, 9}
    assert evenly_spaced(ood["other"], None) == ood["other"]
