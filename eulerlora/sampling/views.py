"""Views of an image: the symmetries of the square, and which trajectory sees which of them.

A view is a number of three bits: 4 exchanges rows and columns, then 1 flips the columns and 2 the
rows. So 0 is the image, 1 its mirror image, 2 the vertical flip, 3 the half turn, and 4 to 7 are
the transposed ones: 0 to 7 is the dihedral group. With `views=n`, the views are 0 to n - 1.
"""

import math

import torch
from torch import Generator, Tensor

from eulerlora.settings import Draw

VIEW_SEED = 1_013_904_223
"""Added to the seed of a draw, so that the order of views is independent of its masks."""


def of_views(images: Tensor, views: Tensor) -> Tensor:
    """Returns each image as its view shows it, of the same shape.

    images: (n, channels, size, size). views: (n,) int64, on the device of the images.
    """

    def where(bit: int, changed: Tensor, images: Tensor) -> Tensor:
        return torch.where((views & bit != 0).view(-1, 1, 1, 1), changed, images)

    images = where(4, images.mT, images)
    images = where(1, images.flip(-1), images)
    return where(2, images.flip(-2), images)


def view_order(draw: Draw, adapters: int) -> Tensor:
    """Returns the view of every sample that is run, (adapters, draw.count) int64.

    In mode det, every adapter sees each view once, in order; in mode stoch as `balanced_views`.
    """
    if draw.mode == "det":
        return torch.arange(draw.views).expand(adapters, -1)
    generator = Generator().manual_seed((draw.seed + VIEW_SEED) % 2**32)
    return balanced_views(draw.samples, draw.views, adapters, generator)[:, draw.first :]


def balanced_views(samples: int, views: int, adapters: int, generator: Generator) -> Tensor:
    """Returns the view of every sample, (adapters, samples) int64.

    The samples of an adapter come in blocks of `views`. A block has a random permutation of all
    views, in which the adapters start at evenly spaced positions: two adapters with half as many
    samples as views see every view once. The first samples do not depend on how many there are.
    """
    blocks = [torch.randperm(views, generator=generator) for _ in range(math.ceil(samples / views))]
    starts = torch.arange(adapters) * views // adapters
    positions = (starts.unsqueeze(1) + torch.arange(views)) % views  # (adapters, views)
    order = torch.stack(blocks)[:, positions]  # (blocks, adapters, views)
    return order.transpose(0, 1).flatten(1)[:, :samples]
