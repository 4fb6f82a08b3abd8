"""Rulers on drawn skin, and on real images."""

import math
import tarfile
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from service.decoding.ruler import has_ruler

STEP = 40


def skin(width: int = 600, height: int = 450) -> Image.Image:
    """Returns noise with a dark spot."""
    levels = np.random.default_rng(0).normal(170, 5, (height, width, 1)) + np.zeros(3)
    image = Image.fromarray(np.uint8(levels))
    ImageDraw.Draw(image).ellipse((200, 130, 400, 320), fill=(90, 60, 50))
    return image


def with_ticks(
    image: Image.Image, places: list[float], top: int = 0, level: int = 20
) -> Image.Image:
    """Returns the image with dark lines of 3 x 25 pixels."""
    image, colour = image.copy(), (level,) * 3
    for x in places:
        ImageDraw.Draw(image).line((x, top, x, top + 25), fill=colour, width=3)
    return image


RULER = [40 + 30.5 * tick for tick in range(12)]
UNEVEN = [30.0, 84, 120, 190, 215, 283, 300, 372, 405, 500]


@pytest.mark.parametrize(
    ("places", "top", "level", "expected"),
    [
        (RULER, 0, 20, True),
        (RULER, 380, 20, True),
        (RULER, 200, 20, True),  # across the lesion, where some ticks are lost
        (RULER, 0, 130, True),
        (RULER, 0, 165, False),
        (RULER[:7], 0, 20, True),
        (RULER[:5], 0, 20, False),
        (UNEVEN, 0, 20, False),
        ([], 0, 20, False),
    ],
)
@pytest.mark.parametrize("quarter_turns", [0, 1])
def test_six_equally_spaced_ticks_are_a_ruler(
    places: list[float], top: int, level: int, expected: bool, quarter_turns: int
) -> None:
    image = with_ticks(skin(), places, top, level).rotate(90 * quarter_turns, expand=True)
    for scale in (1 / 3, 1, 2.5):
        size = (round(image.width * scale), round(image.height * scale))
        assert has_ruler(image.resize(size, Image.Resampling.LANCZOS)) is expected


@pytest.mark.parametrize("size", [(32, 32), (31, 31), (8192, 32), (200, 36)])
def test_an_image_of_any_shape_is_measured(size: tuple[int, int]) -> None:
    assert not has_ruler(Image.effect_noise(size, 5).convert("RGB"))


@pytest.mark.data
@pytest.mark.slow  # reads an archive of 10,000 images
def test_few_real_images_have_a_ruler_and_drawn_ones_are_found(real_data: Path) -> None:
    with tarfile.open(next(real_data.glob("ham10000*.tar.*"))) as archive:  # read as a stream
        files = (archive.extractfile(one) for one in archive if one.isfile())
        images = [
            Image.open(BytesIO(file.read())).convert("RGB")
            for file in islice(files, 0, None, STEP)
            if file is not None
        ]
    assert sum(map(has_ruler, images)) <= math.ceil(0.01 * len(images))
    drawn = [with_ticks(image.resize((600, 450)), RULER) for image in images]
    assert sum(map(has_ruler, drawn)) >= 0.9 * len(drawn)
