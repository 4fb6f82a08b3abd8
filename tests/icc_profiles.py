"""Minimal ICC profiles, and the conversion to sRGB that they define, from published figures.

The profiles hold a matrix and a tone curve per channel (ICC.1:2001-04, 6.3.1.2). The conversion is
the same formula in numpy, without a colour library.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Chromaticity = tuple[float, float]

D50 = np.array([0.9642, 1.0, 0.8249])  # the profile connection space
D65: Chromaticity = (0.3127, 0.3290)
INK_GRID = 9  # points per ink in the table of a CMYK profile
BRADFORD = np.array(
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)


@dataclass(frozen=True)
class RgbSpace:
    """An RGB colour space.

    primaries: chromaticities of red, green and blue. white: of the white point. gamma: of the tone
    curve, None for that of sRGB.
    """

    name: str
    primaries: tuple[Chromaticity, Chromaticity, Chromaticity]
    white: Chromaticity
    gamma: float | None

    def linear(self, levels: Floats) -> Floats:
        """Light in [0, 1] for encoded levels in [0, 1]."""
        return srgb_to_linear(levels) if self.gamma is None else levels**self.gamma

    @property
    def to_d50(self) -> Floats:
        """The matrix from linear RGB to XYZ relative to D50, white-adapted by Bradford."""
        columns = np.stack([xyz(point) for point in self.primaries], axis=1)
        white = xyz(self.white)
        native = columns * np.linalg.solve(columns, white)
        cones = (BRADFORD @ D50) / (BRADFORD @ white)
        return np.asarray(np.linalg.inv(BRADFORD) @ np.diag(cones) @ BRADFORD @ native)


SRGB = RgbSpace("sRGB", ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06)), D65, None)  # IEC 61966-2-1
DISPLAY_P3 = RgbSpace(
    "Display P3", ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060)), D65, None
)  # SMPTE EG 432-1 primaries, with the curve of sRGB
ADOBE_RGB = RgbSpace(
    "Adobe RGB (1998)", ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06)), D65, 2.19921875
)
PROPHOTO = RgbSpace(
    "ProPhoto RGB", ((0.7347, 0.2653), (0.1596, 0.8404), (0.0366, 0.0001)), (0.3457, 0.3585), 1.8
)  # ISO 22028-2 (ROMM), without its linear part near black
WIDE_SPACES = (DISPLAY_P3, ADOBE_RGB, PROPHOTO)


def xyz(point: Chromaticity) -> Floats:
    """XYZ with Y = 1."""
    x, y = point
    return np.array([x / y, 1.0, (1 - x - y) / y])


def srgb_to_linear(levels: Floats) -> Floats:
    """The tone curve of IEC 61966-2-1."""
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


def linear_to_srgb(light: Floats) -> Floats:
    """The inverse of `srgb_to_linear`, for light in [0, 1]."""
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def in_srgb(pixels: npt.NDArray[np.uint8], space: RgbSpace) -> Floats:
    """(..., 3) levels of sRGB in [0, 255], not rounded; colours outside are clipped."""
    to_srgb = np.linalg.inv(SRGB.to_d50) @ space.to_d50
    light = space.linear(pixels / 255) @ to_srgb.T
    return 255 * linear_to_srgb(np.clip(light, 0, 1))


def rgb_profile(space: RgbSpace) -> bytes:
    """A display profile with a matrix and tone curves."""
    colorants = {
        tag: _xyz_tag(column)
        for tag, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), space.to_d50.T, strict=True)
    }
    curve = _curve_tag(space.linear, space.gamma)
    curves = dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    return _profile(b"RGB ", space.name, colorants | curves)


def gray_profile(gamma: float) -> bytes:
    """A display profile of one gray channel."""
    return _profile(b"GRAY", f"Gray gamma {gamma}", {b"kTRC": _curve_tag(lambda v: v, gamma)})


def cmyk_profile(paper: Callable[[Floats], Floats]) -> bytes:
    """Returns a printer profile with a table of `paper` on a grid of inks.

    paper: maps inks (..., 4) in [0, 1] to XYZ relative to D50.
    """
    axis = np.linspace(0, 1, INK_GRID)
    inks = np.stack(np.meshgrid(*[axis] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    table = np.round(np.clip(paper(inks), 0, 1.99) * 32768).astype(">u2").tobytes()
    identity = np.array([0, 65535], ">u2").tobytes()
    matrix = struct.pack(">9i", *(65536 * np.eye(3, dtype=int)).flatten())
    header = (
        b"mft2"
        + bytes(4)
        + struct.pack(">BBBx", 4, 3, INK_GRID)
        + matrix
        + struct.pack(">HH", 2, 2)
    )
    lut = header + identity * 4 + table + identity * 3
    return _profile(b"CMYK", "four inks", {b"A2B0": lut}, device_class=b"prtr")


def _xyz_tag(value: Floats) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *np.round(65536 * value).astype(int))


def _curve_tag(linear: Callable[[Floats], Floats], gamma: float | None) -> bytes:
    if gamma is not None:
        return b"curv" + bytes(4) + struct.pack(">IHxx", 1, round(256 * gamma))
    table = np.round(65535 * linear(np.linspace(0, 1, 4096))).astype(">u2")
    return b"curv" + bytes(4) + struct.pack(">I", len(table)) + table.tobytes()


def _text_tag(name: str) -> bytes:
    text = name.encode() + b"\0"
    return b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(78)


def _profile(
    space: bytes, name: str, tags: dict[bytes, bytes], device_class: bytes = b"mntr"
) -> bytes:
    tags = {b"desc": _text_tag(name), b"wtpt": _xyz_tag(D50), **tags}
    directory, body, at = b"", b"", 128 + 4 + 12 * len(tags)
    for tag, content in tags.items():
        padded = content + bytes(-len(content) % 4)
        directory += tag + struct.pack(">II", at + len(body), len(content))
        body += padded
    rest = struct.pack(">I", len(tags)) + directory + body
    header = struct.pack(
        ">I4sI4s4s4s12x4s28x3i48x",
        128 + len(rest), b"lcms", 0x02400000, device_class, space, b"XYZ ", b"acsp",
        *np.round(65536 * D50).astype(int),
    )  # fmt: skip
    assert len(header) == 128
    return header + rest
