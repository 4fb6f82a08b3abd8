"""Generated out-of-distribution images: pictures without a lesion, and changed test images.

Pictures are noise, colours, text, digits and plain skin. Each depends on the name of its set and
its index only; corners of skin are from test images. Changes are deterministic, and such as a
camera, a light or an editing program makes: the lesion stays, and each image keeps its label.
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

from eulerlora.images.preprocess import content_seed
from training.data.augmentation import CPU, seeded
from training.data.images import OUTSIDE, LabelledImage, evenly_spaced
from training.evaluation.ood_sets import GeneratedSet

_Pixels = NDArray[np.uint8]
_DrawPicture = Callable[[Generator], _Pixels]
"""Draws one picture, (height, width, 3)."""

_HEIGHT, _WIDTH = 150, 200
_IMAGES = 200
_DIGIT_SIDE = 128

_CORNER = 0.2
"""Height and width of a corner, relative to the image's."""
_MAX_DEVIATION, _MIN_BRIGHTNESS = 12.0, 110.0
"""A corner shows skin only if it is uniform and not part of a dark border (0 to 255)."""
# Ranges of the individual typology angle, in degrees (Del Bino and Bernerd, British Journal of
# Dermatology 169 s3, 33, 2013: six groups from very light to dark), used for the six types.
_TYPOLOGY_ANGLES = {
    "type-1": (55, 65),
    "type-2": (41, 55),
    "type-3": (28, 41),
    "type-4": (10, 28),
    "type-5": (-30, 10),
    "type-6": (-50, -30),
}


def _pictures(
    name: str, kinds: Mapping[str, _DrawPicture], count: int = _IMAGES
) -> list[LabelledImage]:
    """Pictures of the set `name` of several kinds in turn, drawn each time they are read."""
    turns = zip(range(count), cycle(kinds.items()), strict=False)
    return [
        LabelledImage(f"{name}/{kind}/{index:03}", partial(_picture, draw, name, index), OUTSIDE)
        for index, (kind, draw) in turns
    ]


def _picture(draw: _DrawPicture, name: str, index: int) -> Tensor:
    return _tensor_of(draw(np.random.default_rng([*name.encode(), index])))


def _digits() -> list[LabelledImage]:
    """Evenly spaced digits of scikit-learn, enlarged from 8 x 8 pixels."""
    images = list(enumerate(load_digits().images))
    return [
        LabelledImage(f"digits-8x8/{index:04}", _digit(pixels), OUTSIDE)
        for index, pixels in evenly_spaced(images, _IMAGES)
    ]


def _text_page(random: Generator, dark: bool) -> _Pixels:
    """A page filled with lines of random words, darker than the page if `dark`."""
    ink, page = random.integers(0, 90, 3), random.integers(190, 256, 3)
    if not dark:
        ink, page = page, ink
    image = Image.fromarray(_solid(page))
    draw, size = ImageDraw.Draw(image), int(random.integers(8, 20))
    font = ImageFont.load_default(size)
    for top in range(4, _HEIGHT - size, round(1.4 * size)):
        words = " ".join(_word(random) for _ in range(_WIDTH // size))
        draw.text((5, top), words, fill=tuple(ink.tolist()), font=font)
    return np.asarray(image)


def _tensor_of(pixels: _Pixels) -> Tensor:
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()


def _word(random: Generator) -> str:
    letters = random.integers(ord("a"), ord("z") + 1, random.integers(2, 9))
    return "".join(map(chr, letters))


def _digit(pixels: NDArray[np.float64]) -> Tensor:
    """The picture of a digit with pixels (8, 8) from 0 to MAX_DIGIT."""
    small = Image.fromarray((pixels * 255 / 16).round().astype(np.uint8))
    return _tensor_of(np.asarray(small.resize((_DIGIT_SIDE, _DIGIT_SIDE)).convert("RGB")))


def _solid(colour: NDArray[np.int64]) -> _Pixels:
    return np.broadcast_to(colour.astype(np.uint8), (_HEIGHT, _WIDTH, 3))


def _gaussian_noise(random: Generator) -> _Pixels:
    noisy = random.normal(random.integers(60, 200, 3), 30, (_HEIGHT, _WIDTH, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def _gradient(random: Generator) -> _Pixels:
    start, end = random.integers(0, 256, (2, 3))
    share = np.linspace(0, 1, _WIDTH)[None, :, None]
    return np.broadcast_to(start + (end - start) * share, (_HEIGHT, _WIDTH, 3)).astype(np.uint8)


def _coarse(random: Generator) -> _Pixels:
    return random.integers(0, 256, (*random.integers(3, 16, 2), 3), np.uint8)


def _enlarged(pixels: _Pixels, resampling: Image.Resampling) -> _Pixels:
    return np.asarray(Image.fromarray(pixels).resize((_WIDTH, _HEIGHT), resampling))


_PICTURES: Mapping[str, Mapping[str, _DrawPicture]] = {
    "noise": {
        "uniform": lambda random: random.integers(0, 256, (_HEIGHT, _WIDTH, 3), np.uint8),
        "grey": lambda random: random.integers(0, 256, (_HEIGHT, _WIDTH, 1), np.uint8).repeat(3, 2),
        "gaussian": _gaussian_noise,
        "blocks": lambda random: _enlarged(_coarse(random), Image.Resampling.NEAREST),
        "smooth": lambda random: _enlarged(_coarse(random), Image.Resampling.BICUBIC),
        "gradient": _gradient,
    },
    "solid-colours": {
        "colour": lambda random: _solid(random.integers(0, 256, 3)),
        "grey": lambda random: _solid(np.repeat(random.integers(0, 256), 3)),
    },
    "rendered-text": {
        "dark-on-light": lambda random: _text_page(random, dark=True),
        "light-on-dark": lambda random: _text_page(random, dark=False),
    },
}
"""The kinds of pictures of each set, and the functions that draw them."""


def _plain_skin(test: Sequence[LabelledImage]) -> list[LabelledImage]:
    """Corners of test images, then as many rendered pictures as complete the set.

    A test image without a usable corner is left out. A corner keeps the cluster of its image.
    """
    corners = list(islice(_corners(test), _IMAGES // 2))
    kinds = {
        name: partial(_rendered_skin, min_angle=low, max_angle=high)
        for name, (low, high) in _TYPOLOGY_ANGLES.items()
    }
    return [*corners, *_pictures("plain-skin", kinds, _IMAGES - len(corners))]


def _rendered_skin(random: Generator, min_angle: float, max_angle: float) -> _Pixels:
    """Skin of one tone with low-frequency shading and fine texture.

    The individual typology angle, atan((L* - 50) / b*), is drawn between two angles in degrees.
    """
    yellowness = random.uniform(10.0, 18.0)  # b*; the redness is a*
    angle = math.radians(random.uniform(min_angle, max_angle))
    tone = _rgb(50 + yellowness * math.tan(angle), random.uniform(8.0, 14.0), yellowness)
    light = (  # standard deviations relative to the tone
        1
        + 0.05 * _smooth_noise(random, 3, 4)
        + 0.025 * _smooth_noise(random, _HEIGHT // 3, _WIDTH // 3)
        + 0.01 * random.standard_normal((_HEIGHT, _WIDTH))
    )
    return (np.array(tone) * light[:, :, None]).clip(0, 255).astype(np.uint8)


def _corners(test: Sequence[LabelledImage]) -> Iterator[LabelledImage]:
    """Yields the most uniform corner of each image that has a usable one, at the image's size."""
    for image in test:
        pixels = image.pixels()
        height, width = pixels.shape[1:]
        rows, columns = math.ceil(_CORNER * height), math.ceil(_CORNER * width)
        crops = (
            pixels[:, top : top + rows, left : left + columns]
            for top, left in product((0, height - rows), (0, width - columns))
        )
        corner = min(crops, key=_deviation)
        if _deviation(corner) <= _MAX_DEVIATION and float(corner.float().mean()) >= _MIN_BRIGHTNESS:
            enlarged = F.resize(corner, [height, width], F.InterpolationMode.BICUBIC)
            name = f"plain-skin/corner/{image.name}"
            yield replace(image, name=name, source=enlarged, label=OUTSIDE, attributes={})


def _deviation(pixels: Tensor) -> float:
    return float(pixels.float().flatten(1).std(dim=1, correction=0).max())


def _smooth_noise(random: Generator, rows: int, columns: int) -> np.ndarray:
    """Standard normal noise of rows x columns values, interpolated to (_HEIGHT, _WIDTH)."""
    coarse = Image.fromarray(random.standard_normal((rows, columns)).astype(np.float32))
    return np.asarray(coarse.resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC))


def _rgb(lightness: float, redness: float, yellowness: float) -> tuple[int, ...]:
    """The sRGB colour, 0 to 255, of a CIELAB colour."""
    lab = (round(lightness * 2.55), 128 + round(redness), 128 + round(yellowness))
    convert = ImageCms.buildTransform(
        ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB"
    )
    pixel = ImageCms.applyTransform(Image.new("LAB", (1, 1), lab), convert)
    assert pixel is not None  # None only for a conversion in place
    colour = pixel.getpixel((0, 0))
    assert isinstance(colour, tuple)
    return colour


_FIELD, _EDGE = 1.0, 0.04  # diameter of the camera's field and width of its edge, per shorter side
_LESION = 0.7  # part of the image that is pasted, centred; per side
_PASTED = 0.5  # size of the pasted lesion per side of the background


def _with_shift(images: Sequence[LabelledImage], name: str) -> list[LabelledImage]:
    """Images that are decoded and changed by the shift `name` each time they are read."""
    return [replace(image, source=partial(_shifted, image, name)) for image in images]


def _shifted(image: LabelledImage, name: str) -> Tensor:
    """Pixels (3, height, width) uint8. Random numbers depend on those of the image and the name."""
    pixels = image.pixels()
    with seeded(CPU, content_seed(pixels, name)):
        return _SHIFTS[name](pixels)


def _blur(pixels: Tensor) -> Tensor:
    sigma = 0.03 * min(pixels.shape[1:])
    blurred: Tensor = F.gaussian_blur(pixels, [2 * math.ceil(3 * sigma) + 1] * 2, [sigma] * 2)
    return blurred


def _cast(gains: tuple[float, float, float]) -> Callable[[Tensor], Tensor]:
    def transform(pixels: Tensor) -> Tensor:
        return _uint8(pixels.float() * torch.tensor(gains)[:, None, None])

    return transform


def _paste_lesion(pixels: Tensor) -> Tensor:
    """Pastes the centre of the image, as an ellipse, on a page of text or on a plain colour."""
    height, width = pixels.shape[1:]
    background = _background(height, width)
    rows, columns = round(_PASTED * height), round(_PASTED * width)
    centre = F.center_crop(pixels, [round(_LESION * height), round(_LESION * width)])
    lesion = F.resize(centre, [rows, columns]).float()
    top = int(torch.randint(height - rows + 1, ()))
    left = int(torch.randint(width - columns + 1, ()))
    mask = _disc(rows, columns, rows / min(rows, columns), columns / min(rows, columns))
    window = background[:, top : top + rows, left : left + columns]
    window.copy_(mask * lesion + (1 - mask) * window)
    return _uint8(background)


def _background(height: int, width: int) -> Tensor:
    """A page of text or a plain colour, (3, height, width) float32 from 0 to 255."""
    if torch.rand(()) < 0.5:
        return torch.randint(256, (3, 1, 1)).float().expand(3, height, width).clone()
    random = np.random.default_rng(int(torch.randint(2**31, ())))
    page: Tensor = F.resize(_tensor_of(_text_page(random, dark=True)), [height, width])
    return page.to(torch.float32)


def _disc(height: int, width: int, rows: float, columns: float) -> Tensor:
    """1 within a centred ellipse and 0 outside, with a soft edge, (height, width).

    `rows` and `columns` are the diameters of the ellipse, in units of the shorter side.
    """
    shorter = min(height, width)
    y = (torch.arange(height) - (height - 1) / 2)[:, None] / (shorter * rows / 2)
    x = (torch.arange(width) - (width - 1) / 2) / (shorter * columns / 2)
    return ((1 - (x**2 + y**2).sqrt()) / _EDGE).clamp(0, 1)


def _uint8(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)


_SHIFTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "colour-cast-warm": _cast((1.25, 1.0, 0.7)),
    "colour-cast-cold": _cast((0.7, 1.0, 1.25)),
    "brighter": lambda pixels: F.adjust_brightness(pixels, 1.8),
    "darker": lambda pixels: F.adjust_brightness(pixels, 0.4),
    "blurred": _blur,
    "noisy": lambda pixels: F.gaussian_noise(pixels, sigma=0.15),
    "camera-border": lambda pixels: _uint8(
        pixels.float() * _disc(pixels.shape[1], pixels.shape[2], _FIELD, _FIELD)
    ),
    "colour-inverted": lambda pixels: 255 - pixels,
    "colour-rotated": lambda pixels: pixels.roll(1, dims=0),
    "pasted-lesion": _paste_lesion,
}
"""Strong changes by name of the set; colour-rotated shows red as green, green as blue."""


def _drawn(_test: Sequence[LabelledImage], name: str) -> Sequence[LabelledImage]:
    return _pictures(name, _PICTURES[name])


GENERATED: Mapping[str, GeneratedSet] = {
    **{name: GeneratedSet("far", partial(_drawn, name=name)) for name in _PICTURES},
    "digits-8x8": GeneratedSet("far", lambda _: _digits()),
    "plain-skin": GeneratedSet("far", _plain_skin),
    **{name: GeneratedSet("shifted", partial(_with_shift, name=name)) for name in _SHIFTS},
}
"""The sets for `--ood`; the shifted ones show lesions of the test part."""
