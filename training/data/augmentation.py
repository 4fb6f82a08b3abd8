"""Random views of training images; what is drawn is a function of seed, epoch and image alone."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.preprocess import resize
from training.data.seeded import seeded
from training.recipe.schema import Augmentation

CPU = torch.device("cpu")

Transform = Callable[[int, Tensor], Tensor]
"""(index, (3, height, width) uint8) -> (3, size, size), what a data set does to its pictures."""

View = Callable[[Tensor], Tensor]
"""(3, height, width) uint8 -> (3, size, size) in [0, 1]; draws from torch's own generator."""


def paper_view(size: int) -> View:
    """The paper's random view: flips and a rotation at native resolution, then the resize."""
    return lambda pixels: resize(flip_and_rotate(pixels), size)


def flip_and_rotate(pixels: Tensor) -> Tensor:
    """Both flips with p 0.5, then a rotation of 0..180 degrees: nearest, zeros outside, no
    expansion. pixels: (3, height, width).
    """
    horizontal, vertical, turn = torch.rand(3).tolist()
    if horizontal < 0.5:
        pixels = F.horizontal_flip(pixels)
    if vertical < 0.5:
        pixels = F.vertical_flip(pixels)
    turned: Tensor = F.rotate(
        pixels, 180 * turn, interpolation=F.InterpolationMode.NEAREST, fill=[0.0]
    )
    return turned


def dermoscopy_view(size: int) -> View:
    """A random view of a dermatoscopic picture: a crop, any of a square's symmetries, mild colours.

    The crop has half to all of the picture, and 3/4 to 4/3 of the shape of one of 4:3, which
    evaluation squashes to a square too; nothing outside the picture comes into view.
    """
    view: View = v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(0.5, 1.0), ratio=(1.0, 16 / 9)),
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomApply([v2.Lambda(lambda pixels: pixels.mT)]),
            v2.ColorJitter(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.02),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return view


VIEWS: Mapping[Augmentation, Callable[[int], View]] = {
    "paper": paper_view,
    "dermoscopy": dermoscopy_view,
}


def training_view(size: int, seed: int, epoch: int, augmentation: Augmentation) -> Transform:
    """The transform of one epoch, whatever process or order its images are drawn in."""
    view = VIEWS[augmentation](size)

    def transform(index: int, pixels: Tensor) -> Tensor:
        with seeded(CPU, seed, epoch, index):
            return view(pixels)

    return transform


def evaluation_view(size: int) -> Transform:
    """The transform of evaluation and service: the resize alone."""
    return lambda _, pixels: resize(pixels, size)
