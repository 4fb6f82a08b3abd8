"""Random views of training images, as functions of seed, epoch and image index."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.images.preprocess import canvas_shape, network_input
from eulerlora.settings import Preprocessing
from training.data.camera_effects import camera_border, colour_change, jpeg_compression, ruler
from training.data.images import Augmentation

CPU = torch.device("cpu")  # torchvision's transforms draw there, whatever the pixels' device


@contextmanager
def seeded(device: torch.device, *entropy: int) -> Iterator[None]:
    """Seeds the device's global generator with `entropy` within the block, then restores it.

    For torchvision's transforms and modules, which take no generator. A CUDA device must have an
    index, as a tensor's device has.
    """
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        generator = torch.cuda.default_generators[device.index] if cuda else torch.default_generator
        generator.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
        yield


_CROP_AREA = (0.35, 1.0)


def camera_view(size: int) -> v2.Compose:
    """A random view (3, height, width) uint8 -> (3, size, size) in [0, 1].

    A crop at another scale, a symmetry of the square, and other colours; less often blur, JPEG
    compression, the dark border of a camera's field, and the ticks of a ruler.
    """
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=_CROP_AREA, ratio=(0.8, 1.8)),
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomApply([v2.Lambda(lambda pixels: pixels.mT)]),
            v2.RandomApply([v2.GaussianBlur(5, (0.2, 1.5))], 0.25),
            v2.RandomApply([v2.Lambda(jpeg_compression)], 0.25),
            v2.ToDtype(torch.float32, scale=True),
            v2.Lambda(colour_change),
            v2.RandomApply([v2.Lambda(camera_border)], 0.15),
            v2.RandomApply([v2.Lambda(ruler)], 0.1),
        ]
    )


Transform = Callable[[int, Tensor], Tensor]
"""(index, (3, height, width) uint8) -> (3, size, size) in [0, 1], or several such views."""

View = Callable[[Tensor], Tensor]
"""(3, height, width) uint8 -> (3, size, size) in [0, 1]; draws from torch's global generator."""


def _paper_view(preprocessing: Preprocessing) -> View:
    """The paper's random view, at native resolution, then resized.

    Both flips with p 0.5, then a rotation of 0..180 degrees: nearest interpolation, zeros outside,
    no expansion.
    """

    def view(pixels: Tensor) -> Tensor:
        horizontal, vertical, turn = torch.rand(3).tolist()
        if horizontal < 0.5:
            pixels = F.horizontal_flip(pixels)
        if vertical < 0.5:
            pixels = F.vertical_flip(pixels)
        # without `fill`, which costs twice the time and makes the same zeros
        rotated = F.rotate(pixels, 180 * turn, interpolation=F.InterpolationMode.NEAREST)
        return network_input(rotated, preprocessing)

    return view


_WHOLE_SHARE = 0.25
"""Of the views that show the whole image, two of eight in an answer with eight views."""


def _with_details(view: v2.Compose, preprocessing: Preprocessing) -> View:
    """With a canvas, the view of a crop of it in most cases; `view` begins with its own crop.

    A crop has the area of one in an answer, two thirds to three halves of it, at any place, and an
    aspect ratio of 3/4 to 4/3. Without a canvas it is the view.
    """
    canvas, size = preprocessing.canvas, preprocessing.size
    if canvas is None:
        whole_images: View = view
        return whole_images
    longer, shorter = canvas
    area = size**2 / (longer * shorter)
    whole, *others = view.transforms
    resized = v2.Lambda(lambda pixels: F.resize(pixels, canvas_shape(pixels, canvas)))
    crop = v2.RandomResizedCrop(size, scale=(area / 1.5, min(1.0, area * 1.5)))
    chosen = v2.RandomChoice(
        [whole, v2.Compose([resized, crop])], p=[_WHOLE_SHARE, 1 - _WHOLE_SHARE]
    )
    with_details: View = v2.Compose([chosen, *others])
    return with_details


def _dermoscopy_view(preprocessing: Preprocessing) -> View:
    """A random view for dermoscopy: a crop, a symmetry of the square, mild colour jitter.

    The crop has 50% to 100% of the area and an aspect ratio of 1 to 16/9, which is 3/4 to 4/3 of
    that of a 4:3 image; evaluation resizes such an image to a square too. No pixels are filled.
    """
    view = v2.Compose(
        [
            v2.RandomResizedCrop(preprocessing.size, scale=(0.5, 1.0), ratio=(1.0, 16 / 9)),
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomApply([v2.Lambda(lambda pixels: pixels.mT)]),
            v2.ColorJitter(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.02),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return _with_details(view, preprocessing)


def dermoscopy_or_camera_view(preprocessing: Preprocessing) -> View:
    """A random view for dermoscopy that is one by another camera in half of the cases.

    Camera views alone lower the accuracy on images of the training images' cameras
    (docs/results/lessons.md).
    """
    of_camera = _with_details(camera_view(preprocessing.size), preprocessing)
    views = [_dermoscopy_view(preprocessing), of_camera]
    view: View = v2.RandomChoice(views)
    return view


def _natural_view(preprocessing: Preprocessing) -> View:
    """A random view for any pictures: a crop, a horizontal flip, mild colour jitter.

    The crop has 60% to 100% of the area. Up stays up, and no pixels are filled.
    """
    view = v2.Compose(
        [
            v2.RandomResizedCrop(preprocessing.size, scale=(0.6, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.02),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return _with_details(view, preprocessing)


_VIEWS: Mapping[Augmentation, Callable[[Preprocessing], View]] = {
    "paper": _paper_view,
    "dermoscopy": _dermoscopy_view,
    "natural": _natural_view,
    "cameras": dermoscopy_or_camera_view,
}


def training_view(
    preprocessing: Preprocessing,
    seed: int,
    epoch: int,
    augmentation: Augmentation,
    views: int | None = None,
) -> Transform:
    """The transform of an epoch; it does not depend on process or order of images.

    With `views`, it makes so many random views of an image, (views, 3, size, size).
    """
    view = _VIEWS[augmentation](preprocessing)

    def transform(index: int, pixels: Tensor) -> Tensor:
        with seeded(CPU, seed, epoch, index):
            if views is None:
                return view(pixels)
            return torch.stack([view(pixels) for _ in range(views)])

    return transform
