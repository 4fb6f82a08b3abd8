"""Skin without a lesion: corners of test images, and rendered skin of all Fitzpatrick types."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageCms
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from training.data.images import OUTSIDE, LabelledImage, read_image
from training.ood.generated import HEIGHT, IMAGES, WIDTH, Pixels, pictures

CORNER = 0.2
"""Height and width of a corner, relative to the image's."""
MAX_DEVIATION, MIN_BRIGHTNESS = 12.0, 110.0
"""A corner shows skin only if it is uniform and not part of a dark border (0 to 255)."""

# Ranges of the individual typology angle, in degrees (Del Bino and Bernerd, British Journal of
# Dermatology 169 s3, 33, 2013: six groups from very light to dark), used for the six types.
TYPOLOGY_ANGLES = {
    "type-1": (55, 65),
    "type-2": (41, 55),
    "type-3": (28, 41),
    "type-4": (10, 28),
    "type-5": (-30, 10),
    "type-6": (-50, -30),
}
REDNESS, YELLOWNESS = (8.0, 14.0), (10.0, 18.0)  # a* and b*
SHADING, TEXTURE, GRAIN = 0.05, 0.025, 0.01  # standard deviations, relative to the tone


def plain_skin(test: Sequence[LabelledImage]) -> list[LabelledImage]:
    """Returns corners of test images, then as many rendered pictures as complete the set.

    A test image without a usable corner is left out. A corner keeps the cluster of its image.
    """
    corners = list(islice(_corners(test), IMAGES // 2))
    kinds = {
        name: partial(rendered_skin, min_angle=low, max_angle=high)
        for name, (low, high) in TYPOLOGY_ANGLES.items()
    }
    return [*corners, *pictures("plain-skin", kinds, IMAGES - len(corners))]


def rendered_skin(random: Generator, min_angle: float, max_angle: float) -> Pixels:
    """Returns skin of one tone with low-frequency shading and fine texture.

    min_angle, max_angle: range of the individual typology angle, atan((L* - 50) / b*), in degrees.
    """
    yellowness = random.uniform(*YELLOWNESS)
    angle = math.radians(random.uniform(min_angle, max_angle))
    tone = _rgb(50 + yellowness * math.tan(angle), random.uniform(*REDNESS), yellowness)
    light = (
        1
        + SHADING * _smooth_noise(random, 3, 4)
        + TEXTURE * _smooth_noise(random, HEIGHT // 3, WIDTH // 3)
        + GRAIN * random.standard_normal((HEIGHT, WIDTH))
    )
    return (np.array(tone) * light[:, :, None]).clip(0, 255).astype(np.uint8)


def _corners(test: Sequence[LabelledImage]) -> Iterator[LabelledImage]:
    """Yields the most uniform corner of each image that has a usable one, at the image's size."""
    for image in test:
        pixels = read_image(image.name, image.source)
        corner = min(_corner_crops(pixels), key=_deviation)
        if _deviation(corner) <= MAX_DEVIATION and float(corner.float().mean()) >= MIN_BRIGHTNESS:
            enlarged = F.resize(corner, list(pixels.shape[1:]), F.InterpolationMode.BICUBIC)
            name = f"plain-skin/corner/{image.name}"
            yield replace(image, name=name, source=enlarged, label=OUTSIDE, groups={})


def _corner_crops(pixels: Tensor) -> Iterator[Tensor]:
    height, width = pixels.shape[1:]
    rows, columns = math.ceil(CORNER * height), math.ceil(CORNER * width)
    for top, left in product((0, height - rows), (0, width - columns)):
        yield pixels[:, top : top + rows, left : left + columns]


def _deviation(pixels: Tensor) -> float:
    """Returns the largest standard deviation of a colour channel."""
    return float(pixels.float().flatten(1).std(dim=1, correction=0).max())


def _smooth_noise(random: Generator, rows: int, columns: int) -> np.ndarray:
    """Returns (HEIGHT, WIDTH) standard normal noise of rows x columns values, interpolated."""
    coarse = Image.fromarray(random.standard_normal((rows, columns)).astype(np.float32))
    return np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))


def _rgb(lightness: float, redness: float, yellowness: float) -> tuple[int, ...]:
    """Returns the sRGB colour, 0 to 255, of a CIELAB colour."""
    lab = (round(lightness * 2.55), 128 + round(redness), 128 + round(yellowness))
    convert = ImageCms.buildTransform(
        ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB"
    )
    pixel = ImageCms.applyTransform(Image.new("LAB", (1, 1), lab), convert)
    assert pixel is not None  # None only for a conversion in place
    colour = pixel.getpixel((0, 0))
    assert isinstance(colour, tuple)
    return colour
