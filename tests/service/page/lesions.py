"""Synthetic images that resemble lesions, as files to upload."""

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Field = NDArray[np.float64]
Upload = dict[str, object]


@dataclass(frozen=True)
class Lesion:
    """Parameters of a drawn lesion. radius: fraction of the image height."""

    seed: int
    radius: float = 0.28
    ragged: float = 0.12
    colour: tuple[float, float, float] = (0.64, 0.25, 0.17)
    skin: tuple[float, float, float] = (0.77, 0.59, 0.68)
    mottled: float = 0.25


RAGGED = Lesion(12, radius=0.3, ragged=0.2, colour=(0.64, 0.35, 0.39), mottled=0.3)
DARK = Lesion(3, radius=0.34, ragged=0.3, colour=(0.27, 0.16, 0.10), mottled=0.5)
SMALL = Lesion(2, radius=0.16, ragged=0.05)


def lesion_image(lesion: Lesion, width: int = 600, height: int = 450) -> Image.Image:
    """Returns an RGB image of a spot on skin; deterministic."""
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
    grain = 0.035 * _clouds(draw, width, height, 90) + 0.01 * _clouds(draw, width, height, 6)
    light = 1.04 - 0.25 * (x**2 + y**2)
    colours = [
        (skin + grain) * light * (1 - depth) + colour * depth * (1 + grain)
        for skin, colour in zip(lesion.skin, lesion.colour, strict=True)
    ]
    pixels = (255 * np.stack(colours, axis=-1).clip(0, 1)).astype(np.uint8)
    return Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(0.6))


def file_of(image: Image.Image) -> bytes:
    """Returns the image as a JPEG file."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def upload(name: str, content: bytes, media_type: str = "image/jpeg") -> Upload:
    """Returns a file in the form that Playwright accepts."""
    return {"name": name, "mimeType": media_type, "buffer": content}


def lesion(name: str, drawn: Lesion = RAGGED) -> Upload:
    """Returns the image of a lesion as a file."""
    return upload(name, file_of(lesion_image(drawn)))


def broken(name: str) -> Upload:
    """Returns a truncated JPEG file."""
    return upload(name, file_of(lesion_image(RAGGED))[:3000])


def fractal() -> dict[str, object]:
    """Returns an image unlike any training image."""
    drawn = Image.effect_mandelbrot((400, 300), (-2, -1.5, 1, 1.5), 100).convert("RGB")
    buffer = BytesIO()
    drawn.save(buffer, "PNG")
    return upload("fractal.png", buffer.getvalue(), "image/png")


def _clouds(draw: np.random.Generator, width: int, height: int, cells: int) -> Field:
    """Returns smooth noise of about unit scale; `cells`: over the image height."""
    coarse = draw.normal(size=(cells, cells * width // height)).astype(np.float32)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(smooth, dtype=np.float64)
