"""Thresholds that keep what they say."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import training.evaluation.calibration
from eulerlora.checkpoint import load_checkpoint, read_config
from eulerlora.model import EulerLoRA
from training.data.datasets import ImageParts, LabelledImage
from training.data.image_sources import list_images
from training.evaluation.calibration import SAMPLES, calibrate, find_thresholds, keeping_threshold


@pytest.mark.parametrize("count", [1, 19, 20, 21, 1002])
def test_a_threshold_is_the_highest_that_keeps_its_share(count: int) -> None:
    scores = torch.rand(count, generator=torch.Generator().manual_seed(count)).double()
    threshold = keeping_threshold(scores, 0.95)
    assert (scores >= threshold).double().mean() >= 0.95
    higher = scores[scores > threshold]
    assert len(higher) / count < 0.95


def test_tied_scores_are_kept_together() -> None:
    scores = torch.tensor([0.75] * 10 + [0.5] * 10)
    assert keeping_threshold(scores, 0.95) == 0.5
    assert keeping_threshold(scores, 0.5) == 0.75


def test_every_offered_question_gets_the_threshold_of_its_own_scores(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    model = EulerLoRA(load_checkpoint(checkpoint_folder), torch.device("cpu"))
    found = list_images(image_folder / "test")
    images = [LabelledImage(name, source, 0) for name, source in found.items()]
    thresholds = find_thresholds(model, images, "squares")
    assert [(each.mode, each.samples) for each in thresholds] == [
        ("det", 1),
        *(("stoch", count) for count in SAMPLES),
    ]
    assert SAMPLES[-1] == "auto"
    paths = [image_folder / "test" / name for name in found]
    det = model.predict(paths, "det").msp
    assert thresholds[0].msp == pytest.approx(keeping_threshold(det, 0.95), abs=1e-6)
    most = model.predict(paths, "stoch", SAMPLES[-2]).msp
    assert thresholds[-2].msp == pytest.approx(keeping_threshold(most, 0.95), abs=1e-6)
    for each in thresholds:
        assert each.kept >= 0.95
        assert each.images == len(paths)
        assert each.data == "squares"


def test_balanced_thresholds_are_those_of_questions_with_so_many_samples(
    checkpoint_folder: Path, image_folder: Path
) -> None:
    checkpoint = load_checkpoint(checkpoint_folder)
    balanced = checkpoint.config.model_copy(update={"sampler": "balanced"})
    model = EulerLoRA(replace(checkpoint, config=balanced), torch.device("cpu"))
    found = list_images(image_folder / "test")
    images = [LabelledImage(name, source, 0) for name, source in found.items()]
    paths = [image_folder / "test" / name for name in found]
    thresholds = find_thresholds(model, images, "squares")
    config = balanced.model_copy(update={"thresholds": thresholds})
    model = EulerLoRA(replace(checkpoint, config=config), torch.device("cpu"))
    for given in thresholds[1:]:
        msp = model.predict(paths, "stoch", given.samples).msp
        assert given.msp == pytest.approx(keeping_threshold(msp, 0.95), abs=1e-6)


def test_only_what_is_asked_for_gets_a_threshold_or_is_drawn(
    checkpoint_folder: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    original = training.evaluation.calibration.predict_all

    def counted(model, images, questions, label):
        drawn.append(questions[1])
        return original(model, images, questions, label)

    monkeypatch.setattr(training.evaluation.calibration, "predict_all", counted)
    model = EulerLoRA(load_checkpoint(checkpoint_folder), torch.device("cpu"))
    found = list_images(image_folder / "test")
    images = [LabelledImage(name, source, 0) for name, source in found.items()]
    for samples in ([3, 1], ["auto"]):
        thresholds = find_thresholds(model, images, "squares", samples)
        assert [each.samples for each in thresholds] == [1, *samples]
    assert drawn == [("stoch", 3), ("stoch", 16)]


def test_a_checkpoint_keeps_its_sampler_until_it_is_calibrated_for_another(
    checkpoint_copy: Path, image_folder: Path
) -> None:
    found = list_images(image_folder / "test")
    test = [LabelledImage(name, source, 0) for name, source in found.items()]
    images = ImageParts("squares", (), {"test": test})
    cpu = torch.device("cpu")
    first = calibrate(checkpoint_copy, images, cpu, [2], "balanced")
    assert read_config(checkpoint_copy).sampler == "balanced"
    assert read_config(checkpoint_copy).thresholds == first
    assert calibrate(checkpoint_copy, images, cpu, [2]) == first
    assert read_config(checkpoint_copy).sampler == "balanced"
    assert calibrate(checkpoint_copy, images, cpu, [2], "independent") != first
    assert read_config(checkpoint_copy).sampler == "independent"
