"""Predictions for a set of images equal those of `EulerLoRA.predict`."""

from pathlib import Path

import pytest
import torch

from eulerlora.model import EulerLoRA
from eulerlora_client.contract.sampling import Mode
from training.data.images import ImageSource, LabelledImage, list_images, read_image
from training.evaluation.inference import SamplingOptions, predict_all


def test_trajectories_equal_those_of_predict(checkpoint_folder: Path, image_folder: Path) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    sources = list_images(image_folder / "test")
    images = [LabelledImage(name, source, 0) for name, source in sources.items()]
    paths = [image_folder / "test" / name for name in sources]
    modes: list[tuple[Mode, int]] = [("det", 1), ("stoch", 3), ("stoch", 16)]
    options = [SamplingOptions(mode, samples) for mode, samples in modes]
    outputs = predict_all(model, images, options, "test")
    for (mode, samples), output in zip(modes, outputs, strict=True):
        expected = model.predict(paths, mode, None if mode == "det" else samples).trajectories
        trajectories = output.log_probabilities
        assert trajectories.shape == (18, 2, samples, 3)
        torch.testing.assert_close(trajectories.exp().flatten(1, 2), expected, atol=1e-6, rtol=0)


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
