"""Image files for requests: synthetic ones, or those of a folder."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (600, 450)  # width and height of the images of HAM10000
QUALITY = 90


def request_images(count: int, folder: Path | None) -> list[bytes]:
    """The first `count` files of a folder by name, or as many synthetic images.

    Raises:
        FileNotFoundError: For an empty folder.
    """
    if folder is None:
        return synthetic_images(count)
    paths = sorted(folder.iterdir())[:count]
    if not paths:
        raise FileNotFoundError(f"{folder}: expected image files, got none")
    return [path.read_bytes() for path in paths]


def synthetic_images(count: int, size: tuple[int, int] = SIZE) -> list[bytes]:
    """Smooth random images with noise, by default of the size of those of HAM10000.

    size: width and height.
    """
    return [_synthetic_image(np.random.default_rng([0, index]), size) for index in range(count)]


def _synthetic_image(random: np.random.Generator, size: tuple[int, int]) -> bytes:
    coarse = Image.fromarray(random.integers(40, 216, (9, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    noisy = smooth + random.normal(0, 8, smooth.shape)
    buffer = BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
