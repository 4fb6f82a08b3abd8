"""Generated pictures without a lesion: noise, colours, text, digits, plain skin.

Every picture depends on the name of its set and its index only; corners of skin are from test
images.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, product

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageDraw, ImageFont
from sklearn.datasets import load_digits
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from training.data.images import OUTSIDE, LabelledImage, evenly_spaced, read_image

Pixels = NDArray[np.uint8]
DrawPicture = Callable[[Generator], Pixels]
"""Draws one picture, (height, width, 3)."""

HEIGHT, WIDTH = 150, 200
IMAGES = 200
DIGIT_SIDE = 128
MAX_DIGIT = 16  # of scikit-learn's 8 x 8 digits


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


def pictures(
    name: str, kinds: Mapping[str, DrawPicture], count: int = IMAGES
) -> list[LabelledImage]:
    """Returns pictures of several kinds in turn, drawn each time they are read.

    name: of the set. kinds: the function that draws a kind, by its name.
    """
    turns = zip(range(count), cycle(kinds.items()), strict=False)
    return [
        LabelledImage(f"{name}/{kind}/{index:03}", partial(_picture, draw, name, index), OUTSIDE)
        for index, (kind, draw) in turns
    ]


def _picture(draw: DrawPicture, name: str, index: int) -> Tensor:
    return tensor_of(draw(np.random.default_rng([*name.encode(), index])))


def noise() -> list[LabelledImage]:
    """Returns noise of six kinds: of single pixels, coarse, and a gradient."""
    return pictures(
        "noise",
        {
            "uniform": lambda random: random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8),
            "grey": lambda random: _grey(random.integers(0, 256, (HEIGHT, WIDTH), np.uint8)),
            "gaussian": _gaussian_noise,
            "blocks": lambda random: _enlarged(_coarse(random), Image.Resampling.NEAREST),
            "smooth": lambda random: _enlarged(_coarse(random), Image.Resampling.BICUBIC),
            "gradient": _gradient,
        },
    )


def solid_colours() -> list[LabelledImage]:
    """Returns pictures of one colour, every second one grey."""
    return pictures(
        "solid-colours",
        {
            "colour": lambda random: _solid(random.integers(0, 256, 3)),
            "grey": lambda random: _solid(np.repeat(random.integers(0, 256), 3)),
        },
    )


def rendered_text() -> list[LabelledImage]:
    """Returns pages of random words, dark on light and light on dark."""
    return pictures(
        "rendered-text",
        {
            "dark-on-light": lambda random: text_page(random, dark=True),
            "light-on-dark": lambda random: text_page(random, dark=False),
        },
    )


def digits() -> list[LabelledImage]:
    """Returns evenly spaced digits of scikit-learn, enlarged from 8 x 8 pixels."""
    images = list(enumerate(load_digits().images))
    return [
        LabelledImage(f"digits-8x8/{index:04}", _digit(pixels), OUTSIDE)
        for index, pixels in evenly_spaced(images, IMAGES)
    ]


def text_page(random: Generator, dark: bool) -> Pixels:
    """Returns a page filled with lines of random words. dark: text darker than the page."""
    ink, page = random.integers(0, 90, 3), random.integers(190, 256, 3)
    if not dark:
        ink, page = page, ink
    image = Image.fromarray(_solid(page))
    draw, size = ImageDraw.Draw(image), int(random.integers(8, 20))
    font = ImageFont.load_default(size)
    for top in range(4, HEIGHT - size, round(1.4 * size)):
        words = " ".join(_word(random) for _ in range(WIDTH // size))
        draw.text((5, top), words, fill=tuple(ink.tolist()), font=font)
    return np.asarray(image)


def tensor_of(pixels: Pixels) -> Tensor:
    """Returns (3, height, width) of (height, width, 3)."""
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()


def _word(random: Generator) -> str:
    letters = random.integers(ord("a"), ord("z") + 1, random.integers(2, 9))
    return "".join(map(chr, letters))


def _digit(pixels: NDArray[np.float64]) -> Tensor:
    """pixels: (8, 8), from 0 to MAX_DIGIT."""
    small = Image.fromarray((pixels * 255 / MAX_DIGIT).round().astype(np.uint8))
    return tensor_of(np.asarray(small.resize((DIGIT_SIDE, DIGIT_SIDE)).convert("RGB")))


def _solid(colour: NDArray[np.int64]) -> Pixels:
    return np.broadcast_to(colour.astype(np.uint8), (HEIGHT, WIDTH, 3))


def _gaussian_noise(random: Generator) -> Pixels:
    noisy = random.normal(random.integers(60, 200, 3), 30, (HEIGHT, WIDTH, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def _gradient(random: Generator) -> Pixels:
    start, end = random.integers(0, 256, (2, 3))
    share = np.linspace(0, 1, WIDTH)[None, :, None]
    return np.broadcast_to(start + (end - start) * share, (HEIGHT, WIDTH, 3)).astype(np.uint8)


def _coarse(random: Generator) -> Pixels:
    """Returns a small noise picture of a random size."""
    return random.integers(0, 256, (*random.integers(3, 16, 2), 3), np.uint8)


def _enlarged(pixels: Pixels, resampling: Image.Resampling) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((WIDTH, HEIGHT), resampling))


def _grey(pixels: Pixels) -> Pixels:
    return np.repeat(pixels[:, :, None], 3, axis=2)


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
