"""JPEG files for requests: synthetic, or images of HAM10000."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from eulerlora.images.files import image_files

SIZE = (600, 450)  # width and height of the images of HAM10000
QUALITY = 90


def synthetic_images(count: int, seed: int = 0, size: tuple[int, int] = SIZE) -> list[bytes]:
    """Returns smooth random images with noise, by default of the size of those of HAM10000.

    size: width and height.
    """
    return [_synthetic_image(np.random.default_rng([seed, index]), size) for index in range(count)]


def ham10000_images(folder: Path, count: int) -> list[bytes]:
    """Returns the first images of HAM10000 below a folder. Raises ValueError if there are none."""
    files = [file for file in image_files(folder) if file.name.startswith("ISIC_")][:count]
    if not files:
        raise ValueError(f"{folder}: expected files ISIC_*.jpg of HAM10000, got none")
    return [file.read_bytes() for file in files]


def _synthetic_image(random: np.random.Generator, size: tuple[int, int]) -> bytes:
    coarse = Image.fromarray(random.integers(40, 216, (9, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    noisy = smooth + random.normal(0, 8, smooth.shape)
    buffer = BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
