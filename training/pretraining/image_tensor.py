"""Many images as one tensor, on the device that trains on them where there is room."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from training.data.datasets import LabelledImage
from training.data.image_sources import read_image


@dataclass(frozen=True, eq=False)  # pixels have no one truth value
class ImageTensor:
    """pixels: (n, 3, height, width) uint8, on any device. labels: (n,) int64, on the CPU."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def image_tensor(images: Sequence[LabelledImage], largest: int) -> ImageTensor:
    """Images at their own size, if all have the same and no side is above `largest` pixels;
    otherwise each squashed to largest x largest, bilinear with antialias.
    """
    first = read_image(images[0].name, images[0].source)
    shape = first.shape
    pixels = torch.empty(len(images), *shape, dtype=torch.uint8)
    if max(shape[1:]) > largest or not _fill(pixels, images):
        pixels = torch.empty(len(images), 3, largest, largest, dtype=torch.uint8)
        for index, each in enumerate(images):
            pixels[index] = F.resize(read_image(each.name, each.source), [largest, largest])
    return ImageTensor(pixels, torch.tensor([each.label for each in images]))


def where_there_is_room(sets: Sequence[ImageTensor], device: torch.device) -> Sequence[ImageTensor]:
    """The sets on a GPU if they take at most half of its free memory; as they are otherwise."""
    if device.type != "cuda":
        return sets
    free, _ = torch.cuda.mem_get_info(device)
    wanted = sum(each.pixels.numel() for each in sets)
    if wanted > free // 2:
        return sets
    return [ImageTensor(each.pixels.to(device), each.labels) for each in sets]


def _fill(pixels: Tensor, images: Sequence[LabelledImage]) -> bool:
    """Copies the images into `pixels`; False at the first one of another shape."""
    for index, each in enumerate(images):
        image = read_image(each.name, each.source)
        if image.shape != pixels.shape[1:]:
            return False
        pixels[index] = image
    return True
