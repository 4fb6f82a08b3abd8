"""Upright sRGB pixels from the bytes of an image file, or from an image that Pillow has opened.

Library, command line, training and service read their images here, so that all of them accept the
same files and see the same pixels.
"""

import os
import zlib
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
from eulerlora.images.jpeg_scans import without_stray_bytes
from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.colours import (
    BT_709,
    ColourConversion,
    Colours,
    RgbSpace,
    colours_of,
    conversion_to_srgb,
    converted,
)
from eulerlora_contract.errors import ImageError, ImageSizeError, SettingsError
from eulerlora_contract.image_formats import (
    COLOURS,
    COLOURS_ALPHA,
    GRAY,
    GRAY_ALPHA,
    INDEXED,
    ORIENTATION,
    PNG_COLOUR_TYPE_AT,
    PNG_INTERLACED_AT,
    PNG_SIGNATURE,
    UPRIGHT,
    CodedImage,
    ImageHeader,
    SizeLimits,
    broken,
    check_pixels,
    exif_orientation,
    png_chunk,
    png_chunks,
    read_image_file,
)
from eulerlora_contract.images import PARSER_ERRORS, opened, upright

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
_MIN_GREATEST_SAMPLE = 4096
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
_STRAY_BYTES = "bytes of the JPEG that belong to no pixels are ignored"
_SWAPPING_ORIENTATIONS = range(5, 9)

_CHANNELS = {GRAY: 1, COLOURS: 3, INDEXED: 1, GRAY_ALPHA: 2, COLOURS_ALPHA: 4}
_WHOLE = ((0, 0, 1, 1),)
_INTERLACED = (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)
)  # fmt: skip
"""Passes of a PNG (8.2): the first column and row, and the distances to the next ones."""
_UNPACKED_BYTES = 2**20
_WIDE_NAMES = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGB with alpha"}

_Levels = npt.NDArray[np.uint8]
_Samples = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class RgbImage:
    """An upright sRGB image.

    Attributes:
        pixels: (3, height, width) uint8.
        warnings: Of the conversions that were made.
        full_size: Width and height before a reduction; None if it was not reduced.
    """

    pixels: Tensor
    warnings: tuple[PredictionWarning, ...]
    full_size: tuple[int, int] | None = None


def local_limits() -> SizeLimits:
    """Limits of library and training: those of the service, but for small images.

    `--max-pixels`, or the variable EULERLORA_MAX_PIXELS, replaces the limits on large ones.

    Raises:
        SettingsError: For another value than a number of pixels.
    """
    usual, given = SizeLimits(min_side=1), os.environ.get(MAX_PIXELS_VARIABLE)
    if given is None:
        return usual
    if not (given.isdecimal() and 0 < int(given) <= _GREATEST_MAX_PIXELS):
        raise SettingsError(
            f"{MAX_PIXELS_VARIABLE}: expected 1 to {_GREATEST_MAX_PIXELS:,} pixels, got {given!r}"
        )
    pixels = int(given)
    return SizeLimits(
        min_side=1,
        max_side=max(pixels, usual.max_side),
        max_pixels=pixels,
        max_jpeg_pixels=max(pixels, usual.max_jpeg_pixels),
    )


def max_file_bytes(limits: SizeLimits) -> int:
    """Size of the largest file that can have an image within the limits."""
    return _BYTES_PER_PIXEL * limits.max_pixels + _METADATA_BYTES


def check_file_size(size: int, limits: SizeLimits) -> None:
    """Checks the size of a file in bytes.

    Raises:
        ImageSizeError: If it is over `max_file_bytes`.
    """
    if size > max_file_bytes(limits):
        raise ImageSizeError(
            f"expected a file of at most {max_file_bytes(limits):,} bytes, got {size:,}"
        )


def decode(
    data: bytes, input_side: int | None = None, limits: SizeLimits | None = None
) -> RgbImage:
    """Decodes a JPEG, PNG or WebP file to upright sRGB.

    Colours are converted by the first of cICP, iCCP, sRGB, and gAMA with cHRM that is usable;
    without them, palette, CMYK and gray are converted by Pillow. 16 bits are scaled to 8. Images
    with transparency are composited on white.

    Args:
        data: The file.
        input_side: Of the network's input; a large JPEG is then reduced (`_jpeg_reduction`).
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
        image = _decoded(file, input_side, max_reduced)
    except PARSER_ERRORS as error:
        raise broken(file.header.format) from error
    warnings = [_ignored(part) for part in file.ignored]
    return replace(image, warnings=(*image.warnings, *warnings)) if warnings else image


def _decoded(file: CodedImage, input_side: int | None, max_pixels: int) -> RgbImage:
    if file.header.format == "JPEG":
        return _jpeg(file, input_side, max_pixels)
    if file.header.format == "PNG":
        _check_png_rows(file)
    if file.depth == 16:
        return _wide_png(file)
    with opened(file) as image:
        image.load()
        return _rgb_image(image, file.orientation, file.colours)


def upright_rgb(image: Image.Image) -> RgbImage:
    """Converts the pixels and colours that an image of Pillow has, as `decode` those of a file.

    Pillow does not keep the chunk cICP of a PNG, and fills damaged pixels of many files.

    Raises:
        ImageError: If it is damaged, has no RGB form or is fully transparent.
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


def _jpeg_reduction(size: tuple[int, int], input_side: int) -> int:
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
    factor = 1 if input_side is None else _jpeg_reduction(file.header.size, input_side)
    check_pixels((-(-width // factor), -(-height // factor)), max_pixels)
    mode = _JPEG_MODES[len(file.sampling)]
    pixels, has_stray_bytes = _jpeg_pixels(file, mode, factor)
    conversion = conversion_to_srgb(file.colours, mode)
    if mode == "RGB" and file.orientation == UPRIGHT and conversion.transform is None:
        decoded = RgbImage(channels_first(pixels), conversion.warnings)
    else:
        height, width = pixels.shape[:2]
        image = Image.frombuffer(mode, (width, height), pixels, "raw", mode, 0, 1)
        decoded = _rgb_image(image, file.orientation, file.colours)
    if has_stray_bytes:
        decoded = replace(decoded, warnings=(*decoded.warnings, _ignored(_STRAY_BYTES)))
    if factor == 1:
        return decoded
    turned = file.orientation in _SWAPPING_ORIENTATIONS
    return replace(decoded, full_size=file.header.size[::-1] if turned else file.header.size)


def _jpeg_pixels(file: CodedImage, mode: str, factor: int) -> tuple[_Levels, bool]:
    """Pixels of a JPEG reduced by `factor`, and True if stray bytes were ignored.

    The pixels are those that Pillow decodes. The segments before them are free of errors, so that
    all that is left for libjpeg to warn of is damage of pixels, which Pillow fills with gray; it
    raises ValueError here.
    """
    luma, *chroma = file.sampling
    if mode != "L" and not (
        len({*chroma[:2]}) == 1
        and (luma, chroma[0]) in _TURBOJPEG_SAMPLING
        and chroma[2:] in ([], [luma])
    ):
        content = without_stray_bytes(file.content)
        with Image.open(BytesIO(content), formats=["JPEG"]) as image:
            image.draft(None, (image.width // factor, image.height // factor))
            return np.array(image), content != file.content
    try:
        return _turbojpeg_pixels(file.content, file.header, mode, factor), False
    except ValueError as error:
        if "marker" not in str(error):
            raise
        content = without_stray_bytes(file.content)
        return _turbojpeg_pixels(content, file.header, mode, factor), True


def _turbojpeg_pixels(content: bytes, header: ImageHeader, mode: str, factor: int) -> _Levels:
    pixels: _Levels = simplejpeg.decode_jpeg(
        content,
        _COLOUR_SPACES[mode],
        min_width=-(-header.width // factor),
        min_height=-(-header.height // factor),
    )
    if mode == "CMYK":  # files store inverted inks
        np.subtract(255, pixels, out=pixels)
    return pixels[..., 0] if mode == "L" else pixels


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


def _ignored(part: str) -> PredictionWarning:
    return PredictionWarning(code=WarningCode.DAMAGE_IGNORED, message=part)


def _check_png_rows(file: CodedImage) -> None:
    """Raises ValueError if the compressed data has fewer bytes than the rows of a PNG (7.2, 8.2).

    Pillow leaves missing rows black. What follows the rows is not read.
    """
    width, height = file.header.size
    bits = _CHANNELS[file.content[PNG_COLOUR_TYPE_AT]] * file.depth
    missing = 0
    for left, top, across, down in _INTERLACED if file.content[PNG_INTERLACED_AT] else _WHOLE:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0:
            missing += max(rows, 0) * (1 + -(-columns * bits // 8))
    unpacker = zlib.decompressobj()
    for kind, start, end in png_chunks(file.content):
        packed = file.content[start:end] if kind == b"IDAT" else b""
        while packed and missing > 0 and not unpacker.eof:
            missing -= len(unpacker.decompress(packed, _UNPACKED_BYTES))
            packed = unpacker.unconsumed_tail
    if missing > 0 and missing > len(unpacker.flush()):
        raise ValueError("rows of the PNG are missing")


def _wide_png(file: CodedImage) -> RgbImage:
    planes = _planes(file)
    bands = (_samples(planes, top) for top in range(0, file.header.height, _ROWS))
    transparent = np.frombuffer(file.transparent, ">u2").tolist() or None
    return _wide_image(bands, transparent, file.orientation, file.colours)


def _planes(file: CodedImage) -> list[Image.Image]:
    """The bytes in a PNG of 16 bits as images; Pillow itself keeps only the high ones.

    Gray is read as 8 bits of gray with alpha, and gray with alpha as RGBA: the bytes of a pixel.
    Of colours, one image has the high bytes and another one the low ones.
    """
    colour_type = file.content[PNG_COLOUR_TYPE_AT]
    if colour_type in (GRAY, GRAY_ALPHA):
        as_bytes = bytes([8, GRAY_ALPHA if colour_type == GRAY else COLOURS_ALPHA])
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
    transparent colour. Raises ImageError if they look like data of 12 bits, which would be nearly
    black: they use no more, are no black and no scaled levels of 8 bits, and no profile or chunk
    says how they are encoded.
    """
    conversion, levels, greatest, channels = None, list[_Levels](), 0, 0
    scales = {256, _LEVELS_16_BIT_PER_8_BIT}
    for samples in bands:
        channels = samples.shape[-1]
        colour = samples[..., : channels - 1 if channels in (2, 4) else channels]
        if conversion is None:
            conversion = conversion_to_srgb(colours, "L" if colour.shape[-1] == 1 else "RGB")
        greatest = max(greatest, int(colour.max()))
        if greatest < _MIN_GREATEST_SAMPLE:
            scales = {scale for scale in scales if not (colour % scale).any()}
        band = [_srgb_levels(colour, conversion)]
        if channels in (2, 4):
            band.append(_rounded(samples[..., -1:]))
        elif transparent is not None:
            is_opaque = (colour != np.array(transparent[:channels])).any(axis=-1, keepdims=True)
            band.append(np.where(is_opaque, 255, 0).astype(np.uint8))
        levels.append(np.concatenate(band, axis=-1))
    assert conversion is not None
    if greatest < _MIN_GREATEST_SAMPLE and not scales and conversion.transform is None:
        raise ImageError(
            "expected samples from 0 to 65,535 in a file of 16 bits per sample; "
            f"all samples are below {_MIN_GREATEST_SAMPLE:,}, as in data of 12 bits"
        )
    pixels = np.concatenate(levels)
    warnings = list(conversion.warnings)
    if channels != 3 or transparent is not None:
        warnings.insert(0, _converted_to_rgb(f"16 bits of {_WIDE_NAMES[channels]}"))
    squeezed = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return _rgb_image(Image.fromarray(squeezed), orientation, {}, warnings)


def _rounded(samples: _Samples) -> _Levels:
    return ((samples.astype(np.uint32) + 128) // _LEVELS_16_BIT_PER_8_BIT).astype(np.uint8)


def _srgb_levels(colour: _Samples, conversion: ColourConversion) -> _Levels:
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
