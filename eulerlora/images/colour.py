"""Colours of images: from their embedded ICC profile to sRGB, and without the colour of the light.

LittleCMS converts profiles. Colour constancy is an option of a backbone's preprocessing.
"""

from functools import cache, lru_cache
from io import BytesIO

import numpy as np
import torch
from PIL import Image, ImageCms
from torch import Tensor

from eulerlora.settings import ColourConstancy
from eulerlora_client.policy.quality import CONVERTIBLE, INPUT_MODES

PROFILE = "icc_profile"
"""The key of the profile in `Image.info`; its value is None if Pillow could not read it."""

MAX_SRGB_DIFFERENCE = 1  # of 255 levels; published sRGB profiles differ in their rounding
GRID_LEVELS = 16  # per channel
MAX_CACHED_BYTES = 2**16  # profiles of cameras have a few kB; with tables for inks, up to 2 MB


class ProfileError(Exception):
    """The embedded profile cannot be used; the message is the reason."""


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image | None:
    """Returns the image in sRGB, mode RGB or RGBA; None if `profile` is empty or that of sRGB.

    profile: as in `Image.info`. The intent is perceptual, with black point compensation for CMYK.
    An alpha channel is kept.
    Raises ProfileError for a profile that is broken or for images of another kind.
    """
    transform = _transform(profile)
    if transform is None:
        return None
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
    levels = np.linspace(0, 255, GRID_LEVELS).round().astype(np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    grid = cube if transform.input_mode == "RGB" else np.arange(256, dtype=np.uint8)[None]
    image = Image.fromarray(grid)
    difference = np.asarray(transform.apply(image)).astype(int) - np.asarray(image.convert("RGB"))
    return bool(np.abs(difference).max() <= MAX_SRGB_DIFFERENCE)


@cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


NORM = 6
"""Order of the Minkowski norm, as usual for dermatoscopic images."""
MIN_ILLUMINANT = 1e-3


def colour_constant(images: Tensor, method: ColourConstancy) -> Tensor:
    """Returns images as under a gray light.

    images: (..., 3, height, width) in [0, 1]. method: `none` returns them unchanged.
    """
    return images if method == "none" else shades_of_gray(images)


def shades_of_gray(images: Tensor) -> Tensor:
    """Divides each channel by the estimated light; an image under a gray light does not change.

    The light is the Minkowski norm of a channel over the pixels, scaled so that the mean square of
    its channels is 1 (Finlayson and Trezzi, "Shades of Gray and Colour Constancy", CIC 2004).
    images: (..., 3, height, width) in [0, 1]. Returns the same shape, clipped to [0, 1].
    """
    with torch.autocast(images.device.type, enabled=False):
        pixels = images.float()
        light = pixels.pow(NORM).mean(dim=(-2, -1), keepdim=True).pow(1 / NORM)
        light = light.clamp_min(MIN_ILLUMINANT)
        brightness = light.square().mean(dim=-3, keepdim=True).sqrt()
        return (pixels * (brightness / light)).clamp(0, 1).to(images.dtype)
