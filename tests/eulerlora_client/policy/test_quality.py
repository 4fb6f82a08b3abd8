"""Measures that an independent library agrees with, at any resolution."""

import tarfile
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy import ndimage

from eulerlora_client.contract.triage import Reason
from eulerlora_client.policy.policy import default_policy
from eulerlora_client.policy.quality import laplacian_variance, measure_quality
from tests.eulerlora_client.policy_inputs import make_prediction

EVERY = 40


def lesion(width: int, height: int) -> Image.Image:
    """A dark spot with an edge and texture on lighter skin, drawn at any resolution."""
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    spot = 1 / (1 + np.exp((np.hypot(x - 0.5, y - 0.37) - 0.2) * 150))
    texture = 0.1 * np.sin(60 * x) * np.cos(50 * y)
    return Image.fromarray(np.uint8(255 * (0.7 - 0.4 * spot + texture)))


def reasons(image: Image.Image) -> set[Reason]:
    return set(default_policy().decide(make_prediction(), measure_quality(image)).reasons)


def test_the_laplacian_is_that_of_an_independent_library() -> None:
    luma = np.random.default_rng(0).uniform(0, 255, (30, 41)).astype(np.float32)
    twin = ndimage.laplace(luma.astype(np.float64))[1:-1, 1:-1].var()
    assert laplacian_variance(Image.fromarray(luma)) == pytest.approx(twin)


def test_an_image_of_two_pixels_a_side_has_no_sharpness() -> None:
    assert laplacian_variance(Image.new("F", (40, 2))) == 0


@pytest.mark.parametrize(("level", "share"), [(0, (1, 0)), (128, (0, 0)), (255, (0, 1))])
def test_an_even_tone_is_as_bright_as_its_level_and_not_sharp(
    level: int, share: tuple[int, int]
) -> None:
    found = measure_quality(Image.new("L", (300, 200), level))
    assert (found.width, found.height) == (300, 200)
    assert found.brightness == pytest.approx(level / 255)
    assert (found.dark_share, found.bright_share) == share
    assert found.sharpness == pytest.approx(0, abs=1e-6)


def test_the_same_scene_measures_the_same_at_every_resolution() -> None:
    small = measure_quality(lesion(200, 150))
    for scale in (2, 3, 6):
        large = measure_quality(lesion(200 * scale, 150 * scale))
        assert large.brightness == pytest.approx(small.brightness, abs=0.01)
        assert large.sharpness == pytest.approx(small.sharpness, rel=0.2)


def test_the_more_a_picture_is_blurred_the_less_sharp_it_is() -> None:
    image = lesion(600, 450)
    found = [
        measure_quality(image.filter(ImageFilter.GaussianBlur(radius))).sharpness
        for radius in (0, 2, 5, 10, 25)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] / 20


def test_clipped_pixels_are_counted_by_area() -> None:
    image = Image.new("L", (128, 128), 128)
    image.paste(0, (0, 0, 128, 32))
    image.paste(255, (0, 120, 128, 128))
    found = measure_quality(image)
    assert (found.dark_share, found.bright_share) == (32 / 128, 8 / 128)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "CMYK", "1", "I;16", "I"])
def test_every_mode_of_a_picture_measures_the_same(mode: str) -> None:
    gray = Image.new("L", (64, 64), 255)
    gray.paste(0, (0, 0, 64, 32))
    wide = {"I;16": np.uint16, "I": np.int32}
    if mode in wide:
        image = Image.fromarray(np.asarray(gray).astype(wide[mode]) * 257)
        assert image.mode == mode
    else:
        image = gray.convert(mode)
    assert measure_quality(image) == measure_quality(gray)


def test_what_is_transparent_counts_as_white() -> None:
    assert measure_quality(Image.new("RGBA", (64, 64), (0, 0, 0, 0))).brightness == 1


def test_a_thin_strip_can_be_measured() -> None:
    found = measure_quality(Image.new("L", (4000, 3), 128))
    assert (found.sharpness, found.brightness) == (0, pytest.approx(128 / 255))


def test_a_cifar_picture_is_too_small_and_one_of_200_by_150_is_not() -> None:
    assert Reason.TOO_SMALL in reasons(lesion(32, 32))
    assert reasons(lesion(200, 150)) == set()


@pytest.fixture(scope="module")
def real_images(real_data: Path) -> list[Image.Image]:
    """Every fortieth image of HAM10000."""
    with tarfile.open(next(real_data.glob("ham10000*.tar.*"))) as archive:  # read as a stream
        members = (each for each in archive if each.isfile())
        found = []
        for each in islice(members, 0, None, EVERY):
            file = archive.extractfile(each)
            assert file is not None
            found.append(Image.open(BytesIO(file.read())))
        return found


@pytest.mark.data
def test_hardly_any_real_image_is_sent_back(real_images: list[Image.Image]) -> None:
    sent_back = [image for image in real_images if reasons(image)]
    assert len(real_images) > 200
    assert len(sent_back) <= 0.01 * len(real_images)


@pytest.mark.data
@pytest.mark.parametrize(
    ("spoil", "reason", "least"),
    [
        (lambda image: image.filter(ImageFilter.GaussianBlur(2)), Reason.BLURRED, 0.85),
        (lambda image: image.filter(ImageFilter.GaussianBlur(3)), Reason.BLURRED, 0.98),
        (lambda image: image.point(lambda level: level // 4), Reason.TOO_DARK, 0.9),
        (lambda image: image.point(lambda level: level * 2), Reason.TOO_BRIGHT, 0.9),
        (lambda image: image.resize((96, 72)), Reason.TOO_SMALL, 1),
    ],
)
def test_spoiled_copies_of_real_images_are_sent_back(
    real_images: list[Image.Image],
    spoil: Callable[[Image.Image], Image.Image],
    reason: Reason,
    least: float,
) -> None:
    caught = [reason in reasons(spoil(image)) for image in real_images]
    assert sum(caught) >= least * len(caught)
