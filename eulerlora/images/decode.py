"""Upright sRGB pixels from the bytes of an image file, or from an image that Pillow has opened.

Library, command line, training and service read their images here, so that all of them accept the
same files and see the same pixels.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from io import BytesIO

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import Image, ImageCms
from torch import Tensor

from eulerlora.images import MAX_PIXELS_VARIABLE
from eulerlora_client.colours import (
    BT_709,
    Colours,
    Conversion,
    RgbSpace,
    colours_of,
    conversion_to_srgb,
    converted,
)
from eulerlora_client.image_formats import (
    ORIENTATION,
    PNG_COLOUR_TYPE_AT,
    PNG_SIGNATURE,
    UPRIGHT,
    CodedImage,
    ImageLimits,
    broken,
    check_pixels,
    exif_orientation,
    png_chunk,
    read_image_file,
)
from eulerlora_client.images import PARSER_ERRORS, opened, scale_transparent_gray, upright
from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.errors import ImageError, ImageSizeError, SettingsError

_GREATEST_MAX_PIXELS = 178_000_000
"""Above it, Pillow opens no image."""
_BYTES_PER_PIXEL, _METADATA_BYTES = 8, 2**24
"""Of the largest file with so many pixels: RGB and alpha of 16 bits without compression."""
_REDUCTIONS = (4, 2)
_MIN_REDUCED_SIDES = 3
"""A reduced image has at least this multiple of the network's input on its shorter side."""
_MIN_REDUCED_LONG_SIDE_PX = 896
"""Longer side of a reduced image; the image quality is measured at a seventh of it."""
_MIN_GREATEST_ALPHA, _MIN_MEAN_ALPHA = 128, 25
"""Of 255. Below them, an image on white shows almost nothing of its content."""
_SIXTEEN_BIT_MODES = {"I;16", "I;16B", "I;16L", "I;16N", "I"}
_LEVELS_16_BIT_PER_8_BIT = 257
_MAX_SAMPLE = 65_535
_UNUSED_BITS = 4
_ROWS = 256
"""Rows that are converted at a time; so a large image of 16 bits has no copy in floating point."""

_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_COLOUR_SPACES = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK"}
"""Pillow's mode of a JPEG -> the name in simplejpeg."""
_TURBOJPEG_SAMPLING = {
    *((luma, (1, 1)) for luma in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))),
    *((equal, equal) for equal in ((2, 1), (1, 2), (3, 1), (1, 3))),
    ((2, 2), (2, 1)),
    ((2, 2), (1, 2)),
}
"""Sampling factors of luma and of both chroma components that TurboJPEG reads."""
_SLACK_BYTES = 16
"""By which the end of a JPEG's only scan may differ from the end of its last block."""
_SWAPPING_ORIENTATIONS = range(5, 9)

_GRAY, _RGB, _GRAY_ALPHA, _RGB_ALPHA = 0, 2, 4, 6  # colour types of PNG
_WIDE_NAMES = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGB with alpha"}

_Levels = npt.NDArray[np.uint8]
_Samples = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class RgbImage:
    """An upright sRGB image, pixels (3, height, width) uint8, and the conversions that were made.

    `full_size` is width and height before a reduction; None if it was not reduced.
    """

    pixels: Tensor
    warnings: tuple[PredictionWarning, ...]
    full_size: tuple[int, int] | None = None


def local_limits() -> ImageLimits:
    """Limits of library and training: those of the service, but for small images.

    `--max-pixels`, or the variable EULERLORA_MAX_PIXELS, replaces the limits on large ones. Raises
    SettingsError for another value than a number of pixels.
    """
    usual, given = ImageLimits(min_side=1), os.environ.get(MAX_PIXELS_VARIABLE)
    if given is None:
        return usual
    if not (given.isdecimal() and 0 < int(given) <= _GREATEST_MAX_PIXELS):
        raise SettingsError(
            f"{MAX_PIXELS_VARIABLE}: expected 1 to {_GREATEST_MAX_PIXELS:,} pixels, got {given!r}"
        )
    pixels = int(given)
    return ImageLimits(
        min_side=1,
        max_side=max(pixels, usual.max_side),
        max_pixels=pixels,
        max_jpeg_pixels=max(pixels, usual.max_jpeg_pixels),
    )


def max_file_bytes(limits: ImageLimits) -> int:
    """Size of the largest file that can have an image within the limits."""
    return _BYTES_PER_PIXEL * limits.max_pixels + _METADATA_BYTES


def check_file_size(size: int, limits: ImageLimits) -> None:
    if size > max_file_bytes(limits):
        raise ImageSizeError(
            f"expected a file of at most {max_file_bytes(limits):,} bytes, got {size:,}"
        )


def decode(
    data: bytes, input_side: int | None = None, limits: ImageLimits | None = None
) -> RgbImage:
    """Decodes a JPEG, PNG or WebP file to upright sRGB.

    Colours are converted by the first of cICP, iCCP, sRGB, and gAMA with cHRM that is usable;
    without them, palette, CMYK and gray are converted by Pillow. 16 bits are scaled to 8. Images
    with transparency are composited on white.

    Args:
        data: The file.
        input_side: Of the network's input; a large JPEG is then reduced (`jpeg_reduction`).
        limits: On the size in the header, and on that of a reduced JPEG; None for `local_limits`,
            within which any JPEG may be decoded whole.

    Raises:
        UnsupportedImageError: The file has another format, or is a JPEG that is not read.
        ImageSizeError: Its size is outside the limits.
        ImageError: The file is damaged where its pixels are, contradicts itself, is animated or
            fully transparent.
    """
    if limits is None:
        limits = local_limits()
        max_reduced = limits.max_jpeg_pixels
    else:
        max_reduced = limits.max_pixels
    file = read_image_file(data, limits)
    try:
        if file.header.format == "JPEG":
            return _jpeg(file, input_side, max_reduced)
        if file.depth == 16:
            return _wide_png(file)
        with opened(file) as image:
            image.load()
            scale_transparent_gray(image, file.depth)
            return _rgb_image(image, file.orientation, file.colours)
    except PARSER_ERRORS as error:
        raise broken(file.header.format) from error


def upright_rgb(image: Image.Image) -> RgbImage:
    """Converts an image of Pillow as `decode` its file; of a loaded one the pixels it has.

    Raises ImageError if it is damaged, has no RGB form or is fully transparent.
    """
    try:
        image.load()
    except PARSER_ERRORS as error:
        raise ImageError("the image is damaged or truncated") from error
    orientation = UPRIGHT
    if "exif" in image.info:
        orientation = exif_orientation(image.info["exif"])
    elif hasattr(image, "tag_v2"):  # a TIFF file has the tags of EXIF itself
        orientation = image.tag_v2.get(ORIENTATION, UPRIGHT)
    colours = colours_of(image.info)
    if image.mode == "F":
        raise ImageError("expected 8 or 16 bits per sample, got floating point without a range")
    if image.mode not in _SIXTEEN_BIT_MODES:
        return _rgb_image(image, orientation, colours)
    levels = np.asarray(image)
    if levels.size and not 0 <= levels.min() <= levels.max() <= _MAX_SAMPLE:
        raise ImageError(f"expected gray of 0 to {_MAX_SAMPLE:,}, got more than 16 bits")
    samples = levels.astype(np.uint16)[..., None]
    transparent = (image.info["transparency"],) if "transparency" in image.info else None
    return _wide_image([samples], transparent, orientation, colours)


def jpeg_reduction(size: tuple[int, int], input_side: int) -> int:
    """1, 2 or 4: the factor by which a JPEG of (width, height) pixels is reduced while decoding.

    The decoder then computes fewer coefficients of the blocks of 8 x 8 pixels. Probabilities differ
    from those after a full decode by less than 0.005.
    """
    for factor in _REDUCTIONS:
        shorter, longer = min(size) // factor, max(size) // factor
        if shorter >= _MIN_REDUCED_SIDES * input_side and longer >= _MIN_REDUCED_LONG_SIDE_PX:
            return factor
    return 1


def channels_first(rgb: _Levels) -> Tensor:
    """Copies (height, width, 3) to a contiguous tensor (3, height, width)."""
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def _jpeg(file: CodedImage, input_side: int | None, max_pixels: int) -> RgbImage:
    width, height = file.header.size
    factor = 1 if input_side is None else jpeg_reduction(file.header.size, input_side)
    check_pixels((-(-width // factor), -(-height // factor)), max_pixels)
    mode = _JPEG_MODES[len(file.sampling)]
    pixels = _jpeg_pixels(file, mode, factor)
    conversion = conversion_to_srgb(file.colours, mode)
    if mode == "RGB" and file.orientation == UPRIGHT and conversion.transform is None:
        decoded = RgbImage(channels_first(pixels), conversion.warnings)
    else:
        height, width = pixels.shape[:2]
        image = Image.frombuffer(mode, (width, height), pixels, "raw", mode, 0, 1)
        decoded = _rgb_image(image, file.orientation, file.colours)
    if factor == 1:
        return decoded
    turned = file.orientation in _SWAPPING_ORIENTATIONS
    return replace(decoded, full_size=file.header.size[::-1] if turned else file.header.size)


def _jpeg_pixels(file: CodedImage, mode: str, factor: int) -> _Levels:
    """Pixels of a JPEG reduced by `factor`, which are those that Pillow decodes.

    The segments before the pixels are free of errors, so that all that is left for libjpeg to warn
    of is damage where the pixels are, which Pillow fills with gray; it raises ValueError here.
    """
    luma, *chroma = file.sampling
    if mode != "L" and not (
        len({*chroma[:2]}) == 1
        and (luma, chroma[0]) in _TURBOJPEG_SAMPLING
        and chroma[2:] in ([], [luma])
    ):
        return _unusually_sampled(file, factor)
    width, height = file.header.size
    pixels: _Levels = simplejpeg.decode_jpeg(
        file.content,
        _COLOUR_SPACES[mode],
        min_width=-(-width // factor),
        min_height=-(-height // factor),
    )
    if mode == "CMYK":  # files store inverted inks
        np.subtract(255, pixels, out=pixels)
    return pixels[..., 0] if mode == "L" else pixels


def _unusually_sampled(file: CodedImage, factor: int) -> _Levels:
    """Decodes a JPEG with sampling factors that TurboJPEG does not read.

    Pillow hides the warnings of libjpeg. But without an end marker libjpeg waits for more data:
    it must need the last bytes of a single scan, and no more than those.
    """

    def pixels(jpeg: bytes) -> _Levels:
        with Image.open(BytesIO(jpeg), formats=["JPEG"]) as image:
            image.draft(None, (image.width // factor, image.height // factor))
            return np.array(image)

    if not file.has_single_scan:
        return pixels(file.content)
    scan = file.content[:-2]
    decoded = pixels(scan + bytes(_SLACK_BYTES))
    try:
        pixels(scan[:-_SLACK_BYTES])
    except OSError:
        return decoded
    raise broken("JPEG")


def _rgb_image(
    image: Image.Image,
    orientation: int,
    colours: Colours,
    warnings: Iterable[PredictionWarning] = (),
) -> RgbImage:
    """A decoded image of 8 bits, upright in sRGB; `warnings` state what was converted before."""
    if image.mode in ("P", "PA") and image.palette is None:
        raise ImageError("the image has indexed colours but no palette")
    transparent = image.has_transparency_data
    made = [*warnings]
    if not made and (transparent or image.mode not in ("RGB", "L")):
        made.append(_converted_to_rgb(image.mode))
    try:
        conversion = conversion_to_srgb(colours, image.mode)
        turned = converted(upright(image, orientation), conversion.transform)
        rgb = _composite_on_white(turned) if transparent else turned.convert("RGB")
    except ValueError as error:
        raise ImageError(f"images of mode {image.mode} cannot be converted to RGB") from error
    except PARSER_ERRORS as error:  # such as the transparent colour of another mode
        raise ImageError("the image contradicts its own header") from error
    return RgbImage(channels_first(np.array(rgb)), (*made, *conversion.warnings))


def _converted_to_rgb(mode: str) -> PredictionWarning:
    message = f"converted from {mode} to RGB"
    return PredictionWarning(code=WarningCode.CONVERTED_TO_RGB, message=message)


def _wide_png(file: CodedImage) -> RgbImage:
    planes = _planes(file)
    bands = (_samples(planes, top) for top in range(0, file.header.height, _ROWS))
    count = len(file.transparent) // 2
    transparent = np.frombuffer(file.transparent, ">u2", count).tolist() if count else None
    return _wide_image(bands, transparent, file.orientation, file.colours)


def _planes(file: CodedImage) -> list[Image.Image]:
    """The bytes in a PNG of 16 bits as images; Pillow itself keeps only the high ones.

    Gray is read as 8 bits of gray with alpha, and gray with alpha as RGBA: the bytes of a pixel.
    Of colours, one image has the high bytes and another one the low ones.
    """
    colour_type = file.content[PNG_COLOUR_TYPE_AT]
    if colour_type in (_GRAY, _GRAY_ALPHA):
        as_bytes = bytes([8, _GRAY_ALPHA if colour_type == _GRAY else _RGB_ALPHA])
        start = len(PNG_SIGNATURE) + 8
        header = file.content[start : start + 8] + as_bytes + file.content[start + 10 : start + 13]
        content = PNG_SIGNATURE + png_chunk(b"IHDR", header) + file.content[start + 17 :]
        image = opened(replace(file, content=content))
        image.load()
        return [image]
    planes = (opened(file), opened(file))
    for image, mode in zip(planes, (f"{planes[0].mode};16B", f"{planes[0].mode};16L"), strict=True):
        image.tile = [tile._replace(args=mode) for tile in image.tile]
        image.load()
    return list(planes)


def _samples(planes: Sequence[Image.Image], top: int) -> _Samples:
    width, height = planes[0].size
    levels = [
        np.asarray(plane.crop((0, top, width, min(top + _ROWS, height))), np.uint16)
        for plane in planes
    ]
    high, low = levels if len(levels) == 2 else (levels[0][..., 0::2], levels[0][..., 1::2])
    return np.bitwise_or(np.left_shift(high, 8), low, dtype=np.uint16)


def _wide_image(
    bands: Iterable[_Samples], transparent: Sequence[int] | None, orientation: int, colours: Colours
) -> RgbImage:
    """An image of 16 bits per sample, upright in sRGB.

    `bands` are (rows, width, channels), from top to bottom. `transparent` has the samples of a
    transparent colour. Raises ImageError if only 12 bits are used: scaled to 8, it would be nearly
    black.
    """
    conversion, levels, greatest, channels = None, list[_Levels](), 0, 0
    for samples in bands:
        channels = samples.shape[-1]
        colour = samples[..., : channels - 1 if channels in (2, 4) else channels]
        if conversion is None:
            conversion = conversion_to_srgb(colours, "L" if colour.shape[-1] == 1 else "RGB")
        greatest = max(greatest, int(colour.max()))
        band = [_srgb_levels(colour, conversion)]
        if channels in (2, 4):
            band.append(_rounded(samples[..., -1:]))
        elif transparent is not None:
            is_opaque = (colour != np.array(transparent[:channels])).any(axis=-1, keepdims=True)
            band.append(np.where(is_opaque, 255, 0).astype(np.uint8))
        levels.append(np.concatenate(band, axis=-1))
    assert conversion is not None
    if greatest >> (16 - _UNUSED_BITS) == 0:
        raise ImageError(
            "expected samples from 0 to 65,535 in a file of 16 bits per sample; "
            "all samples are below 4,096, as in data of 12 bits"
        )
    pixels = np.concatenate(levels)
    warnings = list(conversion.warnings)
    if channels != 3 or transparent is not None:
        warnings.insert(0, _converted_to_rgb(f"16 bits of {_WIDE_NAMES[channels]}"))
    squeezed = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return _rgb_image(Image.fromarray(squeezed), orientation, {}, warnings)


def _rounded(samples: _Samples) -> _Levels:
    return ((samples.astype(np.uint32) + 128) // _LEVELS_16_BIT_PER_8_BIT).astype(np.uint8)


def _srgb_levels(colour: _Samples, conversion: Conversion) -> _Levels:
    """Levels of 8 bits in sRGB, (rows, width, 3), or (rows, width, 1) for gray.

    The space of PNG chunks is converted in floating point. Through an ICC profile LittleCMS
    converts levels of 8 bits; between two of them the result is interpolated in every channel. So
    the dark levels of a linear picture keep their steps.
    """
    transform = conversion.transform
    if transform is None:
        return _rounded(colour)
    if conversion.space is not None:
        light = np.take(_light(conversion.space), colour)
        if colour.shape[-1] == 3 and conversion.space.primaries != BT_709:
            light = light @ np.array(conversion.space.to_srgb, np.float32).T
        light *= _MAX_SAMPLE
        light += 0.5
        samples = light.clip(0, _MAX_SAMPLE, out=light).astype(np.uint16)
        return np.take(_levels_of_light(), samples)
    nodes = (colour // _LEVELS_16_BIT_PER_8_BIT).astype(np.uint8)
    shares = colour % _LEVELS_16_BIT_PER_8_BIT / np.float32(_LEVELS_16_BIT_PER_8_BIT)
    start = _transformed(nodes, transform)
    result = start.copy()
    for channel in range(colour.shape[-1]):
        following = nodes.copy()
        np.add(nodes[..., channel], 1, out=following[..., channel], where=nodes[..., channel] < 255)
        result += shares[..., channel, None] * (_transformed(following, transform) - start)
    return result.round().clip(0, 255).astype(np.uint8)


@lru_cache(maxsize=4)
def _light(space: RgbSpace) -> npt.NDArray[np.float32]:
    g, a, b, c, d, f = space.curve
    x = np.arange(_MAX_SAMPLE + 1) / _MAX_SAMPLE
    return np.where(x >= d, (a * x + b).clip(0) ** g, c * x + f).astype(np.float32)


@cache
def _levels_of_light() -> _Levels:
    """The level of sRGB of each amount of light, in steps of 1 / 65,535 (IEC 61966-2-1)."""
    light = np.arange(_MAX_SAMPLE + 1) / _MAX_SAMPLE
    encoded = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return (255 * encoded).round().astype(np.uint8)


def _transformed(levels: _Levels, transform: ImageCms.ImageCmsTransform) -> npt.NDArray[np.float32]:
    image = Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    return np.asarray(converted(image, transform)).astype(np.float32)


def _composite_on_white(image: Image.Image) -> Image.Image:
    layers = image.convert("RGBA")
    alpha = layers.getchannel("A")
    lowest, highest = alpha.getextrema()
    if highest == 0:
        raise ImageError("the image is fully transparent")
    levels = np.asarray(alpha)
    if levels.max() < _MIN_GREATEST_ALPHA or levels.mean() < _MIN_MEAN_ALPHA:
        raise ImageError("the image is nearly transparent")
    if lowest == 255:
        return layers.convert("RGB")
    white = Image.new("RGBA", layers.size, "white")
    return Image.alpha_composite(white, layers).convert("RGB")
