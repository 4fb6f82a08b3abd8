"""Pictures in image files: opened by one parser, upright, and in sRGB."""

import struct
import zlib
from io import BytesIO

from PIL import Image
from PIL.ImageFile import ImageFile as OpenedImage

from eulerlora_contract.colours import conversion_to_srgb, converted
from eulerlora_contract.image_formats import (
    INDEXED,
    PNG_COLOUR_TYPE_AT,
    CodedImage,
    SizeLimits,
    broken,
    read_image_file,
)

# Exceptions of Pillow's parsers for malformed files; the list is a result of fuzzing.
PARSER_ERRORS = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, OverflowError, TypeError,
    struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the transposition that undoes it."""


def opened(file: CodedImage) -> OpenedImage:
    """The image of a file, not decoded yet; Pillow gets no other parser and no metadata.

    A transparent colour or palette becomes Pillow's; that of 16 bits per sample is left out.
    """
    image = Image.open(BytesIO(file.content), formats=[file.header.format])
    if file.transparent and file.depth < 16:
        transparency: object = file.transparent
        if file.content[PNG_COLOUR_TYPE_AT] != INDEXED:
            samples = file.transparent[1::2]
            scale = 255 // (2**file.depth - 1)  # of gray; Pillow scales its pixels alone
            transparency = tuple(samples) if len(samples) == 3 else samples[0] * scale
        image.info["transparency"] = transparency
    return image


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Applies an EXIF orientation."""
    transposition = _TO_UPRIGHT.get(orientation)
    return image if transposition is None else image.transpose(transposition)


def rgb_image(content: bytes, reduced_side_px: int | None = None) -> Image.Image:
    """The upright picture in a file in sRGB, on white where it is transparent.

    Less strict than what the model reads: damaged pixels may be gray. A JPEG may be reduced to
    `reduced_side_px` on its longer side.

    Raises:
        ImageError: For another format, and for a picture that cannot be decoded.
    """
    file = read_image_file(content, SizeLimits(min_side=1))
    try:
        with opened(file) as image:
            if reduced_side_px is not None:
                image.draft("RGB", (reduced_side_px, reduced_side_px))
            image.load()
            narrow = upright(image, file.orientation)
            if narrow.mode.startswith("I"):  # a plain conversion would clip 16 bits
                narrow = narrow.convert("F").point(lambda level: level * (1 / 257) + 0).convert("L")
            conversion = conversion_to_srgb(file.colours, narrow.mode)
            picture = converted(narrow, conversion.transform)
            layers = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
            plain = Image.new("RGB", layers.size, "white")  # without metadata
            plain.paste(layers, mask=layers if layers.mode == "RGBA" else None)
            return plain
    except PARSER_ERRORS as error:
        raise broken(file.header.format) from error
