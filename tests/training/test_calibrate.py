"""training.calibrate: thresholds that keep what they say."""

from pathlib import Path

import pytest
import torch

from eulerlora.checkpoint import load_checkpoint
from eulerlora.model import EulerLoRA
from training.calibrate import SAMPLES, find_thresholds, keeping_threshold
from training.datasets import LabelledImage
from training.image_sources import list_images


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
    paths = [image_folder / "test" / name for name in found]
    det = model.predict(paths, "det").msp
    assert thresholds[0].msp == pytest.approx(keeping_threshold(det, 0.95), abs=1e-6)
    most = model.predict(paths, "stoch", max(SAMPLES)).msp
    assert thresholds[-1].msp == pytest.approx(keeping_threshold(most, 0.95), abs=1e-6)
    for each in thresholds:
        assert each.kept >= 0.95
        assert each.images == len(paths)
        assert each.data == "squares"
