"""Made-up pictures that look like lesions from afar; no person is on them."""

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Field = NDArray[np.float64]


@dataclass(frozen=True)
class Lesion:
    """How a lesion is drawn. radius: share of the picture's height. ragged: of its outline."""

    seed: int
    radius: float = 0.28
    ragged: float = 0.12
    colour: tuple[float, float, float] = (0.42, 0.26, 0.18)
    skin: tuple[float, float, float] = (0.87, 0.68, 0.60)
    mottled: float = 0.25


def lesion_picture(lesion: Lesion, width: int = 600, height: int = 450) -> Image.Image:
    """An RGB picture of a spot on skin, the same for the same lesion."""
    draw = np.random.default_rng(lesion.seed)
    y, x = np.mgrid[0:height, 0:width] / height
    x, y = x - width / height / 2, y - 0.5
    angle = np.arctan2(y, x)
    outline = sum(
        draw.normal(scale=lesion.ragged / order) * np.cos(order * angle + draw.uniform(0, 7))
        for order in range(1, 8)
    )
    distance = np.hypot(x, y * draw.uniform(0.9, 1.25)) / (lesion.radius * (1 + outline))
    depth = 1 / (1 + np.exp(18 * (distance - 1)))
    depth *= 1 + lesion.mottled * _clouds(draw, width, height, 14)
    grain = 0.035 * _clouds(draw, width, height, 90) + 0.03 * _clouds(draw, width, height, 6)
    light = 1.04 - 0.25 * (x**2 + y**2)
    colours = [
        (skin + grain) * light * (1 - depth) + colour * depth * (1 + grain)
        for skin, colour in zip(lesion.skin, lesion.colour, strict=True)
    ]
    pixels = (255 * np.stack(colours, axis=-1).clip(0, 1)).astype(np.uint8)
    return Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(0.6))


def file_of(picture: Image.Image) -> bytes:
    """The picture as a JPEG file."""
    buffer = BytesIO()
    picture.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def _clouds(draw: np.random.Generator, width: int, height: int, cells: int) -> Field:
    """Smooth noise of about unit scale, with so many cells over the picture's height."""
    coarse = draw.normal(size=(cells, cells * width // height)).astype(np.float32)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(smooth, dtype=np.float64)
