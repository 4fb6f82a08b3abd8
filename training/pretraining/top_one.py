"""Top-1 accuracy of a pretrained classifier on each of its data sets."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eulerlora.preprocess import resize
from training.data.datasets import ImageParts
from training.pretraining.classifier import Classifier
from training.pretraining.image_tensor import image_tensor

BATCH = 256


@torch.inference_mode()
def top_one(model: Classifier, images: Sequence[ImageParts]) -> dict[str, float]:
    """By the name of a data set, the share of its test part that its own head names rightly."""
    size = model.backbone.image_size
    device = next(model.parameters()).device
    found = {}
    for number, each in enumerate(images):
        test = image_tensor(each.parts["test"], size)
        predicted = [
            _predicted(model, resize(pixels.to(device), size), number)
            for pixels in test.pixels.split(BATCH)
        ]
        found[each.name] = float((torch.cat(predicted) == test.labels).double().mean())
    return found


def _predicted(model: Classifier, pixels: Tensor, number: int) -> Tensor:
    """(n,), the likeliest class of one set; pixels: (n, 3, size, size)."""
    own: Tensor = model(pixels).split(model.classes, dim=-1)[number]
    return own.argmax(dim=-1).cpu()
