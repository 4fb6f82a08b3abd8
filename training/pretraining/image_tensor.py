"""All images of a set in one tensor, on the training device if it has enough memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from training.data.labelled_images import LabelledImage
from training.data.sources import read_image


@dataclass(frozen=True, eq=False)  # comparing tensors gives no single truth value
class ImageTensor:
    """pixels: (n, 3, height, width) uint8, on any device. labels: (n,) int64, on the CPU."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def image_tensor(images: Sequence[LabelledImage], max_side: int) -> ImageTensor:
    """Returns the images at their original size if all have the same size within `max_side`.

    Otherwise each is resized to max_side x max_side, bilinear with antialias.
    """
    first = read_image(images[0].name, images[0].source)
    shape = first.shape
    pixels = torch.empty(len(images), *shape, dtype=torch.uint8)
    if max(shape[1:]) > max_side or not _fill(pixels, images):
        pixels = torch.empty(len(images), 3, max_side, max_side, dtype=torch.uint8)
        for index, image in enumerate(images):
            pixels[index] = F.resize(read_image(image.name, image.source), [max_side, max_side])
    return ImageTensor(pixels, torch.tensor([image.label for image in images]))


def on_device_if_fits(sets: Sequence[ImageTensor], device: torch.device) -> Sequence[ImageTensor]:
    """Moves the sets to a GPU if they take at most half of its free memory."""
    if device.type != "cuda":
        return sets
    free, _ = torch.cuda.mem_get_info(device)
    required = sum(images.pixels.numel() for images in sets)
    if required > free // 2:
        return sets
    return [ImageTensor(images.pixels.to(device), images.labels) for images in sets]


def _fill(pixels: Tensor, images: Sequence[LabelledImage]) -> bool:
    """Copies the images into `pixels`; returns False at the first one of another shape."""
    for index, labelled in enumerate(images):
        image = read_image(labelled.name, labelled.source)
        if image.shape != pixels.shape[1:]:
            return False
        pixels[index] = image
    return True
