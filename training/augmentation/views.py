"""Random views of training images, as functions of seed, epoch and image index."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.images.preprocess import network_input
from eulerlora.settings import Preprocessing
from training.augmentation.cameras import camera_view
from training.augmentation.random_state import CPU, seeded
from training.recipe.optimisation import Augmentation

Transform = Callable[[int, Tensor], Tensor]
"""(index, (3, height, width) uint8) -> (3, size, size) in [0, 1], or several such views."""

View = Callable[[Tensor], Tensor]
"""(3, height, width) uint8 -> (3, size, size) in [0, 1]; draws from torch's global generator."""


def paper_view(preprocessing: Preprocessing) -> View:
    """Returns the paper's random view: flips and a rotation at native resolution, then resize."""
    return lambda pixels: network_input(flip_and_rotate(pixels), preprocessing)


def flip_and_rotate(pixels: Tensor) -> Tensor:
    """Applies both flips with p 0.5, then a rotation of 0..180 degrees.

    Nearest interpolation, zeros outside, no expansion. pixels: (3, height, width).
    """
    horizontal, vertical, turn = torch.rand(3).tolist()
    if horizontal < 0.5:
        pixels = F.horizontal_flip(pixels)
    if vertical < 0.5:
        pixels = F.vertical_flip(pixels)
    # without `fill`, which costs twice the time and makes the same zeros
    rotated: Tensor = F.rotate(pixels, 180 * turn, interpolation=F.InterpolationMode.NEAREST)
    return rotated


def dermoscopy_view(preprocessing: Preprocessing) -> View:
    """Returns a random view for dermoscopy: a crop, a symmetry of the square, mild colour jitter.

    The crop has 50% to 100% of the area and an aspect ratio of 1 to 16/9, which is 3/4 to 4/3 of
    that of a 4:3 image; evaluation resizes such an image to a square too. No pixels are filled.
    """
    view: View = v2.Compose(
        [
            v2.RandomResizedCrop(preprocessing.size, scale=(0.5, 1.0), ratio=(1.0, 16 / 9)),
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomApply([v2.Lambda(lambda pixels: pixels.mT)]),
            v2.ColorJitter(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.02),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return view


def dermoscopy_or_camera_view(preprocessing: Preprocessing) -> View:
    """Returns a random view for dermoscopy that is one by another camera in half of the cases.

    Camera views alone lower the accuracy on images of the training images' cameras (docs/log.md).
    """
    views = [dermoscopy_view(preprocessing), camera_view(preprocessing.size)]
    view: View = v2.RandomChoice(views)
    return view


def natural_view(preprocessing: Preprocessing) -> View:
    """Returns a random view for any pictures: a crop, a horizontal flip, mild colour jitter.

    The crop has 60% to 100% of the area. Up stays up, and no pixels are filled.
    """
    view: View = v2.Compose(
        [
            v2.RandomResizedCrop(preprocessing.size, scale=(0.6, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.02),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return view


VIEWS: Mapping[Augmentation, Callable[[Preprocessing], View]] = {
    "paper": paper_view,
    "dermoscopy": dermoscopy_view,
    "natural": natural_view,
    "cameras": dermoscopy_or_camera_view,
}


def training_view(
    preprocessing: Preprocessing,
    seed: int,
    epoch: int,
    augmentation: Augmentation,
    views: int | None = None,
) -> Transform:
    """Returns the transform of an epoch; it does not depend on process or order of images.

    views: if given, the transform returns so many random views, (views, 3, size, size).
    """
    view = VIEWS[augmentation](preprocessing)

    def transform(index: int, pixels: Tensor) -> Tensor:
        with seeded(CPU, seed, epoch, index):
            if views is None:
                return view(pixels)
            return torch.stack([view(pixels) for _ in range(views)])

    return transform


def evaluation_view(preprocessing: Preprocessing) -> Transform:
    """Returns the transform of evaluation and service."""
    return lambda _, pixels: network_input(pixels, preprocessing)
