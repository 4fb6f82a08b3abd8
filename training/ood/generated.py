"""Generated pictures that show no skin: noise, solid colours, rendered text and digits.

Every picture depends on the name of its set and its index only.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits
from torch import Tensor

from training.data.images import OUTSIDE, LabelledImage, evenly_spaced

Pixels = NDArray[np.uint8]
Draw = Callable[[Generator], Pixels]
"""Draws one picture, (height, width, 3)."""

HEIGHT, WIDTH = 150, 200
IMAGES = 200
DIGIT_SIDE = 128
MAX_DIGIT = 16  # of scikit-learn's 8 x 8 digits


def pictures(name: str, kinds: Mapping[str, Draw], count: int = IMAGES) -> list[LabelledImage]:
    """Returns pictures of several kinds in turn, drawn each time they are read.

    name: of the set. kinds: the function that draws a kind, by its name.
    """
    turns = zip(range(count), cycle(kinds.items()), strict=False)
    return [
        LabelledImage(f"{name}/{kind}/{index:03}", partial(_picture, draw, name, index), OUTSIDE)
        for index, (kind, draw) in turns
    ]


def _picture(draw: Draw, name: str, index: int) -> Tensor:
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
