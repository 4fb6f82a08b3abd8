"""PNG: colours of its chunks against numpy and Chromium, 16 bits, animations and text."""

import re
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from eulerlora.images.decode import decode
from eulerlora_contract.answers import WarningCode
from eulerlora_contract.errors import ImageError
from eulerlora_contract.images import rgb_image
from tests.browser import chromium
from tests.damaged_images import PNG_SIGNATURE, png_chunk
from tests.icc_profiles import (
    ADOBE_RGB,
    D65,
    DISPLAY_P3,
    SRGB,
    RgbSpace,
    in_srgb,
    linear_to_srgb,
    rgb_profile,
    srgb_to_linear,
)

Floats = npt.NDArray[np.float64]
BT_2020 = RgbSpace("BT.2020", ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046)), D65, None)
LINEAR = RgbSpace("linear sRGB", SRGB.primaries, D65, 1.0)


def png(
    levels: Floats, depth: int, *chunks: bytes, after: bytes = b"", colour_type: int = 2
) -> bytes:
    """Levels (height, width, channels) in [0, 1]; chunks precede the pixels."""
    samples = np.round(levels.clip(0, 1) * (2**depth - 1)).astype(">u2" if depth == 16 else "u1")
    height, width = levels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in samples))
    parts = (png_chunk(b"IHDR", header), *chunks, png_chunk(b"IDAT", rows), after)
    return PNG_SIGNATURE + b"".join(parts) + png_chunk(b"IEND", b"")


def gamma(value: int) -> bytes:
    return png_chunk(b"gAMA", struct.pack(">I", value))


def chromaticities(space: RgbSpace) -> bytes:
    values = [
        round(100_000 * value) for point in (space.white, *space.primaries) for value in point
    ]
    return png_chunk(b"cHRM", struct.pack(">8I", *values))


def cicp(*codes: int) -> bytes:
    return png_chunk(b"cICP", bytes(codes))


def iccp(profile: bytes) -> bytes:
    return png_chunk(b"iCCP", b"name\0\0" + zlib.compress(profile))


INTENT = png_chunk(b"sRGB", b"\0")


def picture(seed: int = 0) -> Floats:
    """sRGB in [0, 1] with dark colours: (24, 32, 3)."""
    return np.random.default_rng(seed).uniform(0, 1, (24, 32, 3)) ** 2


def pixels_of(content: bytes) -> npt.NDArray[np.uint8]:
    return decode(content).pixels.permute(1, 2, 0).numpy()


def encode(levels: Floats, space: RgbSpace, curve: Callable[[Floats], Floats]) -> Floats:
    to_space = np.linalg.inv(space.to_d50) @ SRGB.to_d50
    return curve((srgb_to_linear(levels) @ to_space.T).clip(0, 1))


def power(exponent: float) -> Callable[[Floats], Floats]:
    return lambda light: light ** (1 / exponent)


def narrow(levels: Floats) -> Floats:
    """Black and white as 16 and 235 of 255."""
    return (16 + 219 * linear_to_srgb(levels)) / 255


ENCODINGS = {
    "gAMA 1.0": (SRGB, power(1.0), [gamma(100_000)]),
    "gAMA 1/1.8": (SRGB, power(1.8), [gamma(55_556)]),
    "gAMA 1/2.2 with cHRM": (SRGB, power(2.2), [chromaticities(SRGB), gamma(45_455)]),
    "gAMA 1/2.6 with cHRM": (ADOBE_RGB, power(2.6), [gamma(38_462), chromaticities(ADOBE_RGB)]),
    "cICP BT.2020": (BT_2020, linear_to_srgb, [cicp(9, 13, 0, 1)]),
    "cICP Display P3": (DISPLAY_P3, linear_to_srgb, [cicp(12, 13, 0, 1)]),
    "cICP linear": (SRGB, power(1.0), [cicp(1, 8, 0, 1)]),
    "cICP gamma 2.2": (SRGB, power(2.2), [cicp(1, 4, 0, 1)]),
    "cICP of video": (BT_2020, power(2.4), [cicp(9, 14, 0, 1)]),
    "cICP narrow": (SRGB, narrow, [cicp(1, 13, 0, 0)]),
    "iCCP Display P3": (DISPLAY_P3, linear_to_srgb, [iccp(rgb_profile(DISPLAY_P3))]),
    "iCCP linear": (SRGB, power(1.0), [iccp(rgb_profile(LINEAR))]),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_16_bits_of_another_encoding_are_the_picture_in_srgb(name: str) -> None:
    space, curve, chunks = ENCODINGS[name]
    actual = decode(png(encode(picture(), space, curve), 16, *chunks))
    error = np.abs(actual.pixels.permute(1, 2, 0).numpy() - 255 * picture())
    if name.startswith("iCCP"):  # LittleCMS converts 8 bits, which clips colours out of sRGB
        assert np.quantile(error, 0.99) <= 2
    else:
        assert error.max() <= 1
    assert [warning.code for warning in actual.warnings] == [WarningCode.CONVERTED_TO_SRGB]


@pytest.mark.parametrize(
    ("space", "chunk"), [(DISPLAY_P3, cicp(12, 13, 0, 1)), (BT_2020, cicp(9, 13, 0, 1))]
)
def test_8_bits_are_converted_as_by_the_formula(space: RgbSpace, chunk: bytes) -> None:
    content = png(picture(), 8, chunk)
    expected = in_srgb(np.round(255 * picture()).astype(np.uint8), space)
    assert np.abs(pixels_of(content) - expected).max() <= 1


UNCHANGED = {
    "nothing": [],
    "gAMA of about 1/2.2": [gamma(45_455)],
    "cHRM alone": [chromaticities(ADOBE_RGB)],
    "sRGB before gAMA": [gamma(100_000), INTENT],
    "cICP of sRGB before iCCP": [iccp(rgb_profile(DISPLAY_P3)), cicp(1, 13, 0, 1)],
    "iCCP of sRGB before gAMA": [gamma(100_000), iccp(rgb_profile(SRGB))],
}


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("name", UNCHANGED)
def test_srgb_is_not_converted(name: str, depth: int) -> None:
    actual = decode(png(picture(), depth, *UNCHANGED[name]))
    expected = np.round(255 * picture())
    assert np.abs(actual.pixels.permute(1, 2, 0).numpy() - expected).max() == 0
    assert actual.warnings == ()


def test_chunks_behind_the_pixels_are_ignored() -> None:
    later = gamma(100_000) + cicp(9, 13, 0, 1) + iccp(rgb_profile(DISPLAY_P3))
    assert np.array_equal(pixels_of(png(picture(), 8, after=later)), pixels_of(png(picture(), 8)))


UNUSABLE = {
    "cICP with a matrix": cicp(9, 13, 1, 1),
    "cICP of unknown primaries": cicp(3, 13, 0, 1),
    "cICP of an unknown curve": cicp(9, 2, 0, 1),
    "a short cICP": cicp(9, 13),
    "a broken iCCP": iccp(b"broken"),
    "an empty iCCP": iccp(b""),
    "an iCCP that cannot be unpacked": png_chunk(b"iCCP", b"name\0\0garbage"),
    "an iCCP of another method": png_chunk(b"iCCP", b"name\0\1" + zlib.compress(b"profile")),
    "an iCCP without a name": png_chunk(b"iCCP", b"\0\0" + zlib.compress(b"profile")),
    "a cut iCCP": png_chunk(b"iCCP", b"name\0\0" + zlib.compress(rgb_profile(DISPLAY_P3))[:99]),
    "an sRGB without intent": png_chunk(b"sRGB", b""),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_the_next_chunk_counts_if_one_cannot_be_used(name: str) -> None:
    linear = encode(picture(), SRGB, power(1.0))
    actual = decode(png(linear, 16, UNUSABLE[name], gamma(100_000)))
    assert np.abs(actual.pixels.permute(1, 2, 0).numpy() - 255 * picture()).max() <= 1
    codes = [warning.code for warning in actual.warnings]
    assert codes == [WarningCode.PROFILE_IGNORED, WarningCode.CONVERTED_TO_SRGB]


@pytest.mark.parametrize(
    "chunks",
    [
        [gamma(0)], [gamma(1)], [gamma(2**31)], [png_chunk(b"gAMA", b"\0")],
        [gamma(100_000), png_chunk(b"cHRM", bytes(32))],
    ],
)  # fmt: skip
def test_an_exponent_or_primaries_of_no_image_are_ignored_with_a_warning(chunks) -> None:
    actual = decode(png(picture(), 8, *chunks))
    assert np.array_equal(actual.pixels.permute(1, 2, 0).numpy(), pixels_of(png(picture(), 8)))
    assert [warning.code for warning in actual.warnings] == [WarningCode.PROFILE_IGNORED]


@pytest.mark.parametrize("transfer", [16, 18], ids=["PQ", "HLG"])
def test_high_dynamic_range_is_refused(transfer: int) -> None:
    with pytest.raises(ImageError):
        decode(png(picture(), 16, cicp(9, transfer, 0, 1)))


def padded(profile: bytes, size: int) -> bytes:
    """Appends bytes that do not compress."""
    noise = np.random.default_rng(0).bytes(size - len(profile))
    return struct.pack(">I", size) + profile[4:] + noise


def test_a_profile_of_megabytes_is_read_up_to_a_limit() -> None:
    profile = rgb_profile(DISPLAY_P3)
    expected = pixels_of(png(picture(), 8, iccp(profile)))
    assert np.array_equal(pixels_of(png(picture(), 8, iccp(padded(profile, 3_000_000)))), expected)
    with pytest.raises(ImageError, match="16 MiB"):
        decode(png(picture(), 8, iccp(profile + bytes(2**24))))


@pytest.mark.parametrize("colour_type", [0, 4, 6], ids=["gray", "gray with alpha", "RGBA"])
def test_16_bits_with_gray_or_alpha_are_read_exactly(colour_type: int) -> None:
    channels = {0: 1, 4: 2, 6: 4}[colour_type]
    levels = np.random.default_rng(1).uniform(0, 1, (300, 20, channels))
    if channels in (2, 4):
        levels[..., -1] = 1
    actual = decode(png(levels, 16, gamma(100_000), colour_type=colour_type))
    colours = levels[..., :3] if channels == 4 else levels[..., :1]
    expected = 255 * linear_to_srgb(np.broadcast_to(colours, (300, 20, 3)))
    assert np.abs(actual.pixels.permute(1, 2, 0).numpy() - expected).max() <= 1


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_transparent_gray_is_white_at_every_depth(depth: int) -> None:
    level = 255 // (2**depth - 1)  # of 255; also a byte of pixels of level 1 without the scale
    rows = bytes([0] * (1 + depth)) + bytes([0] + [level] * depth)  # eight pixels of 0, and of 1
    header = struct.pack(">IIBBBBB", 8, 2, depth, 0, 0, 0, 0)
    data = zlib.compress(rows)
    for transparent, expected in ((0, [255, level]), (1, [0, 255])):
        chunks = [(b"IHDR", header), (b"tRNS", struct.pack(">H", transparent)), (b"IDAT", data)]
        content = PNG_SIGNATURE + b"".join(
            png_chunk(kind, part) for kind, part in [*chunks, (b"IEND", b"")]
        )
        for pixels in (decode(content).pixels[0].numpy(), np.array(rgb_image(content))[..., 0]):
            assert [*pixels[:, 0]] == expected


def test_a_transparent_colour_of_16_bits_is_compared_with_all_of_them() -> None:
    levels = np.full((8, 8, 3), 1000 / 65_535)
    levels[0, 0] = 1001 / 65_535
    levels[0, 1:] = 0.5
    content = png(levels, 16, png_chunk(b"tRNS", struct.pack(">3H", 1000, 1000, 1000)))
    assert [pixels_of(content)[at].tolist() for at in ((0, 0), (0, 1), (1, 0))] == [
        [4] * 3, [128] * 3, [255] * 3
    ]  # fmt: skip


def paletted(transparency: bytes) -> bytes:
    """Stripes of red, which is entry 0, and blue."""
    header = struct.pack(">IIBBBBB", 8, 8, 8, 3, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes([0, 1] * 4)) * 8)
    palette = bytes([255, 0, 0, 0, 0, 255])
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"tRNS", transparency), (b"IDAT", rows))
    return PNG_SIGNATURE + b"".join(png_chunk(*chunk) for chunk in (*chunks, (b"IEND", b"")))


@pytest.mark.parametrize(
    ("transparency", "shown"),
    [
        (b"\0\xff", [[255] * 3, [0, 0, 255]]),
        (b"\xff\0", [[255, 0, 0], [255] * 3]),
        (b"\0", [[255] * 3, [0, 0, 255]]),
        (b"\xff\x0a", [[255, 0, 0], [245, 245, 255]]),
        (b"\x80\x0a", [[255, 127, 127], [245, 245, 255]]),
    ],
)
def test_entries_of_a_palette_are_as_transparent_as_they_say(transparency, shown) -> None:
    content = paletted(transparency)
    for pixels in (pixels_of(content), np.array(rgb_image(content))):
        assert np.abs(pixels[0, :2].astype(int) - shown).max() <= 1


def test_a_nearly_transparent_entry_beside_a_transparent_one_is_not_opaque() -> None:
    with pytest.raises(ImageError, match="nearly transparent"):
        decode(paletted(b"\0\x0a"))


@pytest.mark.parametrize("after", [False, True], ids=["right", "behind the pixels"])
@pytest.mark.parametrize(
    ("depth", "colour_type", "transparent"),
    [
        (8, 0, (0x010A,)), (8, 2, (0x010A, 0xFF0A, 0x000A)), (8, 0, (0x000A,)),
        (16, 0, (0x0A0A,)), (16, 2, (0x0A0A, 0x0A0A, 0x0A0A)),
    ],
)  # fmt: skip
def test_only_the_bits_of_a_sample_count_in_a_transparent_colour(
    depth: int, colour_type: int, transparent: tuple[int, ...], after: bool
) -> None:
    levels = np.full((8, 8, len(transparent)), 10 / 255)
    levels[:4] = 1
    chunk = png_chunk(b"tRNS", struct.pack(f">{len(transparent)}H", *transparent))
    position = {"after": chunk} if after else {}
    before = () if after else (chunk,)
    content = png(levels, depth, *before, colour_type=colour_type, **position)
    lowest = 10 if after else 255
    assert (pixels_of(content)[0] == 255).all()
    assert (pixels_of(content)[4:] == lowest).all()
    if depth == 8:
        assert (np.array(rgb_image(content))[4:] == lowest).all()


def test_a_transparent_colour_of_another_length_is_ignored_with_a_warning() -> None:
    actual = decode(png(picture(), 8, png_chunk(b"tRNS", b"\0\x0a")))
    assert [warning.code for warning in actual.warnings] == [WarningCode.DAMAGE_IGNORED]
    assert np.array_equal(actual.pixels, decode(png(picture(), 8)).pixels)


PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
          (0, 1, 1, 2))  # fmt: skip
TYPES = [
    (colour_type, depth, is_interlaced)
    for colour_type, depths in {
        0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)
    }.items()
    for depth in depths
    for is_interlaced in (False, True)
]  # fmt: skip


def rows_of(
    samples: npt.NDArray[np.int64], colour_type: int, depth: int, is_interlaced: bool
) -> tuple[list[bytes], Callable[[bytes], bytes]]:
    """The rows of a PNG before compression, and the file of (changed) rows."""
    height, width = samples.shape[:2]
    rows = []
    for left, top, across, down in PASSES if is_interlaced else ((0, 0, 1, 1),):
        part = samples[top::down, left::across]
        for row in part if part.size else ():
            bits = "".join(f"{value:0{depth}b}" for value in row.flatten())
            bits += "0" * (-len(bits) % 8)
            rows.append(b"\0" + int(bits, 2).to_bytes(len(bits) // 8))

    def file(content: bytes) -> bytes:
        header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, is_interlaced)
        palette = [png_chunk(b"PLTE", bytes(range(48)) * 16)] if colour_type == 3 else []
        chunks = (png_chunk(b"IHDR", header), *palette, png_chunk(b"IDAT", zlib.compress(content)))
        return PNG_SIGNATURE + b"".join((*chunks, png_chunk(b"IEND", b"")))

    return rows, file


@pytest.mark.parametrize("size", [(5, 3), (19, 23), (1, 1)], ids=str)
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_png_of_any_type_is_read_with_all_of_its_rows_and_refused_without(kind, size) -> None:
    colour_type, depth, _ = kind
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour_type]
    shape = (*size, channels)
    samples = np.random.default_rng(0).integers(2 ** (depth - 1), 2**depth, shape)
    rows, file = rows_of(samples, *kind)
    whole = b"".join(rows)
    assert decode(file(whole)).pixels.shape == (3, *size)
    assert decode(file(whole + b"more")).pixels.shape == (3, *size)
    for damaged in (b"".join(rows[:-1]), whole[:-1], b""):
        with pytest.raises(ImageError):
            decode(file(damaged))


def test_rows_that_are_missing_in_a_compressed_stream_are_not_black() -> None:
    rows, file = rows_of(np.full((100, 70, 3), 200), 2, 8, False)
    with pytest.raises(ImageError):
        decode(file(b"".join(rows[:90])))
    content = file(b"".join(rows))
    parts = [content[at : at + 7] for at in range(0, len(content), 7)]
    assert b"".join(parts) == content
    (start,) = (match.start() for match in re.finditer(b"IDAT", content))
    data = content[start + 4 : -16]
    several = b"".join(png_chunk(b"IDAT", data[at : at + 7]) for at in range(0, len(data), 7))
    split = content[: start - 4] + several + content[-12:]
    assert (pixels_of(split) == 200).all()


def with_wrong_checksum(chunk: bytes) -> bytes:
    return chunk[:-1] + bytes([chunk[-1] ^ 1])


EXIF_CHUNK = png_chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0" + bytes(4))
DAMAGED = {
    "gAMA": (gamma(100_000), WarningCode.PROFILE_IGNORED),
    "cICP": (cicp(9, 13, 0, 1), WarningCode.PROFILE_IGNORED),
    "cICP of high dynamic range": (cicp(9, 16, 0, 1), WarningCode.PROFILE_IGNORED),
    "iCCP": (iccp(rgb_profile(DISPLAY_P3)), WarningCode.PROFILE_IGNORED),
    "sRGB": (INTENT, WarningCode.PROFILE_IGNORED),
    "text": (png_chunk(b"tEXt", b"Comment\0text"), WarningCode.DAMAGE_IGNORED),
    "EXIF": (EXIF_CHUNK, WarningCode.DAMAGE_IGNORED),
    "acTL": (png_chunk(b"acTL", struct.pack(">II", 2, 0)), WarningCode.DAMAGE_IGNORED),
    "tRNS": (png_chunk(b"tRNS", bytes(6)), WarningCode.DAMAGE_IGNORED),
    "private": (png_chunk(b"prVt", b"x"), WarningCode.DAMAGE_IGNORED),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_chunk_that_is_not_needed_is_ignored_with_a_warning(kind: str) -> None:
    chunk, code = DAMAGED[kind]
    actual = decode(png(picture(), 8, with_wrong_checksum(chunk)))
    assert np.array_equal(actual.pixels, decode(png(picture(), 8)).pixels)
    assert [warning.code for warning in actual.warnings] == [code]


@pytest.mark.parametrize("kind", ["IHDR", "PLTE", "IDAT", "IEND"])
def test_damage_of_a_chunk_that_is_needed_is_refused(kind: str) -> None:
    content = paletted(b"\xff\xff")
    end = content.index(kind.encode()) + 4
    end += int.from_bytes(content[end - 8 : end - 4]) + 4
    damaged = with_wrong_checksum(content[:end]) + content[end:]
    if kind == "IEND":  # which has no content
        assert np.array_equal(pixels_of(damaged), pixels_of(content))
    else:
        with pytest.raises(ImageError):
            decode(damaged)


def wide(levels: Floats, *chunks: bytes, colour_type: int = 2) -> bytes:
    return png(levels, 16, *chunks, colour_type=colour_type)


DARK = np.random.default_rng(0).uniform(0, 0.06, (24, 32, 3))
BLACK = np.zeros((24, 32, 3))
LINES = np.concatenate([BLACK, np.random.default_rng(0).uniform(0, 1, (24, 32, 1))], axis=-1)
DARK_PICTURES = {
    "linear by gAMA": (wide(DARK, gamma(100_000)), 255 * linear_to_srgb(DARK)),
    "linear by cICP": (wide(DARK, cicp(1, 8, 0, 1)), 255 * linear_to_srgb(DARK)),
    "linear by iCCP": (wide(DARK, iccp(rgb_profile(LINEAR))), 255 * linear_to_srgb(DARK)),
    "black": (wide(BLACK), 255 * BLACK),
    "black of gray": (wide(BLACK[..., :1], colour_type=0), 255 * BLACK),
    "a drawing in alpha": (wide(LINES, colour_type=6), 255 * (1 - LINES[..., 3:])),
    "8 bits times 257": (wide((DARK * 255).round() / 255), (DARK * 255).round()),
    "8 bits times 256": (
        wide((DARK * 255).round() * 256 / 65_535), ((DARK * 255).round() * 256 / 257).round()
    ),
    "one channel": (wide(picture() * [0, 0, 1]), 255 * picture() * [0, 0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("kind", DARK_PICTURES)
def test_a_dark_picture_of_16_bits_is_no_data_of_12_bits(kind: str) -> None:
    content, expected = DARK_PICTURES[kind]
    assert np.abs(pixels_of(content) - expected).max() <= 1.6  # levels through an ICC profile


@pytest.mark.parametrize("colour_type", [0, 2, 6])
def test_data_of_12_bits_is_refused(colour_type: int) -> None:
    channels = {0: 1, 2: 3, 6: 4}[colour_type]
    levels = np.random.default_rng(0).integers(0, 4096, (24, 32, channels)) / 65_535
    levels[..., 3:] = 1
    with pytest.raises(ImageError, match="12 bits"):
        decode(wide(levels, colour_type=colour_type))


EXIF = b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0" + bytes(4)
AS_TEXT = f"\nexif\n{len(EXIF) + 6:8}\n{(b'Exif' + bytes(2) + EXIF).hex()}\n".encode()
TURNED = {
    "eXIf": (png_chunk(b"eXIf", EXIF), True),
    "a raw profile": (png_chunk(b"tEXt", b"Raw profile type exif\0" + AS_TEXT), False),
    "XMP": (png_chunk(b"iTXt", b"XML:com.adobe.xmp" + bytes(5) + b'tiff:Orientation="6"'), False),
}


@pytest.mark.parametrize("kind", TURNED)
def test_only_exif_turns_a_picture(kind: str) -> None:
    chunk, is_turned = TURNED[kind]
    assert pixels_of(png(picture(), 8, chunk)).shape == ((32, 24, 3) if is_turned else (24, 32, 3))
    assert pixels_of(png(picture(), 8, after=chunk)).shape == (24, 32, 3)


def frame(number: int) -> bytes:
    return png_chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, 32, 24, 0, 0, 1, 10, 0, 0))


@pytest.mark.parametrize(
    ("frames", "after", "accepted"),
    [
        (2, b"", False),
        (1, frame(0) + png_chunk(b"fdAT", bytes(9)), False),
        (1, b"", True),
        (0, b"", True),
    ],
)
def test_an_animation_is_one_by_its_frames(frames: int, after: bytes, accepted: bool) -> None:
    content = png(picture(), 8, png_chunk(b"acTL", struct.pack(">II", frames, 0)), after=after)
    if accepted:
        assert np.array_equal(pixels_of(content), pixels_of(png(picture(), 8)))
    else:
        with pytest.raises(ImageError, match="animated"):
            decode(content)


READ_BACK = """async (content) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes]));
  const paint = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  paint.drawImage(bitmap, 0, 0);
  const { data } = paint.getImageData(0, 0, bitmap.width, bitmap.height);
  return [bitmap.height, bitmap.width, btoa(String.fromCharCode(...data))];
}"""


@pytest.mark.browser
def test_the_model_sees_what_chromium_shows() -> None:
    """All but a narrow range, which Chromium ignores."""
    cases: dict[str, list[bytes]] = {
        name: chunks for name, (_, _, chunks) in ENCODINGS.items() if name != "cICP narrow"
    }
    cases |= UNCHANGED
    cases |= {
        name: [chunk, gamma(70_000)] for name, chunk in UNUSABLE.items() if "matrix" not in name
    }
    cases |= {f"cICP curve {code}": [cicp(1, code, 0, 1)] for code in (1, 5, 6, 7, 11, 15, 17)}
    cases |= {f"cICP primaries {code}": [cicp(code, 13, 0, 1)] for code in (4, 5, 6, 8, 11, 22)}
    cases |= {kind: [chunk] for kind, (chunk, _) in TURNED.items()}
    cases |= {kind: [with_wrong_checksum(chunk)] for kind, (chunk, _) in DAMAGED.items()}
    with chromium() as browser:
        page: Any = browser.new_page()
        for name, chunks in cases.items():
            content = png(picture() ** 0.5, 8, *chunks)
            height, width, data = page.evaluate(READ_BACK, b64encode(content).decode())
            shown = np.frombuffer(b64decode(data), np.uint8).reshape(height, width, 4)[..., :3]
            seen = pixels_of(content)
            assert shown.shape == seen.shape, name
            assert np.abs(shown.astype(int) - seen).max() <= 4, name
