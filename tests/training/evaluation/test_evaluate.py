"""Reports agree with metrics recomputed from predictions.

Their ensembles and the images that the checkpoint knows.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import load_checkpoint, read_config
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora_contract.checkpoints import ClassName, TargetClasses
from tests.checkpoint_files import write_config
from tests.conftest import random_network
from tests.training.conftest import list_images, write_training_images
from training.data.copies import image_digests
from training.data.images import ImageParts, LabelledImage, OodSet
from training.evaluation.evaluate import evaluate
from training.evaluation.inference import predict_all
from training.evaluation.intervals import proportion
from training.evaluation.metrics import risk_coverage, selective_metrics
from training.reporting.report import markdown


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


def value(estimates, name: str) -> float:
    estimate = estimates[name]
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
        flagged = actual.flagged["msp"]
        assert flagged.hits == int(prediction.ood.sum())
        assert actual.thresholds == {"msp": 0.5, "energy": 50.0}
        torch.testing.assert_close(predictions.probabilities, prediction.probabilities)
        torch.testing.assert_close(predictions.msp, prediction.msp)
        outside = model.predict(sorted((image_folder / "other").iterdir()), mode)
        scores = evaluation.ood["other"].predictions[index].ood_scores
        assert scores.keys() == outside.ood_scores.keys() == {"msp", "energy"}
        for name, score in scores.items():
            torch.testing.assert_close(score.value, outside.ood_scores[name].value)
        areas = selective_metrics(risk_coverage(prediction.msp.numpy(), ~correct, np.ones((1, 18))))
        assert value(actual.metrics, "aurc") == pytest.approx(areas["aurc"].item())
        other = actual.ood["other"].scores
        assert other["msp"].metrics.keys() == {"auroc", "auprc", "fpr_at_95_tpr"}
        assert other["msp"].flagged.hits == int(outside.ood.sum())
        assert other["energy"].flagged.hits == 0
    of_class = correct[[image.label == 2 for image in test]]
    lesions = np.array([int(image.cluster) for image in test if image.label == 2])
    assert stoch.classes[model.classes[2]].sensitivity == proportion(of_class, lesions)
    assert stoch.classes[model.classes[1]].sensitivity is None
    assert (det.trajectories, stoch.trajectories, uncalibrated.trajectories) == (2, 8, 6)
    assert (uncalibrated.thresholds, uncalibrated.flagged) == ({}, {})
    assert uncalibrated.ood["other"].scores["msp"].flagged is None
    assert (report.images, report.clusters) == (18, 9)
    assert asdict(report)["ood_sets"] == {
        "other": {
            "group": "near", "generated": False, "used": {"images": 5, "of": 5}, "seen": None,
            "resembles": None,
        }
    }  # fmt: skip
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
    assert (det.options, stoch.options) == (model.options(), balanced)
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
    evaluation = evaluate(model, dataset(model, test), ood, [model.options()], ood_images=7)
    used = {name: facts.used for name, facts in evaluation.report.ood_sets.items()}
    assert {name: (one.images, one.of) for name, one in used.items()} == {
        "train": (7, 60), "other": (5, 5)
    }  # fmt: skip
    positions = [train.index(image) for image in evaluation.ood["train"].images]
    assert (positions[0], len(positions)) == (0, 7)
    assert {b - a for a, b in pairwise([*positions, 60])} <= {8, 9}
    assert evaluation.ood["other"].images == other


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

    def fitted(data: str):
        thresholds = tuple(of.model_copy(update={"data": data}) for of in config.thresholds)
        write_config(checkpoint_copy, config.model_copy(update={"thresholds": thresholds}))
        model = EulerLoRA.load(checkpoint_copy)
        images = replace(dataset(model, test), name="squares")
        return evaluate(model, images, [], options).report

    assert fitted("squares").fitted == len(test)
    assert fitted("squares, calibration part").fitted == 0
    unknown = fitted("circles, calibration part")
    assert unknown.fitted is None
    assert "not recorded" in markdown(unknown).partition("fitted")[2]
    digests = image_digests(test[5:])
    write_training_images(checkpoint_copy, save({"calibration": digests}))
    config = read_config(checkpoint_copy)
    found = fitted("circles, calibration part")
    assert (found.fitted, found.seen) == (len(test) - 5, None)
    assert f"fitted to {len(test) - 5} of the {len(test)} test images" in markdown(found)


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


def test_without_draws_modes_of_the_same_views_are_one(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    first, images = load_checkpoint(checkpoint_folder), labelled(image_folder / "other", [0, 1, 2])
    adapters = first.config.adapters
    settings = adapters.settings.model_copy(update={"min_rank": adapters.settings.rank})
    adapters = adapters.model_copy(update={"settings": settings})
    config = first.config.model_copy(update={"adapters": adapters})
    model = EulerLoRA(replace(first, config=config), torch.device("cpu"))
    det, stoch = model.options(), model.options("stoch", 2)
    turned = model.options("stoch", 2, views=4)
    report = evaluate(model, dataset(model, images), [], [det, stoch, turned]).report
    assert [mode.options for mode in report.modes] == [det, turned]


def test_an_ensemble_answers_with_the_mean_over_its_members(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    first, images = load_checkpoint(checkpoint_folder), labelled(image_folder / "other", [0, 1, 2])
    alone = EulerLoRA(first, torch.device("cpu"))
    (output,) = predict_all(alone, images[:1], [alone.options()], "width")
    width = output.features.shape[-1]
    members = [
        EulerLoRA(
            replace(
                first,
                network=random_network(seed=seed),
                feature_distance=FeatureDistance(
                    FeatureStatistics(torch.full((1, width), float(seed)), torch.eye(width))
                ),
            ),
            torch.device("cpu"),
        )
        for seed in (1, 2, 3)
    ]
    model, *others = members
    options = [model.options("stoch", 4)]
    evaluation = evaluate(model, dataset(model, images), [], options, others=others)
    (ensemble,) = evaluation.test.predictions
    outputs = [predict_all(member, images, options, "test")[0] for member in members]
    for image in range(len(images)):
        mean = torch.stack([m.log_probabilities[image].exp().mean(dim=(0, 1)) for m in outputs])
        torch.testing.assert_close(ensemble.probabilities[image], mean.mean(dim=0))
        assert ensemble.ood_scores["msp"].value[image] == pytest.approx(
            float(mean.mean(dim=0).max())
        )
        energy = -np.mean([m.log_partition[image].mean() for m in outputs])
        assert ensemble.ood_scores["energy"].value[image] == pytest.approx(energy)
        distances = [
            float(member.feature_distance(m.features[image].mean(dim=(0, 1))[None]))
            for m, member in zip(outputs, members, strict=True)
        ]
        distance = ensemble.ood_scores["feature_distance"].value[image]
        assert distance == pytest.approx(np.mean(distances))
    assert ensemble.log_probabilities.shape == (len(images), 24, 3)
    assert ensemble.flags == {}
    assert evaluation.report.modes[0].trajectories == 24
