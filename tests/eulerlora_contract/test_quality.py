"""Image quality against independent libraries, and at several resolutions."""

import tarfile
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps
from scipy import ndimage

from eulerlora_contract.quality import has_frame, measure_quality

STEP = 40


def lesion(width: int, height: int) -> Image.Image:
    """Returns a dark textured spot on lighter skin, at any resolution."""
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    spot = 1 / (1 + np.exp((np.hypot(x - 0.5, y - 0.37) - 0.2) * 150))
    texture = 0.1 * np.sin(60 * x) * np.cos(50 * y)
    return Image.fromarray(np.uint8(255 * (0.7 - 0.4 * spot + texture)))


@pytest.mark.parametrize("shape", [(80, 100), (30, 41), (3, 5)])
def test_the_sharpness_of_a_small_image_is_the_laplacian_variance_of_scipy(
    shape: tuple[int, int],
) -> None:
    luma = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    expected = ndimage.laplace(luma.astype(np.float64))[1:-1, 1:-1].var()
    assert measure_quality(Image.fromarray(luma)).sharpness == pytest.approx(expected)


def test_an_image_without_inner_pixels_has_no_sharpness() -> None:
    assert measure_quality(Image.effect_noise((9, 2), 60)).sharpness == 0


@pytest.mark.parametrize(
    ("level", "share"),
    [(0, (1, 0)), (5, (1, 0)), (6, (0, 0)), (128, (0, 0)), (249, (0, 0)), (250, (0, 1)),
     (255, (0, 1))],
)  # fmt: skip
def test_a_uniform_image_has_the_brightness_of_its_level_and_no_sharpness(
    level: int, share: tuple[int, int]
) -> None:
    quality = measure_quality(Image.new("L", (300, 200), level))
    assert (quality.width, quality.height) == (300, 200)
    assert quality.brightness == pytest.approx(level / 255)
    assert (quality.dark_share, quality.bright_share) == share
    assert quality.sharpness == pytest.approx(0, abs=1e-6)


def test_the_quality_of_a_scene_does_not_depend_on_its_resolution() -> None:
    small = measure_quality(lesion(200, 150))
    for scale in (2, 3, 6):
        large = measure_quality(lesion(200 * scale, 150 * scale))
        assert large.brightness == pytest.approx(small.brightness, abs=0.01)
        assert large.sharpness == pytest.approx(small.sharpness, rel=0.2)


def test_clipped_pixels_are_counted_by_area() -> None:
    image = Image.new("L", (128, 128), 128)
    image.paste(0, (0, 0, 128, 32))
    image.paste(255, (0, 120, 128, 128))
    quality = measure_quality(image)
    assert (quality.dark_share, quality.bright_share) == (32 / 128, 8 / 128)


def test_the_quality_of_gray_is_that_of_equal_channels() -> None:
    gray = lesion(64, 48)
    assert measure_quality(gray.convert("RGB")) == measure_quality(gray)


def vignette(image: Image.Image) -> Image.Image:
    """Returns the image with black corners."""
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).ellipse((0, 0, *image.size), fill=255)
    return Image.composite(image, Image.new("L", image.size), mask)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda image: ImageOps.expand(image, 24, 3), True),
        (lambda image: ImageOps.expand(image, (0, 24), 3), True),
        (lambda image: ImageOps.expand(image, 24, 255), True),
        (lambda image: ImageOps.expand(vignette(image), 24, 0), True),
        (lambda image: image, False),
        (lambda image: ImageOps.expand(image, (0, 24, 0, 0), 3), False),
        (vignette, False),
        (lambda image: image.point(lambda _: 3), False),
        (lambda image: ImageOps.expand(image, 300, 3), False),
    ],
    ids=["all sides", "two sides", "white", "around a vignette", "none", "one side", "vignette",
         "a dark image", "most of the image"],
)  # fmt: skip
@pytest.mark.parametrize("width", [120, 400, 2000])
def test_only_plain_edges_of_two_opposite_sides_are_a_frame(
    change: Callable[[Image.Image], Image.Image], expected: bool, width: int
) -> None:
    image = change(lesion(400, 300))
    assert has_frame(image.resize((width, width * image.height // image.width))) is expected


@pytest.mark.parametrize(
    ("top", "bottom", "luma", "expected"),
    [
        (2, 2, (0, 32), True),  # at least 2% of 100 rows, and a luma of at most 32
        (2, 2, (0, 33), False),
        (2, 2, (247, 255), True),  # or within 8
        (2, 2, (246, 255), False),
        (1, 3, (0, 32), False),
        (25, 25, (0, 32), True),  # at most a half
        (25, 26, (0, 32), False),
    ],
)
def test_a_frame_has_exact_limits(
    top: int, bottom: int, luma: tuple[int, int], expected: bool
) -> None:
    pixels = np.tile(np.linspace(60, 200, 80).astype(np.uint8), (100, 1))
    pixels[:top] = pixels[100 - bottom :] = luma[1]
    pixels[:top, ::2] = pixels[100 - bottom :, ::2] = luma[0]
    assert has_frame(Image.fromarray(pixels)) is expected


@pytest.fixture(scope="module")
def real_images(real_data: Path) -> list[Image.Image]:
    """Every fortieth image of HAM10000."""
    with tarfile.open(next(real_data.glob("ham10000*.tar.*"))) as archive:  # read as a stream
        members = (member for member in archive if member.isfile())
        images = []
        for member in islice(members, 0, None, STEP):
            file = archive.extractfile(member)
            assert file is not None
            images.append(Image.open(BytesIO(file.read())))
        return images


@pytest.mark.data
@pytest.mark.slow  # reads an archive of 10,000 images
def test_real_images_have_hardly_a_frame_and_every_added_one_is_named(
    real_images: list[Image.Image],
) -> None:
    assert sum(map(has_frame, real_images)) <= 0.01 * len(real_images)
    for colour in ("#030303", "white", "#1e3ca0"):
        framed = (
            ImageOps.expand(image, max(3, image.height // 16), colour) for image in real_images
        )
        assert all(map(has_frame, framed))
