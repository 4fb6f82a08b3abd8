"""training.inference: the answers that the service would give."""

from pathlib import Path

import torch

from eulerlora.model import EulerLoRA
from training.datasets import LabelledImage
from training.image_sources import list_images
from training.inference import predict_all


def test_all_trajectories_are_those_of_predict(checkpoint_folder: Path, image_folder: Path) -> None:
    model = EulerLoRA.load(checkpoint_folder)
    found = list_images(image_folder / "test")
    images = [LabelledImage(name, source, 0) for name, source in found.items()]
    paths = [image_folder / "test" / name for name in found]
    for mode, samples in (("det", 1), ("stoch", 3)):
        answers = predict_all(model, images, mode, samples, "test")
        expected = model.predict(paths, mode, samples).trajectories
        assert answers.shape == (18, 2, samples, 3)
        torch.testing.assert_close(answers.exp().flatten(1, 2), expected, atol=1e-6, rtol=0)
