"""A report that can be recomputed from predictions."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from eulerlora.config import ClassName
from eulerlora.model import EulerLoRA
from training.data.datasets import ImageParts, LabelledImage
from training.data.image_sources import list_images, read_image
from training.data.splits import evenly_spaced
from training.evaluation.corruptions import CORRUPTIONS
from training.evaluation.evaluate import evaluate
from training.evaluation.inference import Question
from training.evaluation.intervals import Estimates, once
from training.evaluation.report_schema import CLEAN, TEST, Subset
from training.evaluation.selective import risk_coverage, selective_metrics
from training.evaluation.sensitivity import proportion


def labelled(folder: Path, labels: Sequence[int]) -> list[LabelledImage]:
    """Two images are of one cluster; every other image is of the group "b"."""
    found = list_images(folder).items()
    return [
        LabelledImage(
            name, source, labels[index % len(labels)], str(index // 2), {"kind": "ab"[index % 2]}
        )
        for index, (name, source) in enumerate(found)
    ]


def dataset(model: EulerLoRA, test: Sequence[LabelledImage]) -> ImageParts:
    classes = tuple(ClassName(name=name, description=name) for name in model.classes)
    return ImageParts("squares", classes, {"test": test}, target=model.classes[1:])


def value(found: Estimates, name: str) -> float:
    figure = found[name]
    assert figure is not None
    assert figure.low <= figure.value <= figure.high
    return figure.value


def test_the_figures_are_those_of_the_model_s_predictions(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 2])  # no image of class 1
    ood = {"other": labelled(image_folder / "other", [-1])}
    questions = [("det", 1), ("stoch", 4), ("stoch", 3)]
    evaluation = evaluate(model, dataset(model, test), ood, questions)
    report = evaluation.report
    det, stoch, uncalibrated = report.modes

    paths = [image_folder / "test" / each.name for each in test]
    for each, answers, mode in zip(
        report.modes, evaluation.answers, ("det", "stoch"), strict=False
    ):
        prediction = model.predict(paths, mode, 4)
        right = np.array(
            [
                label == model.classes[image.label]
                for label, image in zip(prediction.labels, test, strict=True)
            ]
        )
        assert value(each.metrics, "accuracy") == pytest.approx(right.mean())
        assert prediction.ood is not None
        assert value(each.flagged, TEST) == pytest.approx(float(prediction.ood.double().mean()))
        assert each.threshold == 0.5
        torch.testing.assert_close(answers.found.probabilities, prediction.probabilities)
        torch.testing.assert_close(answers.found.msp, prediction.msp)
        outside = model.predict(sorted((image_folder / "other").iterdir()), mode, 4)
        torch.testing.assert_close(answers.outside["other"].msp, outside.msp)
        areas = selective_metrics(risk_coverage(prediction.msp.numpy(), ~right, once(18)))
        assert value(each.metrics, "aurc") == pytest.approx(areas["aurc"].item())
        assert each.ood["other"].keys() == {"auroc", "auprc", "fpr_at_95_tpr"}
    of_class = right[[image.label == 2 for image in test]]
    figures = stoch.classes[model.classes[2]]
    assert figures.sensitivity == proportion(int(of_class.sum()), len(of_class))
    assert stoch.classes[model.classes[1]].sensitivity is None
    assert (det.trajectories, stoch.trajectories, uncalibrated.trajectories) == (2, 8, 6)
    assert uncalibrated.threshold is None
    assert uncalibrated.flagged == {TEST: None, "other": None}
    assert (report.images, report.clusters) == (18, 9)
    assert report.ood_images == {"other": Subset(5, 5)}
    assert (report.corrupted, det.corruptions) == (Subset(0, 18), {})
    assert evaluation.labels.tolist() == [each.label for each in test]


def test_groups_have_the_figures_of_their_own_images(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])
    (mode,) = evaluate(model, dataset(model, test), {}, [("det", 1)]).report.modes
    assert {kind: list(groups) for kind, groups in mode.groups.items()} == {"kind": ["a", "b"]}
    for start, name in enumerate("ab"):
        own = test[start::2]
        prediction = model.predict([image_folder / "test" / each.name for each in own])
        labels = np.array([each.label for each in own])
        predicted = prediction.probabilities.argmax(dim=-1).numpy()
        found = mode.groups["kind"][name]
        assert (found.images, found.clusters) == (9, 9)
        assert found.target == (labels > 0).sum()
        assert value(found.metrics, "accuracy") == pytest.approx((predicted == labels).mean())
        gap = float(prediction.msp.mean()) - (predicted == labels).mean()
        assert value(found.metrics, "overconfidence") == pytest.approx(gap)
        assert found.sensitivity == proportion(
            int((predicted[labels > 0] > 0).sum()), int((labels > 0).sum())
        )
        assert prediction.ood is not None
        flagged = float(prediction.ood.double().mean())
        assert value(found.metrics, "flagged") == pytest.approx(flagged)


def test_corruptions_have_the_figures_of_corrupted_images(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])
    report = evaluate(model, dataset(model, test), {}, [("det", 1)], None, 6).report
    assert report.corrupted == Subset(6, 18)
    (mode,) = report.modes
    assert list(mode.corruptions) == [CLEAN, *(each.name for each in CORRUPTIONS)]
    chosen = test[::3]
    labels = [each.label for each in chosen]
    pixels = [read_image(each.name, each.source) for each in chosen]
    for name, corruption in [(CLEAN, None), *((each.name, each) for each in CORRUPTIONS)]:
        shown = pixels if corruption is None else [corruption.of(each) for each in pixels]
        prediction = model.predict(torch.stack(shown) / 255, seed=0)
        found = mode.corruptions[name]
        right = prediction.probabilities.argmax(dim=-1) == torch.tensor(labels)
        assert value(found, "accuracy") == pytest.approx(float(right.double().mean()))
        assert value(found, "msp") == pytest.approx(float(prediction.msp.mean()), abs=1e-5)
        assert value(found, "entropy") == pytest.approx(float(prediction.entropy.mean()), abs=1e-5)
        assert ("auroc" in found) == (name != CLEAN)


def test_samples_are_drawn_as_asked_and_the_report_says_so(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 2])
    questions: list[Question] = [("det", 1), ("stoch", 4)]
    evaluation = evaluate(model, dataset(model, test), {}, questions, sampler="balanced")
    det, stoch = evaluation.report.modes
    assert (det.title, stoch.title) == ("det", "stoch, 4 balanced samples")
    assert (det.sampler, stoch.sampler) == (None, "balanced")
    assert (det.threshold, stoch.threshold) == (0.5, None)
    paths = [image_folder / "test" / each.name for each in test]
    expected = model.predict(paths, "stoch", 4, sampler="balanced").probabilities
    torch.testing.assert_close(evaluation.answers[1].found.probabilities, expected)


def test_of_a_larger_ood_set_evenly_spaced_images_are_used_and_counted(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])
    ood = {
        "train": labelled(image_folder / "train", [-1] * 3),
        "other": labelled(image_folder / "other", [-1]),
    }
    evaluation = evaluate(model, dataset(model, test), ood, [("det", 1)], ood_images=6)
    assert evaluation.report.ood_images == {"train": Subset(6, 60), "other": Subset(5, 5)}
    outside = evaluation.answers[0].outside
    assert {name: len(each.msp) for name, each in outside.items()} == {"train": 6, "other": 5}
    assert evenly_spaced(ood["train"], 6) == ood["train"][::10]
    positions = [ood["train"].index(each) for each in evenly_spaced(ood["train"], 7)]
    assert {b - a for a, b in pairwise([*positions, 60])} <= {8, 9}
    assert evenly_spaced(ood["other"], None) == ood["other"]


def test_a_grouping_of_one_group_is_left_out(checkpoint_folder: Path, image_folder: Path) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    test = labelled(image_folder / "test", [0, 1, 2])[::2]
    (mode,) = evaluate(model, dataset(model, test), {}, [("det", 1)]).report.modes
    assert mode.groups == {}
