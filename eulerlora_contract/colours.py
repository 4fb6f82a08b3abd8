"""Colours in sRGB: ICC profiles, and the colour chunks of PNG, converted by LittleCMS.

The order of the chunks is that of the PNG specification, third edition, 4.3: cICP, iCCP, sRGB, and
gAMA with cHRM. Where it leaves a choice, Chromium's is taken, so that a model sees what a page
shows. The chunks become ICC profiles of a matrix and a tone curve.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import product
from typing import Any

from PIL import Image, ImageChops, ImageCms

from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.errors import ImageError

_INPUT_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}
"""Colour space of a profile -> the mode from which LittleCMS converts."""

_CONVERTIBLE = {
    "RGB": {"1", "L", "LA", "P", "PA", "RGB", "RGBA"},
    "L": {"1", "L", "LA"},
    "CMYK": {"CMYK"},
}
"""Input mode -> the modes of images whose profile may have that colour space."""

_MAX_SRGB_DIFFERENCE = 1  # of 255 levels; published sRGB profiles differ in their rounding
_GRID = bytes(level for colour in product(range(0, 256, 17), repeat=3) for level in colour)
"""Colours with 16 levels of each channel."""
_MAX_CACHED_BYTES = 2**16  # profiles of cameras have a few kB; with tables for inks, up to 2 MB

_SOURCES = {"cICP": "PNG chunk cICP", "iCCP": "colour profile", "gAMA": "PNG chunk gAMA"}
"""What a warning calls the source of a conversion."""

_Matrix = Sequence[Sequence[float]]
_D50 = (0.9642, 1.0, 0.8249)  # the profile connection space
_BRADFORD = ((0.8951, 0.2664, -0.1614), (-0.7502, 1.7135, 0.0367), (0.0389, -0.0685, 1.0296))
_D65, _WHITE_C, _EQUAL_ENERGY = (0.3127, 0.3290), (0.310, 0.316), (1 / 3, 1 / 3)
BT_709 = (*_D65, 0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
_BT_601 = (*_D65, 0.630, 0.340, 0.310, 0.595, 0.155, 0.070)
_PRIMARIES = {
    1: BT_709,
    4: (*_WHITE_C, 0.67, 0.33, 0.21, 0.71, 0.14, 0.08),
    5: (*_D65, 0.64, 0.33, 0.29, 0.60, 0.15, 0.06),
    6: _BT_601,
    7: _BT_601,
    8: (*_WHITE_C, 0.681, 0.319, 0.243, 0.692, 0.145, 0.049),
    9: (*_D65, 0.708, 0.292, 0.170, 0.797, 0.131, 0.046),
    10: (*_EQUAL_ENERGY, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0),
    11: (0.314, 0.351, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060),
    12: (*_D65, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060),
    22: (*_D65, 0.630, 0.340, 0.295, 0.605, 0.155, 0.077),
}
"""Code of ITU-T H.273, table 2 -> chromaticities (x, y) of white, red, green and blue."""
_BT_1886 = (2.4, 1.0, 0.0, 0.0, 0.0)  # what screens make of the curves of cameras
_TRANSFERS = {
    **dict.fromkeys((1, 6, 11, 14, 15), _BT_1886),
    4: (2.2, 1.0, 0.0, 0.0, 0.0),
    5: (2.8, 1.0, 0.0, 0.0, 0.0),
    7: (1 / 0.45, 1 / 1.1115, 0.1115 / 1.1115, 1 / 4, 0.0913),
    8: (1.0, 1.0, 0.0, 0.0, 0.0),
    13: (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045),
    17: (2.6, (52.37 / 48) ** (1 / 2.6), 0.0, 0.0, 0.0),
}
"""Code of ITU-T H.273, table 3 -> g, a, b, c, d: light is (a x + b) ** g from x = d, else c x."""
_HIGH_DYNAMIC_RANGE = {16: "PQ", 18: "HLG"}
_NARROW_LOW, _NARROW_HIGH = 16 / 255, 235 / 255
_USUAL_GAMMA, _GAMMA_TOLERANCE = 1 / 2.2, 0.05
"""A gAMA within the tolerance, without cHRM, means sRGB, as for libpng and Chromium."""
_MIN_GAMMA, _MAX_GAMMA = 0.1, 10.0
_CHROMATICITY_UNIT = 100_000

Colours = Mapping[str, bytes | None]
"""Contents by the name of a PNG chunk; `iCCP` has an unpacked profile, None for a damaged one."""


class _ProfileError(Exception):
    """Colour data cannot be used; the message is the reason."""


@dataclass(frozen=True)
class RgbSpace:
    """A colour space.

    Attributes:
        primaries: As `_PRIMARIES`.
        transfer: Tone curve, as `_TRANSFERS`.
        is_full_range: False if black and white are 16 and 235 of 255.
    """

    primaries: tuple[float, ...]
    transfer: tuple[float, ...]
    is_full_range: bool = True

    @property
    def curve(self) -> tuple[float, ...]:
        """g, a, b, c, d, f: light is (a x + b) ** g from x = d, else c x + f; x is in [0, 1]."""
        g, a, b, c, d = self.transfer
        slope = 1.0 if self.is_full_range else 1 / (_NARROW_HIGH - _NARROW_LOW)
        offset = 0.0 if self.is_full_range else -slope * _NARROW_LOW
        return g, a * slope, a * offset + b, c * slope, (d - offset) / slope, c * offset

    @property
    def to_srgb(self) -> _Matrix:
        """The matrix from linear RGB to that of sRGB. Raises _ProfileError."""
        return _product(_inverse(_to_d50(BT_709)), _to_d50(self.primaries))


@dataclass(frozen=True)
class ColourConversion:
    """How the colours of an image become sRGB.

    Attributes:
        transform: Of LittleCMS, for levels of 8 bits; None if no colour changes.
        space: Of PNG chunks, for more bits.
        warnings: Of what is converted or ignored.
    """

    transform: ImageCms.ImageCmsTransform | None
    space: RgbSpace | None
    warnings: tuple[PredictionWarning, ...]


def conversion_to_srgb(colours: Colours, mode: str) -> ColourConversion:
    """Chooses the first usable colour data of an image of a mode of 8 bits.

    The intent is perceptual, with black point compensation for CMYK.

    Raises:
        ImageError: For a transfer function of high dynamic range, whose look depends on the screen.
    """
    warnings = []
    for source in ("cICP", "iCCP", "sRGB", "gAMA"):
        if source not in colours:
            continue
        try:
            found = _profile(source, colours)
            space = found if isinstance(found, RgbSpace) else None
            profile = _matrix_profile(found) if isinstance(found, RgbSpace) else found
            transform = None
            if profile is not None:
                cached = len(profile) <= _MAX_CACHED_BYTES
                transform = (_cached_transform if cached else _new_transform)(profile)
            if transform is not None and mode not in _CONVERTIBLE[transform.input_mode]:
                raise _ProfileError(f"it is for {transform.input_mode} and the image is {mode}")
        except _ProfileError as error:
            message = f"the {_SOURCES.get(source, f'PNG chunk {source}')} is ignored: {error}"
            warnings.append(PredictionWarning(code=WarningCode.PROFILE_IGNORED, message=message))
            continue
        if transform is not None:
            message = f"converted from the embedded {_SOURCES[source]} to sRGB"
            code = WarningCode.CONVERTED_TO_SRGB
            warnings.append(PredictionWarning(code=code, message=message))
        return ColourConversion(transform, space, tuple(warnings))
    return ColourConversion(None, None, tuple(warnings))


def converted(image: Image.Image, transform: ImageCms.ImageCmsTransform | None) -> Image.Image:
    """Applies a transform to an image of 8 bits; without one, it is the image itself.

    A converted image has the mode RGB or RGBA and keeps its alpha channel.
    """
    if transform is None:
        return image
    result: Image.Image = transform.apply(image.convert(transform.input_mode))
    if image.has_transparency_data:
        result.putalpha(image.convert("RGBA").getchannel("A"))
    return result


def colours_of(info: Mapping[str | tuple[int, int], Any]) -> Colours:
    """The colour data in `Image.info` of an image that Pillow has opened."""
    colours: dict[str, bytes | None] = {}
    if "icc_profile" in info and info["icc_profile"] != b"":
        colours["iCCP"] = info["icc_profile"]
    if "srgb" in info:
        colours["sRGB"] = bytes([info["srgb"]])
    if "gamma" in info:
        colours["gAMA"] = struct.pack(">I", round(_CHROMATICITY_UNIT * info["gamma"]))
    if "chromaticity" in info:
        values = (round(_CHROMATICITY_UNIT * value) for value in info["chromaticity"])
        colours["cHRM"] = struct.pack(">8I", *values)
    return colours


def _profile(source: str, colours: Colours) -> bytes | RgbSpace | None:
    """An ICC profile or a space; None for sRGB. Raises _ProfileError and ImageError."""
    content = colours[source]
    if content is None:
        raise _ProfileError("it is damaged, incomplete or there are several")
    if source == "iCCP":
        if not content:
            raise _ProfileError("it is empty")
        return content
    if source == "cICP":
        return _space_of_codes(content)
    if source == "sRGB":
        if len(content) != 1 or content[0] > 3:
            raise _ProfileError("it has no rendering intent")
        return None
    return _space_of_gamma(content, colours.get("cHRM") or b"")


def _space_of_codes(content: bytes) -> RgbSpace:
    """The content has ITU-T H.273 codes of primaries and transfer, and the range."""
    if len(content) != 4 or content[2] != 0 or content[3] > 1:
        raise _ProfileError("it is damaged")
    primaries, transfer, _, is_full_range = content
    if transfer in _HIGH_DYNAMIC_RANGE:
        raise ImageError(
            "expected a PNG of standard dynamic range; its transfer function is "
            f"{_HIGH_DYNAMIC_RANGE[transfer]}, whose look depends on the screen"
        )
    if primaries not in _PRIMARIES or transfer not in _TRANSFERS:
        raise _ProfileError("its codes are unknown")
    return RgbSpace(_PRIMARIES[primaries], _TRANSFERS[transfer], bool(is_full_range))


def _space_of_gamma(content: bytes, chromaticities: bytes) -> RgbSpace | None:
    """The space of gAMA with cHRM, or with the primaries of sRGB; None for sRGB."""
    gamma = int.from_bytes(content) / _CHROMATICITY_UNIT if len(content) == 4 else 0
    if not _MIN_GAMMA <= gamma <= _MAX_GAMMA:
        raise _ProfileError("its exponent is none of an image")
    has_primaries = len(chromaticities) == 32
    if not has_primaries and abs(gamma / _USUAL_GAMMA - 1) <= _GAMMA_TOLERANCE:
        return None
    values = struct.unpack(">8I", chromaticities) if has_primaries else ()
    primaries = tuple(value / _CHROMATICITY_UNIT for value in values) or BT_709
    return RgbSpace(primaries, (1 / gamma, 1.0, 0.0, 0.0, 0.0))


def _to_d50(primaries: Sequence[float]) -> _Matrix:
    """The matrix from linear RGB to XYZ relative to D50, adapted by Bradford.

    Raises _ProfileError for primaries that span no colours.
    """
    points = zip(primaries[::2], primaries[1::2], strict=True)
    (x, y, z), *columns = ((x, y, 1 - x - y) for x, y in points)
    try:
        white = (x / y, 1.0, z / y)
        native = _transposed(columns)
        amounts = [row[0] for row in _product(_inverse(native), _transposed([white]))]
        cones = _product(_BRADFORD, _transposed([_D50, white]))
        gains = [to / of for to, of in cones]
        scaled = [
            [gain * value for value in row] for gain, row in zip(gains, _BRADFORD, strict=True)
        ]
        adapted = _product(_product(_inverse(_BRADFORD), scaled), native)
    except ZeroDivisionError as error:
        raise _ProfileError("its primaries span no colours") from error
    return [[value * amount for value, amount in zip(row, amounts, strict=True)] for row in adapted]


def _matrix_profile(space: RgbSpace) -> bytes:
    """A display profile (ICC.1:2010, 8.4.3). Raises _ProfileError."""
    g, a, b, c, d, f = space.curve
    try:
        colorants = [_xyz_tag(column) for column in _transposed(_to_d50(space.primaries))]
        curve = b"para" + struct.pack(">4xH2x", 4) + _fixed(g, a, b, c, d, 0.0, f)
    except struct.error as error:
        raise _ProfileError("its primaries span no colours") from error
    names = (b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC", b"wtpt")
    contents = (*colorants, curve, curve, curve, _xyz_tag(_D50))
    at, directory = 132 + 12 * len(names), struct.pack(">I", len(names))
    for name, content in zip(names, contents, strict=True):
        directory += name + struct.pack(">II", at, len(content))
        at += len(content)
    header = struct.pack(
        ">I4sI4s4s4s12x4s28x", at, b"lcms", 0x04300000, b"mntr", b"RGB ", b"XYZ ", b"acsp"
    )
    return header + _fixed(*_D50) + bytes(48) + directory + b"".join(contents)


def _fixed(*values: float) -> bytes:
    """Numbers of the type s15Fixed16."""
    return struct.pack(f">{len(values)}i", *(round(65536 * value) for value in values))


def _xyz_tag(values: Sequence[float]) -> bytes:
    return b"XYZ " + bytes(4) + _fixed(*values)


def _transposed(matrix: _Matrix) -> _Matrix:
    return list(zip(*matrix, strict=True))


def _product(left: _Matrix, right: _Matrix) -> _Matrix:
    columns = _transposed(right)
    return [[sum(a * b for a, b in zip(row, c, strict=True)) for c in columns] for row in left]


def _inverse(matrix: _Matrix) -> _Matrix:
    """Of a 3 x 3 matrix. Raises ZeroDivisionError if it has none."""
    (a, b, c), (d, e, f), (g, h, i) = matrix
    cofactors = (
        (e * i - f * h, c * h - b * i, b * f - c * e),
        (f * g - d * i, a * i - c * g, c * d - a * f),
        (d * h - e * g, b * g - a * h, a * e - b * d),
    )
    determinant = a * cofactors[0][0] + b * cofactors[1][0] + c * cofactors[2][0]
    return [[value / determinant for value in row] for row in cofactors]


def _new_transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        space = source.profile.xcolor_space
        if space not in _INPUT_MODES:
            raise _ProfileError("it is not one of an RGB, gray or CMYK image")
        srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
        transform = ImageCms.ImageCmsTransform(source, srgb, _INPUT_MODES[space], "RGB")
    except (OSError, ValueError) as error:
        raise _ProfileError("it is damaged") from error
    return None if _is_identity(transform) else transform


_cached_transform = lru_cache(maxsize=16)(_new_transform)


def _is_identity(transform: ImageCms.ImageCmsTransform) -> bool:
    """True if all colours of a grid keep their levels, up to the rounding of sRGB profiles."""
    if transform.input_mode == "CMYK":
        return False
    levels = _GRID if transform.input_mode == "RGB" else bytes(range(256))
    channels = len(transform.input_mode)
    image = Image.frombytes(transform.input_mode, (len(levels) // channels, 1), levels)
    difference = ImageChops.difference(transform.apply(image), image.convert("RGB"))
    return difference.point(lambda level: level > _MAX_SRGB_DIFFERENCE).getbbox() is None
