"""Top-1 accuracy of every set with its head."""

import pytest
import torch
from torch import Tensor, nn

from eulerlora_client.contract.answers import ClassName
from tests.conftest import TINY_BACKBONE
from training.data.images import ImageParts, LabelledImage
from training.pretraining.classifier import Classifier
from training.pretraining.train import top_one
from training.recipe.pretraining import PretrainingStage


class Brightness(nn.Module):
    """A backbone with 16 features, which all are the brightness of the image."""

    settings = TINY_BACKBONE

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(1, 2, 3))[:, None].expand(-1, 16)


def image_set(name: str, labels: list[int], classes: int) -> ImageParts:
    """Returns images that are black for label 0 and white for others."""
    images = [
        LabelledImage(str(i), torch.full((3, 40, 36), 255 * (label > 0), dtype=torch.uint8), label)
        for i, label in enumerate(labels)
    ]
    names = tuple(ClassName(name=str(name), description="-") for name in range(classes))
    return ImageParts(name, names, {"test": images})


def test_predictions_of_a_set_come_from_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.pretraining.train.BATCH", 2)
    model = Classifier(TINY_BACKBONE, PretrainingStage(epochs=1, image_size=32), (3, 2))
    model.backbone = Brightness()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.weight[[2, 4], 0] = 2.0  # class 2 of 3 and class 1 of 2 for white images
        model.head.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]))
    sets = [image_set("three", [0, 2, 1, 2, 0], 3), image_set("two", [0, 1], 2)]
    assert top_one(model, sets) == {"three": 0.8, "two": 1.0}
