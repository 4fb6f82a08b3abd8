"""Image files and their upright sRGB pixels."""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from eulerlora_client.images import PARSER_ERRORS, files_below
from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.errors import ImageError
from eulerlora_contract.policy.quality import ProfileError, is_srgb, with_srgb_colours

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp")
SIXTEEN_BITS = "16B"  # the end of Pillow's raw mode
UNUSED_BITS = 4
REDUCTIONS = (4, 2)
MIN_REDUCED_SIDES = 3
"""A reduced image has at least this multiple of the network's input on its shorter side."""
MIN_REDUCED_LONG_SIDE_PX = 896
"""Longer side of a reduced image; the image quality is measured at a seventh of it."""
TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the transposition that undoes it."""
MIN_GREATEST_ALPHA, MIN_MEAN_ALPHA = 128, 25
"""Of 255. Below them, an image on white shows almost nothing of its content."""
SIXTEEN_BIT_MODES = {"I;16", "I;16B", "I;16L", "I;16N", "I"}
PROFILE = "icc_profile"
"""The key of the profile in `Image.info`; its value is None if Pillow could not read it."""


@dataclass(frozen=True)
class RgbImage:
    """An upright sRGB image.

    pixels: (3, height, width) uint8. warnings: the conversions that were made.
    """

    pixels: Tensor
    warnings: tuple[PredictionWarning, ...]


def is_image_name(name: str) -> bool:
    """True if the file extension is that of a supported image format."""
    return name.lower().endswith(EXTENSIONS)


def image_files(folder: Path) -> list[Path]:
    """Returns all image files below a folder, sorted; raises as `files_below`."""
    return sorted(path for path in files_below(folder) if is_image_name(path.name))


def read_pixels(file: Path | BinaryIO, name: str, input_side: int | None = None) -> Tensor:
    """Returns (3, height, width) uint8, as `read_image` does."""
    return read_image(file, name, input_side).pixels


def read_image(file: Path | BinaryIO, name: str, input_side: int | None = None) -> RgbImage:
    """Returns the upright image of a file in sRGB, with warnings of its conversions.

    input_side: if given, of the network's input; a large JPEG is then reduced (`jpeg_reduction`).
    Raises ImageError, with a message that begins with `name`.
    """
    try:
        with Image.open(file) as image:
            if input_side is not None:
                reduce_jpeg(image, input_side)
            check_sample_range(image)
            return upright_rgb(image)
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"{name}: cannot be opened as an image: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Returns why Pillow failed, without its message, which may show a memory address."""
    if isinstance(error, UnidentifiedImageError):
        return "unknown format"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror.lower()
    return "damaged or truncated"


def jpeg_reduction(size: tuple[int, int], input_side: int) -> int:
    """Returns 1, 2 or 4: the factor by which a JPEG of (width, height) is reduced while decoding.

    The decoder then computes fewer coefficients of the blocks of 8 x 8 pixels. input_side: of the
    network's input. Probabilities differ from those after a full decode by less than 0.005.
    """
    for factor in REDUCTIONS:
        shorter, longer = min(size) // factor, max(size) // factor
        if shorter >= MIN_REDUCED_SIDES * input_side and longer >= MIN_REDUCED_LONG_SIDE_PX:
            return factor
    return 1


def reduce_jpeg(image: Image.Image, input_side: int) -> None:
    """Makes Pillow reduce a JPEG by `jpeg_reduction` when it decodes it; call it before that.

    Has no effect on other formats.
    """
    factor = jpeg_reduction(image.size, input_side)
    image.draft(None, (image.width // factor, image.height // factor))


def unread_file(image: Image.Image) -> Path | None:
    """Returns the JPEG file of an image that was opened by its path and not read yet.

    None for any other image. The file can be decoded at reduced size without changing the image.
    """
    if type(image) is not JpegImageFile or not image.filename or image.decoderconfig:
        return None  # a subclass has several images
    file = Path(os.fsdecode(image.filename))
    return file if image.tile and file.is_file() else None


def check_sample_range(image: Image.Image) -> None:
    """Raises ImageError for a PNG of 16 bits per sample that uses only 12 of them, or fewer.

    Scaled to 8 bits, it would be nearly black. Call it before the image is loaded; it loads such
    images.
    """
    if not any(str(tile[3]).endswith(SIXTEEN_BITS) for tile in getattr(image, "tile", ())):
        return
    image.load()
    bits = 16 if image.mode.startswith("I") else 8  # Pillow keeps 16 bits of gray only
    samples = np.asarray(image)
    colours = samples[..., :-1] if "A" in image.getbands() else samples
    if int(colours.max()) >> (bits - UNUSED_BITS) == 0:
        raise ImageError(
            "expected samples from 0 to 65,535 in a file of 16 bits per sample; "
            "all samples are below 4,096, as in data of 12 bits"
        )


def upright_rgb(image: Image.Image) -> RgbImage:
    """Returns the image as viewers show it: EXIF orientation applied, in sRGB.

    16-bit gray is scaled to 8 bits. Colours are converted through the embedded ICC profile; without
    one, palette, CMYK and gray are converted by Pillow. Transparent images are composited on white.
    Raises ImageError for an image that is damaged, that has no RGB form or that is fully
    transparent.
    """
    _load(image)
    transposition = upright_transposition(image)
    upright = image if transposition is None else image.transpose(transposition)
    transparent = upright.has_transparency_data
    warnings: list[PredictionWarning] = []
    if transparent or upright.mode not in ("RGB", "L"):
        message = f"converted from {upright.mode} to RGB"
        warnings.append(PredictionWarning(code=WarningCode.CONVERTED_TO_RGB, message=message))
    if upright.mode in SIXTEEN_BIT_MODES:
        upright = _to_eight_bits(upright)
    try:
        try:
            converted = with_srgb_colours(upright, image.info.get(PROFILE, b""))
        except ProfileError as error:
            message = f"the colour profile is ignored: {error}"
            warnings.append(PredictionWarning(code=WarningCode.PROFILE_IGNORED, message=message))
        else:
            if converted is not upright:
                message = "converted from the embedded colour profile to sRGB"
                code = WarningCode.CONVERTED_TO_SRGB
                warnings.append(PredictionWarning(code=code, message=message))
            upright = converted
        rgb = _composite_on_white(upright) if transparent else upright.convert("RGB")
    except ValueError as error:
        raise ImageError(f"images of mode {upright.mode} cannot be converted to RGB") from error
    except PARSER_ERRORS as error:  # such as the transparent colour of another mode
        raise ImageError("the image contradicts its own header") from error
    return RgbImage(channels_first(np.array(rgb)), tuple(warnings))


def is_upright_srgb(image: Image.Image) -> bool:
    """Returns True if `upright_rgb` changes no pixel of an RGB image.

    Reads only the header. True if the image has no EXIF orientation, no transparent colour and no
    colour profile but that of sRGB.
    """
    return (
        image.mode == "RGB"
        and not image.has_transparency_data
        and is_srgb(image.info.get(PROFILE, b""))
        and upright_transposition(image) is None
    )


def channels_first(rgb: npt.NDArray[np.uint8]) -> Tensor:
    """Copies (height, width, 3) to a contiguous tensor (3, height, width)."""
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def upright_transposition(image: Image.Image) -> Image.Transpose | None:
    """Returns the transposition for the image's EXIF orientation; None if it needs none.

    Pillow's ImageOps.exif_transpose also rewrites all other tags and fails on a damaged one.
    """
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, ValueError, struct.error):  # an EXIF block that is not a TIFF structure
        orientation = None
    return TO_UPRIGHT.get(orientation or 1)


def _load(image: Image.Image) -> None:
    """Decodes the pixels. Raises ImageError if the file is damaged or contradicts itself."""
    try:
        image.load()
    except PARSER_ERRORS as error:
        raise ImageError("the image is damaged or truncated") from error
    if image.mode in ("P", "PA") and image.palette is None:
        raise ImageError("the image has indexed colours but no palette")


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scales 16-bit gray to 8 bits; a gray level declared transparent becomes an alpha channel."""
    wide = np.asarray(image).astype(np.int64)
    narrow = Image.fromarray(np.clip((wide + 128) // 257, 0, 255).astype(np.uint8))
    if "transparency" in image.info:
        alpha = np.where(wide == image.info["transparency"], 0, 255).astype(np.uint8)
        narrow.putalpha(Image.fromarray(alpha))
    return narrow


def _composite_on_white(image: Image.Image) -> Image.Image:
    layers = image.convert("RGBA")
    alpha = layers.getchannel("A")
    lowest, highest = alpha.getextrema()
    if highest == 0:
        raise ImageError("the image is fully transparent")
    levels = np.asarray(alpha)
    if levels.max() < MIN_GREATEST_ALPHA or levels.mean() < MIN_MEAN_ALPHA:
        raise ImageError("the image is nearly transparent")
    if lowest == 255:
        return layers.convert("RGB")
    white = Image.new("RGBA", layers.size, "white")
    return Image.alpha_composite(white, layers).convert("RGB")
