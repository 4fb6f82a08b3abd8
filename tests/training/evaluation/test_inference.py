"""The answers that the service would give."""

from pathlib import Path

import pytest
import torch

from eulerlora.model import EulerLoRA
from training.data.datasets import LabelledImage
from training.data.image_sources import Source, list_images, read_image
from training.evaluation.inference import Question, predict_all


def test_all_trajectories_are_those_of_predict(checkpoint_folder: Path, image_folder: Path) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    found = list_images(image_folder / "test")
    images = [LabelledImage(name, source, 0) for name, source in found.items()]
    paths = [image_folder / "test" / name for name in found]
    questions: list[Question] = [("det", 1), ("stoch", 3), ("stoch", 16)]
    answers = predict_all(model, images, questions, "test")
    for (mode, samples), found_answers in zip(questions, answers, strict=True):
        expected = model.predict(paths, mode, samples).trajectories
        assert found_answers.shape == (18, 2, samples, 3)
        torch.testing.assert_close(found_answers.exp().flatten(1, 2), expected, atol=1e-6, rtol=0)


def test_every_image_is_read_once_whatever_is_asked(
    checkpoint_folder: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "read"  # a file, since another process reads

    def logged(name: str, source: Source) -> torch.Tensor:
        with log.open("a") as file:
            file.write(f"{name}\n")
        return read_image(name, source)

    monkeypatch.setattr("training.evaluation.inference.read_image", logged)
    images = [LabelledImage(*each, 0) for each in list_images(image_folder / "test").items()]
    model = EulerLoRA.load(checkpoint_folder)
    predict_all(model, images, [("det", 1), ("stoch", 2)], "test")
    assert log.read_text().splitlines() == [each.name for each in images]
