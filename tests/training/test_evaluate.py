"""training.evaluate: a report that can be recomputed from predictions."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from eulerlora.config import ClassName
from eulerlora.model import EulerLoRA
from training.datasets import ImageParts, LabelledImage
from training.evaluate import evaluate
from training.image_sources import list_images


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
    report = evaluate(model, images, ood, [("det", 1), ("stoch", 4), ("stoch", 3)])
    det, stoch, uncalibrated = report.modes

    paths = [image_folder / "test" / each.name for each in test]
    for each, mode in ((det, "det"), (stoch, "stoch")):
        prediction = model.predict(paths, mode, 4)
        right = [
            label == model.classes[image.label]
            for label, image in zip(prediction.labels, test, strict=True)
        ]
        assert each.metrics["accuracy"] == pytest.approx(sum(right) / len(right))
        assert prediction.ood is not None
        assert each.flagged["test"] == float(prediction.ood.double().mean())
        assert each.threshold == 0.5
        assert each.ood["other"].keys() == {"auroc", "auprc", "fpr_at_95_tpr"}
    of_class = [hit for hit, image in zip(right, test, strict=True) if image.label == 2]
    assert stoch.sensitivity[model.classes[2]] == pytest.approx(sum(of_class) / len(of_class))
    assert stoch.sensitivity[model.classes[1]] is None
    assert (det.trajectories, stoch.trajectories, uncalibrated.trajectories) == (2, 8, 6)
    assert uncalibrated.threshold is None
    assert uncalibrated.flagged == {}
    assert report.images == 18
    assert report.ood_images == {"other": 5}
