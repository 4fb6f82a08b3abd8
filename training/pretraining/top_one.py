"""Top-1 accuracy of a pretrained classifier on each of its data sets."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eulerlora.images.preprocess import resize
from training.data.labelled_images import ImageParts
from training.pretraining.classifier import Classifier
from training.pretraining.image_tensor import image_tensor

BATCH = 256


@torch.inference_mode()
def top_one(model: Classifier, sets: Sequence[ImageParts]) -> dict[str, float]:
    """Returns, by data set name, the accuracy of the set's head on its test part."""
    size = model.backbone.settings.image_size
    device = next(model.parameters()).device
    accuracy = {}
    for head, images in enumerate(sets):
        test = image_tensor(images.parts["test"], size)
        predicted = [
            _predicted(model, resize(test.select(part).to(device), size), head)
            for part in torch.arange(len(test)).split(BATCH)
        ]
        accuracy[images.name] = float((torch.cat(predicted) == test.labels).double().mean())
    return accuracy


def _predicted(model: Classifier, pixels: Tensor, head: int) -> Tensor:
    """Returns (n,) the most probable class of one head. pixels: (n, 3, size, size)."""
    logits: Tensor = model(pixels).logits.split(model.classes, dim=-1)[head]
    return logits.argmax(dim=-1).cpu()
