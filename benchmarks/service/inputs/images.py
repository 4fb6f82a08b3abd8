"""JPEG files to ask about: made up, or those of HAM10000."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from eulerlora.image_files import image_files

SIZE = (600, 450)  # width and height of HAM10000's photographs
QUALITY = 90


def made_up_photographs(count: int, seed: int = 0) -> list[bytes]:
    """Smooth random pictures with some grain, as large as HAM10000's and not much smaller files."""
    return [_made_up(np.random.default_rng([seed, index])) for index in range(count)]


def real_photographs(folder: Path, count: int) -> list[bytes]:
    """The first photographs of HAM10000 below a folder. Raises ValueError where there are none."""
    files = [file for file in image_files(folder) if file.name.startswith("ISIC_")][:count]
    if not files:
        raise ValueError(f"{folder}: wanted HAM10000's files ISIC_*.jpg, found none")
    return [file.read_bytes() for file in files]


def _made_up(random: np.random.Generator) -> bytes:
    coarse = Image.fromarray(random.integers(40, 216, (9, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(SIZE, Image.Resampling.BICUBIC), dtype=np.float32)
    grained = smooth + random.normal(0, 8, smooth.shape)
    buffer = BytesIO()
    Image.fromarray(grained.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
