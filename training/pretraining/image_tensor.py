"""All images of a set at one size, mapped from the cache or on the training device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from training.data.labelled_images import LabelledImage
from training.data.sources import read_image

LARGEST_RATIO = 2
"""Largest side of a stored image, per side of the network's input."""


@dataclass(frozen=True, eq=False)  # comparing tensors gives no single truth value
class ImageTensor:
    """pixels: n images of shape (3, height, width) uint8, on any device; a sequence of images if
    they are mapped from a file. labels: (n,) int64, on the CPU.
    """

    pixels: Tensor | Sequence[Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> Tensor:
        """Returns the images of these indices, (k, 3, height, width), where they are stored."""
        if isinstance(self.pixels, Tensor):
            return self.pixels[indices.to(self.pixels.device)]
        return torch.stack([self.pixels[index] for index in indices.tolist()])


def image_tensor(images: Sequence[LabelledImage], image_size: int) -> ImageTensor:
    """Returns the images at their original size, without a copy of decoded ones, if all have the
    same size, of at most LARGEST_RATIO * image_size.

    Otherwise each is resized to image_size x image_size, bilinear with antialias.
    """
    pixels = [read_image(image.name, image.source) for image in images]
    shapes = {image.shape for image in pixels}
    if len(shapes) > 1 or max(max(shape[1:]) for shape in shapes) > LARGEST_RATIO * image_size:
        pixels = [F.resize(image, [image_size, image_size]) for image in pixels]
    return ImageTensor(pixels, torch.tensor([image.label for image in images]))


def on_device_if_fits(sets: Sequence[ImageTensor], device: torch.device) -> Sequence[ImageTensor]:
    """Moves the sets to a GPU if they take at most half of its free memory."""
    if device.type != "cuda":
        return sets
    free, _ = torch.cuda.mem_get_info(device)
    required = sum(image.numel() for images in sets for image in images.pixels)
    if required > free // 2:
        return sets
    return [
        ImageTensor(images.select(torch.arange(len(images))).to(device), images.labels)
        for images in sets
    ]
