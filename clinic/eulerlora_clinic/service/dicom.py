"""DICOM files: the image inside, as a JPEG or PNG file for the decoder of all images.

An image container of the service (`service.containers`): only files that the setting `images.dicom`
allows get here. Before pydicom parses a file, its class
and transfer syntax must be known ones, so that no deflated data set is ever expanded. No message
contains a value of the file.
"""

import codecs
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from eulerlora_contract.errors import ImageError, UnsupportedImageError
from eulerlora_contract.image_formats import (
    ICC_IDENTIFIER,
    RGB,
    YCC,
    ImageHeader,
    SizeLimits,
    broken,
    check_size,
    read_image_file,
    with_jpeg_transform,
)
from service.containers import ImageContainer

_NAME = "DICOM"
_MAGIC, _MAGIC_AT = b"DICM", 128
_CLASSES = {
    "1.2.840.10008.5.1.4.1.1.77.1.4": "VL Photographic Image Storage",
    "1.2.840.10008.5.1.4.1.1.77.1.7": "Dermoscopic Photography Image Storage",
}
_NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")  # implicit and explicit VR, little-endian
_JPEG = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51")
_JPEG_2000 = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
_SYNTAXES = "uncompressed little-endian, JPEG Baseline or Extended, or JPEG 2000"

_CLASS_EXPECTED = f"expected a DICOM file of {' or '.join(_CLASSES.values())}"
_SYNTAX_EXPECTED = f"expected the DICOM transfer syntax {_SYNTAXES}"
_FRAMES, _BITS, _COLOURS = "a single frame", "8 bits per sample", "RGB or YBR colours"
_SAME_CLASS = "the class of the file meta information"
_NATIVE_COLOURS = "RGB, YBR_FULL or YBR_FULL_422 in uncompressed pixels"
_JPEG_COLOURS = "RGB, YBR_FULL or YBR_FULL_422 in JPEG"
_JPEG_2000_COLOURS = "RGB, YBR_ICT or YBR_RCT in JPEG 2000"
_SAME_SIZE = "a compressed image of the stated size in colour"

_META_GROUP, _CLASS, _SYNTAX = 0x0002, 0x0002, 0x0010  # elements of the file meta information
_LONG_LENGTHS = {b"OB", b"OW", b"UN", b"SQ", b"UT"}
_MAX_META_ELEMENTS = 64

_PIXELS_PER_BYTE: dict[tuple[str, ...], float] = {_NATIVE: 1 / 3, _JPEG: 4.0, _JPEG_2000: 4.0}
"""Of usual files."""
_ATTRIBUTES = (
    "SOPClassUID", "Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation",
    "PlanarConfiguration", "BitsAllocated", "BitsStored", "NumberOfFrames", "ICCProfile",
    "PixelData",
)  # fmt: skip
_PROFILE_CHUNK = 65_519  # bytes of a colour profile in a JPEG segment (ICC.1, annex B.4)


@dataclass(frozen=True)
class _DicomImage:
    """The attributes of the image: `syntax` is _NATIVE, _JPEG or _JPEG_2000."""

    syntax: tuple[str, ...]
    size: tuple[int, int]
    photometric: str
    is_planar: bool
    profile: bytes
    pixel_data: bytes


def _transfer_syntax(data: bytes) -> tuple[str, ...]:
    """_NATIVE, _JPEG or _JPEG_2000, from the file meta information alone.

    Raises:
        UnsupportedImageError: For another class or transfer syntax.
    """
    elements = dict(_meta_elements(data))
    if elements.get(_CLASS) not in _CLASSES:
        raise UnsupportedImageError(_CLASS_EXPECTED)
    for group in (_NATIVE, _JPEG, _JPEG_2000):
        if elements.get(_SYNTAX) in group:
            return group
    raise UnsupportedImageError(_SYNTAX_EXPECTED)


def _unmet(expectation: str) -> ImageError:
    return ImageError(f"{_NAME}: expected {expectation}")


def _meta_elements(data: bytes) -> Iterator[tuple[int, str]]:
    """Yields number and text of the elements of the file meta information (PS3.10, 7.1)."""
    position = _MAGIC_AT + len(_MAGIC)
    for _ in range(_MAX_META_ELEMENTS):
        group = int.from_bytes(data[position : position + 2], "little")
        if group != _META_GROUP:
            return
        number = int.from_bytes(data[position + 2 : position + 4], "little")
        is_long = data[position + 4 : position + 6] in _LONG_LENGTHS
        start, end = (position + 8, position + 12) if is_long else (position + 6, position + 8)
        length = int.from_bytes(data[start:end], "little")
        position = end + length
        yield number, data[end:position][:64].rstrip(b"\0 ").decode("ascii", "replace")


def _parsed(data: bytes, syntax: tuple[str, ...]) -> _DicomImage:
    DICOM.load_library()
    from pydicom import dcmread  # noqa: PLC0415

    try:
        file = dcmread(BytesIO(data), specific_tags=list(_ATTRIBUTES))
        found: dict[str, Any] = {name: file.get(name) for name in _ATTRIBUTES}
        image = _DicomImage(
            syntax,
            (int(found["Columns"]), int(found["Rows"])),
            str(found["PhotometricInterpretation"]),
            found["PlanarConfiguration"] == 1,
            bytes(found["ICCProfile"] or b""),
            bytes(found["PixelData"]),
        )
        expectations = {
            _FRAMES: int(found["NumberOfFrames"] or 1) == 1,
            _BITS: found["BitsAllocated"] == found["BitsStored"] == 8,
            _COLOURS: found["SamplesPerPixel"] == 3,
            _SAME_CLASS: str(found["SOPClassUID"]) in _CLASSES,
        }
    except Exception:  # pydicom raises many types, with values of the file in their messages
        raise broken(_NAME) from None
    for expected, is_met in expectations.items():
        if not is_met:
            raise _unmet(expected)
    return image


def _native_file(image: _DicomImage) -> bytes:
    width, height = image.size
    channels = {"RGB": 3, "YBR_FULL": 3, "YBR_FULL_422": 2}.get(image.photometric)
    if channels is None or (channels == 2 and (width % 2 or image.is_planar)):
        raise _unmet(_NATIVE_COLOURS)
    length = channels * width * height
    if len(image.pixel_data) - length not in (0, 1):  # padded to an even length
        raise broken(_NAME)
    samples = np.frombuffer(image.pixel_data, np.uint8, length)
    if channels == 2:  # Y, Y, B, R of two pixels (PS3.3, C.7.6.3.1.2)
        pairs = samples.reshape(height, width // 2, 4)
        pixels = pairs[..., [[0, 2, 3], [1, 2, 3]]].reshape(height, width, 3)
    elif image.is_planar:
        pixels = samples.reshape(3, height, width).transpose(1, 2, 0)
    else:
        pixels = samples.reshape(height, width, 3)
    mode = "RGB" if image.photometric == "RGB" else "YCbCr"
    return _png(Image.frombytes(mode, image.size, pixels.tobytes()), image.profile)


def _frame(image: _DicomImage) -> bytes:
    from pydicom.encaps import generate_frames  # noqa: PLC0415

    (frame,) = generate_frames(image.pixel_data, number_of_frames=1)
    return bytes(frame)


def _jpeg_file(image: _DicomImage, limits: SizeLimits) -> bytes:
    """The frame with the profile. Its markers say how colours are stored, or the tag."""
    frame = _frame(image)
    file = read_image_file(frame, limits)
    if file.header.size != image.size or len(file.sampling) != 3:
        raise _unmet(_SAME_SIZE)
    if not file.has_colour_marker:
        transforms = {"RGB": RGB, "YBR_FULL": YCC, "YBR_FULL_422": YCC}
        if image.photometric not in transforms:
            raise _unmet(_JPEG_COLOURS)
        frame = with_jpeg_transform(frame, transforms[image.photometric])
    return _with_profile(frame, image.profile)


def _jpeg_2000_file(image: _DicomImage) -> bytes:
    with Image.open(BytesIO(_frame(image)), formats=["JPEG2000"]) as inner:
        if inner.size != image.size or inner.mode != "RGB":
            raise _unmet(_SAME_SIZE)
        if image.photometric not in ("RGB", "YBR_ICT", "YBR_RCT"):
            raise _unmet(_JPEG_2000_COLOURS)
        return _png(inner, image.profile)


def _png(image: Image.Image, profile: bytes) -> bytes:
    file = BytesIO()
    options: dict[str, Any] = {"icc_profile": profile} if profile else {}
    image.convert("RGB").save(file, "PNG", compress_level=0, **options)
    return file.getvalue()


def _with_profile(jpeg: bytes, profile: bytes) -> bytes:
    """Adds a colour profile, unless it is empty or the file has one."""
    if not profile or ICC_IDENTIFIER in jpeg[:_PROFILE_CHUNK]:
        return jpeg
    chunks = [profile[at : at + _PROFILE_CHUNK] for at in range(0, len(profile), _PROFILE_CHUNK)]
    segments = (
        b"\xff\xe2" + (len(chunk) + 16).to_bytes(2, "big") + ICC_IDENTIFIER
        + bytes([number, len(chunks)]) + chunk
        for number, chunk in enumerate(chunks[:255], 1)
    )  # fmt: skip
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


class Dicom:
    """DICOM files (`service.containers.ImageContainer`)."""

    name = _NAME
    media_type = "application/dicom"
    extension = ".dcm"
    cpu_s_per_megapixel = 0.05
    sentences: Sequence[str] = (
        _CLASS_EXPECTED, _SYNTAX_EXPECTED,
        *(f"{_NAME}: expected {one}" for one in (
            _FRAMES, _BITS, _COLOURS, _SAME_CLASS, _NATIVE_COLOURS, _JPEG_COLOURS,
            _JPEG_2000_COLOURS, _SAME_SIZE,
        )),
    )  # fmt: skip

    def is_it(self, data: bytes) -> bool:
        """Compares the magic number of DICOM files (PS3.10, 7.1)."""
        return data[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC

    def read_header(self, data: bytes, limits: SizeLimits) -> ImageHeader:
        """A header with an estimated size; the file meta information does not have the size.

        Raises:
            UnsupportedImageError: For another class or transfer syntax.
        """
        pixels = len(data) * _PIXELS_PER_BYTE[_transfer_syntax(data)]
        side = int(min(pixels, limits.max_pixels) ** 0.5)
        return ImageHeader(_NAME, side, side, is_estimated=True)

    def image_file(self, data: bytes, limits: SizeLimits) -> bytes:
        """The image as a JPEG or PNG file.

        Raises:
            UnsupportedImageError: For another class or transfer syntax.
            ImageError: For another number of images, bit depth or colour space, and a damaged file.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of pydicom have values of the file
            image = _parsed(data, _transfer_syntax(data))
            check_size(ImageHeader(_NAME, *image.size), limits)
            try:
                if image.syntax == _NATIVE:
                    return _native_file(image)
                if image.syntax == _JPEG:
                    return _jpeg_file(image, limits)
                return _jpeg_2000_file(image)
            except ImageError:
                raise
            except Exception:  # of pydicom and Pillow; their messages may have values of the file
                raise broken(_NAME) from None

    def load_library(self) -> None:
        """Imports pydicom and silences it: its messages have values of the file."""
        import pydicom.encaps  # noqa: F401, PLC0415 - an optional dependency
        from pydicom.charset import python_encoding  # noqa: PLC0415

        for encoding in python_encoding.values():
            codecs.lookup(encoding)  # imports it, which a decoder in its sandbox cannot
        logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)


DICOM: ImageContainer = Dicom()
