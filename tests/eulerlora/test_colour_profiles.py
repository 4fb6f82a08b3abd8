"""eulerlora.images.colour: colours of embedded profiles against a computation by hand."""

import io
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from torch import Tensor

from eulerlora.images import colour as colour_profiles
from eulerlora.images.colour import is_srgb
from eulerlora.images.preprocess import Conversion, RgbImage, is_upright_srgb, upright_rgb
from tests.icc_profiles import (
    ADOBE_RGB,
    D50,
    DISPLAY_P3,
    SRGB,
    WIDE_SPACES,
    RgbSpace,
    cmyk_profile,
    gray_profile,
    in_srgb,
    linear_to_srgb,
    rgb_profile,
)

LITTLECMS_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
TOLERANCE = 1.0  # of 255 levels, between rounded levels and exact ones


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def array(image: RgbImage | Tensor) -> np.ndarray:
    """(height, width, 3)"""
    pixels = image.pixels if isinstance(image, RgbImage) else image
    return pixels.permute(1, 2, 0).numpy()


def stored(image: Image.Image, kind: str = "PNG", **options: object) -> Image.Image:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return Image.open(io.BytesIO(file.getvalue()))


def codes(image: RgbImage) -> list[Conversion]:
    return [warning.code for warning in image.warnings]


@pytest.fixture(params=WIDE_SPACES, ids=lambda space: space.name)
def space(request: pytest.FixtureRequest) -> RgbSpace:
    return request.param


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_the_colours_of_wide_spaces_are_those_computed_from_their_primaries(
    space: RgbSpace, kind: str
) -> None:
    pixels = noise(40, 50, 3)
    image = Image.fromarray(pixels)
    actual = upright_rgb(stored(image, kind, icc_profile=rgb_profile(space), lossless=True))
    expected = in_srgb(pixels, space)
    assert np.abs(expected - pixels).max() > 30
    assert np.abs(array(actual) - expected).max() <= TOLERANCE
    assert codes(actual) == [Conversion.CONVERTED_TO_SRGB]


def test_the_pixels_of_a_jpeg_are_converted_after_decoding(space: RgbSpace) -> None:
    image = Image.fromarray(noise(40, 50, 3))
    plain = upright_rgb(stored(image, "JPEG"))
    tagged = stored(image, "JPEG", icc_profile=rgb_profile(space))
    assert not is_upright_srgb(tagged)
    assert np.abs(array(upright_rgb(tagged)) - in_srgb(array(plain), space)).max() <= TOLERANCE


def test_a_colour_in_display_p3_and_in_srgb_gives_the_same_pixels() -> None:
    light = np.random.default_rng(1).uniform(0, 1, (30, 40, 3))  # linear sRGB
    in_p3 = light @ (np.linalg.inv(DISPLAY_P3.to_d50) @ SRGB.to_d50).T
    levels = [np.round(255 * linear_to_srgb(np.clip(part, 0, 1))) for part in (light, in_p3)]
    in_srgb_space, in_p3_space = (Image.fromarray(part.astype(np.uint8)) for part in levels)
    actual = upright_rgb(stored(in_p3_space, icc_profile=rgb_profile(DISPLAY_P3)))
    difference = np.abs(array(actual).astype(int) - np.asarray(in_srgb_space))
    assert np.percentile(difference, 99) <= 3  # levels of dark colours are coarse
    assert difference.mean() < 0.5


def test_rotated_transparent_and_indexed_images_are_converted_as_plain_ones() -> None:
    colours = noise(4, 3)
    indices = np.arange(4, dtype=np.uint8).reshape(2, 2)
    profile, expected = rgb_profile(ADOBE_RGB), in_srgb(colours[indices], ADOBE_RGB)
    indexed = Image.fromarray(indices).convert("L")
    indexed.putpalette(colours.flatten().tolist())
    opaque = np.concatenate([colours[indices], np.full((2, 2, 1), 255, np.uint8)], axis=-1)
    for image in (indexed, Image.fromarray(opaque)):
        actual = upright_rgb(stored(image, icc_profile=profile))
        assert np.abs(array(actual) - expected).max() <= TOLERANCE
        assert codes(actual) == [Conversion.CONVERTED_TO_RGB, Conversion.CONVERTED_TO_SRGB]
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = upright_rgb(stored(Image.fromarray(opaque), icc_profile=profile, exif=exif))
    assert np.abs(array(turned) - np.rot90(expected, -1)).max() <= TOLERANCE


def test_transparent_colours_are_composited_after_their_conversion() -> None:
    layers = noise(20, 30, 4)
    actual = upright_rgb(stored(Image.fromarray(layers), icc_profile=rgb_profile(DISPLAY_P3)))
    alpha = layers[..., 3:] / 255
    expected = alpha * in_srgb(layers[..., :3], DISPLAY_P3) + (1 - alpha) * 255
    assert np.abs(array(actual) - expected).max() <= TOLERANCE + 1  # composition rounds too


def test_a_transparent_colour_of_a_tagged_image_lies_over_white() -> None:
    image = Image.new("RGB", (3, 2), (1, 2, 3))
    image.putpixel((0, 0), (200, 90, 40))
    actual = upright_rgb(stored(image, icc_profile=rgb_profile(DISPLAY_P3), transparency=(1, 2, 3)))
    expected = np.full((2, 3, 3), 255.0)
    expected[0, 0] = in_srgb(np.array([200, 90, 40], np.uint8), DISPLAY_P3)
    assert np.abs(array(actual) - expected).max() <= TOLERANCE


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_gray_is_converted_by_the_curve_of_its_profile(mode: str) -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = Image.fromarray(gray)
    if mode == "LA":
        image.putalpha(255)
    elif mode == "I;16":
        image = Image.fromarray(gray.astype(np.uint16) * 257)
    actual = upright_rgb(stored(image, icc_profile=gray_profile(1.5)))
    expected = 255 * linear_to_srgb((gray / 255) ** 1.5)
    assert np.abs(array(actual) - expected[..., None]).max() <= 2  # 16-bit curve, 8-bit levels
    assert codes(actual)[-1] is Conversion.CONVERTED_TO_SRGB


def test_gray_pixels_with_an_rgb_profile_are_its_equal_channels() -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    actual = upright_rgb(stored(Image.fromarray(gray), "JPEG", icc_profile=rgb_profile(ADOBE_RGB)))
    decoded = np.asarray(stored(Image.fromarray(gray), "JPEG"))
    expected = in_srgb(np.repeat(decoded[..., None], 3, axis=-1), ADOBE_RGB)
    assert np.abs(array(actual) - expected).max() <= TOLERANCE


def paper(inks: np.ndarray) -> np.ndarray:
    """Returns XYZ of a paper on which every ink removes a part of the light of each primary."""
    absorbed = np.array([[0.9, 0.1, 0.0], [0.1, 0.8, 0.2], [0.0, 0.1, 0.7], [0.95, 0.95, 0.95]])
    light = np.prod(1 - inks[..., None] * absorbed, axis=-2)
    return light @ SRGB.to_d50.T


def test_cmyk_is_converted_by_the_table_of_its_profile() -> None:
    inks = noise(60, 80, 4)
    image = Image.frombytes("CMYK", (80, 60), inks.tobytes())
    actual = upright_rgb(stored(image, "TIFF", icc_profile=cmyk_profile(paper)))
    darkest = paper(np.ones(4))[1]  # becomes black: the perceptual intent compensates for it
    light = (paper(inks / 255) - darkest * D50) / (1 - darkest) @ np.linalg.inv(SRGB.to_d50).T
    expected = 255 * linear_to_srgb(np.clip(light, 0, 1))
    error = np.abs(array(actual) - expected)
    assert error.mean() < 1  # LittleCMS interpolates the table
    assert np.percentile(error, 99) < 8  # in the darkest colours
    assert codes(actual) == [Conversion.CONVERTED_TO_RGB, Conversion.CONVERTED_TO_SRGB]


@pytest.mark.parametrize(
    "profile", [LITTLECMS_SRGB, rgb_profile(SRGB)], ids=["of LittleCMS", "with a table"]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_profile_of_srgb_changes_no_pixel_and_gives_no_warning(kind: str, profile: bytes) -> None:
    image = Image.fromarray(noise(20, 30, 3))
    tagged, plain = stored(image, kind, icc_profile=profile), stored(image, kind)
    assert is_upright_srgb(tagged)
    actual = upright_rgb(tagged)
    assert torch.equal(actual.pixels, upright_rgb(plain).pixels)
    assert actual.warnings == ()


def test_a_profile_of_srgb_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    new_transform = ImageCms.ImageCmsTransform
    monkeypatch.setattr(
        ImageCms, "ImageCmsTransform", lambda *args: built.append(args) or new_transform(*args)
    )
    profile = rgb_profile(RgbSpace("sRGB again", SRGB.primaries, SRGB.white, None))
    assert all(is_srgb(profile) for _ in range(5))
    assert len(built) == 1


def test_a_large_profile_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colour_profiles, "MAX_CACHED_BYTES", 100)
    before = colour_profiles._cached_transform.cache_info()
    assert not is_srgb(rgb_profile(DISPLAY_P3))
    assert colour_profiles._cached_transform.cache_info() == before


BROKEN = {
    "text": b"not a profile",
    "zeros": bytes(200),
    "truncated": rgb_profile(DISPLAY_P3)[:200],
    "without its curves": rgb_profile(DISPLAY_P3).replace(b"TRC", b"XXX"),
    "a device link": rgb_profile(DISPLAY_P3).replace(b"mntr", b"link", 1),
    "another colour space": rgb_profile(DISPLAY_P3).replace(b"RGB ", b"Lab ", 1),
    "for other images": cmyk_profile(paper),
}


@pytest.mark.parametrize("profile", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_broken_profile_is_ignored_with_a_warning(kind: str, profile: bytes) -> None:
    image = Image.fromarray(noise(20, 30, 3))
    actual = upright_rgb(stored(image, kind, icc_profile=profile))
    assert torch.equal(actual.pixels, upright_rgb(stored(image, kind)).pixels)
    assert codes(actual) == [Conversion.PROFILE_IGNORED]
    assert actual.warnings[0].message.startswith("the colour profile is ignored: it is ")


def test_a_profile_that_cannot_be_unpacked_is_ignored_with_a_warning() -> None:
    file = io.BytesIO()
    pixels = noise(20, 30, 3)
    Image.fromarray(pixels).save(file, "PNG", icc_profile=rgb_profile(DISPLAY_P3))
    content = file.getvalue()
    start = content.index(b"iCCP")
    length = int.from_bytes(content[start - 4 : start], "big")
    chunk = b"iCCPICC Profile\0\0" + b"garbage".ljust(length - 13, b"\0")
    damaged = content[:start] + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    damaged += content[start + 8 + length :]
    actual = upright_rgb(Image.open(io.BytesIO(damaged)))
    assert np.array_equal(array(actual), pixels)
    assert codes(actual) == [Conversion.PROFILE_IGNORED]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_images_without_a_profile_never_reach_littlecms(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageCms, "ImageCmsProfile", lambda *_: pytest.fail("a profile was read"))
    image = stored(Image.fromarray(noise(20, 30, 3)), kind)
    assert np.array_equal(array(upright_rgb(image)), np.asarray(image))
