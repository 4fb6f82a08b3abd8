"""Random views of training images; every draw comes from a generator of the image's own."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor
from torchvision.transforms.v2 import functional as F

from eulerlora.preprocess import resize

CROP_PADDING_SHARE = 1 / 8

Transform = Callable[[int, Tensor], Tensor]
"""(index, (3, height, width) uint8) -> (3, size, size), what a data set does to its pictures."""


def image_generator(seed: int, epoch: int, index: int) -> Generator:
    """A generator for one image of one epoch, whatever process or order it is drawn in."""
    state = np.random.SeedSequence((seed, epoch, index)).generate_state(1)
    return Generator().manual_seed(int(state[0]))


def flip_and_rotate(pixels: Tensor, generator: Generator) -> Tensor:
    """The paper's view: both flips with p 0.5, then a rotation of 0..180 degrees.

    The rotation is at native resolution: nearest, zeros outside, no expansion. pixels: (3, h, w).
    """
    horizontal, vertical, turn = torch.rand(3, generator=generator).tolist()
    if horizontal < 0.5:
        pixels = F.horizontal_flip(pixels)
    if vertical < 0.5:
        pixels = F.vertical_flip(pixels)
    turned: Tensor = F.rotate(
        pixels, 180 * turn, interpolation=F.InterpolationMode.NEAREST, fill=[0.0]
    )
    return turned


def crop_and_flip(pixels: Tensor, generator: Generator) -> Tensor:
    """CIFAR's usual view: a crop after zero padding by an eighth, a horizontal flip with p 0.5."""
    height, width = pixels.shape[-2:]
    padding = round(CROP_PADDING_SHARE * min(height, width))
    top, left = torch.randint(0, 2 * padding + 1, (2,), generator=generator).tolist()
    view: Tensor = F.crop(F.pad(pixels, [padding]), top, left, height, width)
    if torch.rand((), generator=generator) < 0.5:
        view = F.horizontal_flip(view)
    return view


def training_view(
    size: int, seed: int, epoch: int, view: Callable[[Tensor, Generator], Tensor]
) -> Transform:
    """The transform of one epoch: a random view at native resolution, then the resize."""

    def transform(index: int, pixels: Tensor) -> Tensor:
        return resize(view(pixels, image_generator(seed, epoch, index)), size)

    return transform


def evaluation_view(size: int) -> Transform:
    """The transform of evaluation and service: the resize alone."""
    return lambda _, pixels: resize(pixels, size)
