"""Pixels in sRGB, and the quality measured from them: size, brightness, clipping and sharpness.

LittleCMS converts colours through the embedded ICC profile.
"""

from functools import cache, lru_cache
from io import BytesIO
from itertools import product
from typing import Any

from PIL import Image, ImageChops, ImageCms, ImageMath

from eulerlora_contract.answers import ImageQuality

WORKING_SIDE_PX = 128
"""Longer side at which brightness, clipping and sharpness are measured."""

MAX_BLACK = 5
MIN_WHITE = 250
LEVELS_16_BIT_PER_8_BIT = 257


def measure_quality(image: Image.Image) -> ImageQuality:
    """Returns the quality of an image of any mode that Pillow converts to gray.

    All measures except the size are taken on the luma (ITU-R BT.601) in sRGB, reduced to 128
    pixels for the longer side, so that they do not depend on the resolution. Smaller images are
    not enlarged.
    """
    luma = _working_luma(image)
    return ImageQuality(
        width=image.width,
        height=image.height,
        brightness=_mean(luma) / 255,
        dark_share=_mean(_evaluate(lambda args: args["float"](args["x"] <= MAX_BLACK), x=luma)),
        bright_share=_mean(_evaluate(lambda args: args["float"](args["x"] >= MIN_WHITE), x=luma)),
        sharpness=laplacian_variance(luma),
    )


def laplacian_variance(luma: Image.Image) -> float:
    """Returns the variance of the four-neighbour Laplacian, without the border.

    luma: mode F. 0 for an image with a side below three pixels. The focus measure LAPV of
    Pech-Pacheco, Cristobal, Chamorro-Martinez and Fernandez-Valdivia, "Diatom autofocusing in
    brightfield microscopy", ICPR 2000, vol. 3, 314-317.
    """
    if min(luma.size) < 3:
        return 0.0
    laplacian = _evaluate(
        lambda args: args["up"] + args["down"] + args["left"] + args["right"] - args["x"] * 4,
        x=_shifted(luma, 0, 0),
        up=_shifted(luma, 0, -1),
        down=_shifted(luma, 0, 1),
        left=_shifted(luma, -1, 0),
        right=_shifted(luma, 1, 0),
    )
    mean = _mean(laplacian)
    return _mean(_evaluate(lambda args: (args["x"] - mean) * (args["x"] - mean), x=laplacian))


def _shifted(image: Image.Image, x: int, y: int) -> Image.Image:
    """Returns the image without its border of one pixel, moved by an offset."""
    return image.crop((1 + x, 1 + y, image.width - 1 + x, image.height - 1 + y))


def _evaluate(expression: Any, **images: Image.Image) -> Image.Image:
    result: Image.Image = ImageMath.lambda_eval(expression, **images)
    return result


def _mean(image: Image.Image) -> float:
    """Returns the mean of an image of mode F; Pillow accumulates it in double precision."""
    mean = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    assert isinstance(mean, float)
    return mean


def _working_luma(image: Image.Image) -> Image.Image:
    """Returns the luma in 0..255, mode F."""
    gray = rgb_on_white(in_srgb(image)).convert("L").convert("F")
    scale = WORKING_SIDE_PX / max(gray.size)
    if scale < 1:
        width, height = (max(1, round(side * scale)) for side in gray.size)
        gray = gray.resize((width, height), Image.Resampling.BILINEAR)  # antialiased by Pillow
    return gray


INPUT_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}
"""Colour space of a profile -> the mode from which LittleCMS converts."""

CONVERTIBLE = {
    "RGB": {"1", "L", "LA", "P", "PA", "RGB", "RGBA"},
    "L": {"1", "L", "LA"},
    "CMYK": {"CMYK"},
}
"""Input mode -> the modes of images whose profile may have that colour space."""

MAX_SRGB_DIFFERENCE = 1  # of 255 levels; published sRGB profiles differ in their rounding
GRID = bytes(level for colour in product(range(0, 256, 17), repeat=3) for level in colour)
"""Colours with 16 levels of each channel."""
MAX_CACHED_BYTES = 2**16  # profiles of cameras have a few kB; with tables for inks, up to 2 MB


class ProfileError(Exception):
    """The embedded profile cannot be used; the message is the reason."""


def in_srgb(image: Image.Image) -> Image.Image:
    """Returns the decoded image as `with_srgb_colours`; unchanged with a broken profile.

    Raises the errors of Pillow for a damaged file, and ValueError for indexed colours without a
    palette.
    """
    image.load()
    if image.mode in ("P", "PA") and image.palette is None:
        raise ValueError("the image has indexed colours but no palette")
    try:
        return with_srgb_colours(image, image.info.get("icc_profile", b""))
    except ProfileError:
        return image


def with_srgb_colours(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Returns the image with the colours of its ICC profile in sRGB; itself if none changes.

    A converted image has the mode RGB or RGBA and keeps its alpha channel. profile: as Pillow gives
    it, None for a damaged one. The intent is perceptual, with black point compensation for CMYK.
    Raises ProfileError.
    """
    transform = _transform(profile)
    if transform is None:
        return image
    if image.mode not in CONVERTIBLE[transform.input_mode]:
        raise ProfileError(f"it is for {transform.input_mode} and the image is {image.mode}")
    converted = transform.apply(image.convert(transform.input_mode))
    if image.has_transparency_data:
        converted.putalpha(image.convert("RGBA").getchannel("A"))
    return converted


def is_srgb(profile: bytes | None) -> bool:
    """Returns True if pixels with this profile need no conversion: it is empty or that of sRGB."""
    try:
        return _transform(profile) is None
    except ProfileError:
        return False


def _transform(profile: bytes | None) -> ImageCms.ImageCmsTransform | None:
    """Returns the transform from a profile to sRGB; None if it changes no colour."""
    if profile is None:
        raise ProfileError("it is damaged")
    cached = len(profile) <= MAX_CACHED_BYTES
    return _cached_transform(profile) if cached else _new_transform(profile)


def _new_transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    if not profile:
        return None
    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        space = source.profile.xcolor_space
        if space not in INPUT_MODES:
            raise ProfileError("it is not one of an RGB, gray or CMYK image")
        transform = ImageCms.ImageCmsTransform(source, _srgb(), INPUT_MODES[space], "RGB")
    except (OSError, ValueError) as error:
        raise ProfileError("it is damaged") from error
    return None if _is_identity(transform) else transform


_cached_transform = lru_cache(maxsize=16)(_new_transform)


def _is_identity(transform: ImageCms.ImageCmsTransform) -> bool:
    """True if all colours of a grid keep their levels, up to the rounding of sRGB profiles."""
    if transform.input_mode == "CMYK":
        return False
    levels = GRID if transform.input_mode == "RGB" else bytes(range(256))
    channels = len(transform.input_mode)
    image = Image.frombytes(transform.input_mode, (len(levels) // channels, 1), levels)
    difference = ImageChops.difference(transform.apply(image), image.convert("RGB"))
    return difference.point(lambda level: level > MAX_SRGB_DIFFERENCE).getbbox() is None


@cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def rgb_on_white(image: Image.Image) -> Image.Image:
    """Returns a new RGB image without metadata: 16 bits scaled to 8, transparency over white."""
    if image.mode.startswith("I"):  # a plain conversion would clip 16 bits
        image = image.convert("F").point(lambda level: level * (1 / LEVELS_16_BIT_PER_8_BIT) + 0)
    layers = image.convert("RGBA") if image.has_transparency_data else image.convert("RGB")
    plain = Image.new("RGB", layers.size, "white")
    plain.paste(layers, mask=layers if layers.mode == "RGBA" else None)
    return plain
