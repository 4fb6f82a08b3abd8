"""Decoding of image files: what is decoded, converted and refused."""

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from eulerlora.images.files import read_image
from eulerlora_contract.answers import WarningCode
from eulerlora_contract.errors import ImageError
from eulerlora_contract.problems import Problem
from service.decoding.decode import decode
from service.decoding.formats import MEDIA_TYPES, Declared
from tests.damaged_images import contradictory_images
from tests.icc_profiles import DISPLAY_P3, rgb_profile
from tests.problems import raises_problem
from tests.service.conftest import encoded, png_chunk, png_header
from tests.service.settings import settings_of

LIMITS = settings_of("images")
FOREIGN = {
    "text": b"not an image at all",
    "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"/>',
    "pdf": b"%PDF-1.7\n1 0 obj\n<</Type/Catalog>>\nendobj\n",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n",
    "dicom": bytes(128) + b"DICM" + bytes(64),
    "heic": b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(64),
    "psd": b"8BPS\0\x01" + bytes(64),
    "gif": b"GIF89a" + bytes(64),
    "bmp": b"BM" + bytes(64),
    "tiff": b"II*\0\x08\0\0\0" + bytes(64),
    "wav": b"RIFF\x24\0\0\0WAVEfmt " + bytes(32),
    "half a png signature": b"\x89PNG",
    "nothing": b"",
}


def pixels_of(data: bytes, declared: str | None = None) -> np.ndarray:
    """The decoded image as (height, width, 3)."""
    return decode(data, LIMITS, Declared(declared)).pixels.permute(1, 2, 0).numpy()


def exif_orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[274] = value
    return exif


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
def test_a_file_decodes_to_the_rgb_pixels_that_pillow_reads(photo, media_type) -> None:
    file_format = MEDIA_TYPES[media_type]
    data = encoded(photo, file_format)
    image = decode(data, LIMITS, Declared(media_type))
    assert image.warnings == ()
    assert np.array_equal(pixels_of(data), np.asarray(Image.open(BytesIO(data))))


@pytest.mark.parametrize("size", [(64, 48), (37, 61), (600, 450)])
@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"}, {"subsampling": "4:2:0"},
        {"progressive": True}, {"restart_marker_blocks": 2}, {"keep_rgb": True},
        {"quality": 3}, {"quality": 100, "subsampling": "4:4:4"},
    ],
)  # fmt: skip
def test_a_jpeg_of_any_kind_decodes_to_the_pixels_of_training(size, options) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1] // 3, size[0] // 3, 3), np.uint8)
    data = encoded(Image.fromarray(noise).resize(size), "JPEG", **options)
    assert torch.equal(decode(data, LIMITS).pixels, read_image(data, "noise").pixels)


@pytest.mark.parametrize(
    ("mode", "orientation"),
    [("RGB", 1), ("RGB", 3), ("RGB", 5), ("RGB", 6), ("RGB", 7), ("RGB", 8), ("L", 6), ("CMYK", 6)],
)
def test_a_large_jpeg_is_reduced_to_the_pixels_that_the_library_reads(
    photo, mode, orientation
) -> None:
    large = photo.resize((2001, 1503)).convert(mode)
    data = encoded(large, "JPEG", exif=exif_orientation(orientation))
    image = decode(data, LIMITS, input_side=64)
    upright = (1503, 2001) if orientation >= 5 else (2001, 1503)
    assert image.full_size == upright
    assert sorted(image.pixels.shape) == [3, 752, 1001]
    assert torch.equal(image.pixels, read_image(data, "large", 64).pixels)
    with raises_problem("unusable_image"):
        decode(data[: len(data) * 9 // 10] + b"\xff\xd9", LIMITS, input_side=64)


CONVERTED = [
    ("JPEG", "RGB", {"exif": exif_orientation(6)}),
    ("PNG", "RGB", {"exif": exif_orientation(6)}),
    ("WEBP", "RGB", {"exif": exif_orientation(6)}),
    ("JPEG", "RGB", {"icc_profile": rgb_profile(DISPLAY_P3)}),
    ("PNG", "RGB", {"icc_profile": rgb_profile(DISPLAY_P3)}),
    ("WEBP", "RGB", {"icc_profile": b"broken"}),
    ("JPEG", "L", {}),
    ("JPEG", "CMYK", {}),
    ("MPO", "RGB", {"save_all": True}),
    ("PNG", "1", {}),
    ("PNG", "P", {"transparency": 0}),
    ("PNG", "LA", {}),
    ("WEBP", "RGBA", {"lossless": True}),
]


@pytest.mark.parametrize(("file_format", "mode", "options"), CONVERTED)
def test_an_image_is_converted_as_by_the_library_with_its_warnings(
    photo, file_format, mode, options
) -> None:
    image = photo.convert(mode)
    if "A" in mode:
        image.putalpha(photo.convert("L"))
    data = encoded(image, file_format, **options)
    actual, expected = decode(data, LIMITS), read_image(data, "photo")
    assert torch.equal(actual.pixels, expected.pixels)
    codes = [warning.code for warning in actual.warnings]
    assert codes == [warning.code for warning in expected.warnings]


NOISE = Image.effect_noise((64, 48), 80).convert("RGB")
SIGNATURE = b"\x89PNG\r\n\x1a\n"
FILES = {file_format: encoded(NOISE, file_format) for file_format in MEDIA_TYPES.values()}
REFUSED = {
    "1 x 60,000": encoded(Image.new("1", (1, 60_000)), "PNG"),
    "31 x 32": encoded(Image.new("1", (31, 32)), "PNG"),
    "8193 x 32": encoded(Image.new("1", (8193, 32)), "PNG"),
    "0 x 64": SIGNATURE + png_header(0, 64),
    "64 x 0": SIGNATURE + png_header(64, 0),
    "a header only": SIGNATURE + png_header(900, 100),
    "two headers": SIGNATURE + png_header(9000, 32) + FILES["PNG"][8:],
    "a tenth of a JPEG": FILES["JPEG"][:300],
    "nine tenths of a JPEG": FILES["JPEG"][: len(FILES["JPEG"]) * 9 // 10],
    "half a PNG": FILES["PNG"][: len(FILES["PNG"]) // 2],
    "half a WebP": FILES["WEBP"][: len(FILES["WEBP"]) // 2],
    "a PNG without its end": FILES["PNG"][:-12],
    "a marker within the pixels": FILES["JPEG"][:-200] + b"\xff\xc7" + FILES["JPEG"][-198:],
    "a transparent image": encoded(Image.new("RGBA", (64, 64)), "PNG"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_damaged_or_unusable_file_is_refused(kind) -> None:
    with raises_problem("unusable_image"):
        decode(REFUSED[kind], LIMITS)


def test_all_headers_of_a_png_are_checked_for_their_size() -> None:
    side = 200
    rows = png_chunk(b"IDAT", zlib.compress(bytes((side + 1) * side)))
    data = SIGNATURE + png_header(64, 64, 8, 0) + png_header(side, side, 8, 0) + rows
    with raises_problem("unusable_image"):
        decode(data + png_chunk(b"IEND", b""), settings_of("images", max_pixels=10_000))


def test_a_photograph_of_48_megapixels_is_decoded_only_if_it_can_be_reduced() -> None:
    data = encoded(Image.linear_gradient("L").resize((8064, 6048)), "JPEG")
    image = decode(data, LIMITS, input_side=224)
    assert image.pixels.shape == (3, 1512, 2016)
    assert image.full_size == (8064, 6048)
    with raises_problem("unusable_image"):
        decode(data, LIMITS)


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_content_is_unsupported_and_no_parser_runs(kind, monkeypatch) -> None:
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was called"))
    with raises_problem("unsupported_media"):
        decode(FOREIGN[kind], LIMITS, Declared("image/png"))


@pytest.mark.parametrize(
    "declared",
    [
        "image/jpeg",
        "image/webp",
        "image/gif",
        "text/plain",
        "IMAGE/JPEG; q=1",
    ],
)
def test_the_content_overrides_the_declared_type_with_a_warning(png, declared) -> None:
    image = decode(png, LIMITS, Declared(declared))
    assert np.array_equal(image.pixels, decode(png, LIMITS).pixels)
    (warning,) = image.warnings
    assert warning.code == WarningCode.DECLARED_TYPE_DIFFERS


@pytest.mark.parametrize("declared", [None, "image/png", "application/octet-stream"])
def test_a_matching_or_generic_type_gives_no_warning(png, declared) -> None:
    assert decode(png, LIMITS, Declared(declared)).warnings == ()


@pytest.mark.parametrize(
    ("width", "height", "accepted"),
    [
        (8, 64, True), (64, 8, True), (40, 50, True),
        (7, 20, False), (20, 7, False), (65, 20, False), (20, 65, False), (41, 50, False),
    ],
)  # fmt: skip
def test_sides_and_area_are_accepted_up_to_their_limits(width, height, accepted) -> None:
    limits = settings_of("images", min_side=8, max_side=64, max_pixels=2000)
    data = encoded(Image.new("RGB", (width, height), "red"), "PNG")
    if accepted:
        assert decode(data, limits).pixels.shape == (3, height, width)
    else:
        with raises_problem("unusable_image"):
            decode(data, limits)


def test_a_bomb_is_refused_by_its_header_and_no_parser_of_pixels_runs(bombs, monkeypatch) -> None:
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was called"))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_, **__: pytest.fail("it was decoded"))
    for name, data in bombs.items():
        assert len(data) < 20_000, name
        with raises_problem("unusable_image"):
            decode(data, LIMITS)


def test_a_second_jpeg_header_with_a_large_size_is_refused(photo) -> None:
    jpeg = encoded(photo, "JPEG")
    at = jpeg.index(b"\xff\xc0")
    end = at + 2 + struct.unpack(">H", jpeg[at + 2 : at + 4])[0]
    header = jpeg[at:end]
    large = header[:5] + struct.pack(">HH", 5000, 4000) + header[9:]
    for headers in (header + large, large + header):
        with raises_problem("unusable_image"):
            decode(jpeg[:at] + headers + jpeg[end:], settings_of("images", max_pixels=1_000_000))


def test_a_webp_canvas_smaller_than_its_frame_is_refused(bombs) -> None:
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (63).to_bytes(3, "little") * 2
    frame = bombs["webp of 144 MP, lossless"][12:] + b"\0"
    body = b"WEBP" + canvas + frame
    with raises_problem("unusable_image"):
        decode(b"RIFF" + struct.pack("<I", len(body)) + body, LIMITS)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}])
@pytest.mark.parametrize("trailing", [b"", bytes(500), b"\xff\xff\xd0" * 99])
def test_a_jpeg_without_an_end_marker_is_refused_with_any_trailing_bytes(
    photo, options, trailing
) -> None:
    jpeg = encoded(photo, "JPEG", **options)
    decode(jpeg + trailing, LIMITS)
    with raises_problem("unusable_image"):
        decode(jpeg[:-2] + trailing, LIMITS)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("fraction", [0.5, 0.9])
def test_a_truncated_jpeg_with_an_appended_end_marker_is_refused(
    photo, options, mode, fraction
) -> None:
    jpeg = encoded(photo.convert(mode), "JPEG", **options)
    decode(jpeg, LIMITS)
    with raises_problem("unusable_image"):
        decode(jpeg[: int(fraction * len(jpeg))] + b"\xff\xd9", LIMITS)


def test_the_end_marker_of_a_thumbnail_does_not_count(photo) -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + encoded(photo.resize((32, 24)), "JPEG")
    jpeg = encoded(photo, "JPEG", exif=exif)
    assert np.array_equal(pixels_of(jpeg), pixels_of(encoded(photo, "JPEG")))
    with raises_problem("unusable_image"):
        decode(jpeg[:-2] + bytes(500), LIMITS)


def test_a_png_with_any_one_flipped_bit_is_refused_but_for_the_checksum_of_its_end(png) -> None:
    for index in range(len(png)):
        damaged = bytearray(png)
        damaged[index] ^= 1 << index % 8
        if index >= len(png) - 4:
            assert np.array_equal(pixels_of(bytes(damaged)), pixels_of(png))
            continue
        with raises_problem("unusable_image", "unsupported_media"):
            decode(bytes(damaged), LIMITS)


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iTXt", b"iCCP"])
@pytest.mark.parametrize("offset", [33, -12], ids=["before the pixels", "after the pixels"])
def test_an_80_mb_text_chunk_is_refused(png, kind, offset) -> None:
    packed = zlib.compress(bytes(80_000_000))
    content = {
        b"tEXt": b"k\0" + bytes(80_000_000),
        b"iTXt": b"k\0\1\0\0\0" + packed,
    }.get(kind, b"k\0\0" + packed)
    with raises_problem("unusable_image"):
        decode(png[:offset] + png_chunk(kind, content) + png[offset:], LIMITS)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP"])
def test_an_animation_is_refused_but_not_a_single_frame(photo, file_format) -> None:
    other = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    animated = encoded(photo, file_format, save_all=True, append_images=[other], duration=50)
    with raises_problem("unusable_image"):
        decode(animated, LIMITS)
    decode(encoded(photo, file_format, save_all=True), LIMITS)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF:UserWarning")
@pytest.mark.parametrize("file_format", MEDIA_TYPES.values())
def test_trailing_bytes_and_garbage_metadata_change_nothing(photo, file_format) -> None:
    noise = np.random.default_rng(2).bytes(300)
    clean = encoded(photo, file_format)
    expected = pixels_of(clean)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + noise
    for data in (
        clean + noise,
        encoded(photo, file_format, exif=exif),
        encoded(photo, file_format, icc_profile=noise),
    ):
        assert data != clean
        assert np.array_equal(pixels_of(data), expected)


def test_a_valid_orientation_next_to_a_tag_out_of_range_is_applied(photo) -> None:
    def tag(number: int, kind: int, value: int) -> bytes:
        return struct.pack("<HHII", number, kind, 1, value)

    tags = tag(0x011A, 8, 0xFFFF) + tag(0x0112, 3, 6)  # a signed short of -1
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + tags + bytes(4)
    turned = pixels_of(encoded(photo, "JPEG", exif=exif))
    assert np.array_equal(turned, np.rot90(pixels_of(encoded(photo, "JPEG")), -1))


def wide_png(colour_type: int, pixel: tuple[int, ...], *more: bytes) -> bytes:
    """A 16-bit PNG of 32 x 32 equal pixels."""
    row = b"\0" + struct.pack(f">{len(pixel)}H", *pixel) * 32
    rows = png_chunk(b"IDAT", zlib.compress(row * 32))
    header = png_header(32, 32, 16, colour_type)
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + rows + png_chunk(b"IEND", b"")


@pytest.mark.parametrize("value", [0, 4095, 4096, 32_767, 32_768, 65_279, 65_535])
@pytest.mark.parametrize(
    ("colour_type", "channels"), [(0, 1), (2, 3), (4, 1), (6, 3)], ids=["gray", "RGB", "LA", "RGBA"]
)
def test_16_bit_png_is_scaled_and_never_clipped_and_refused_with_12_bits(
    colour_type, channels, value
) -> None:
    alpha = (65_535,) if colour_type >= 4 else ()
    data = wide_png(colour_type, (value,) * channels + alpha)
    if 0 < value < 4096:
        with raises_problem("unusable_image"):
            decode(data, LIMITS)
        with pytest.raises(ImageError):
            read_image(data, "x.png")
        return
    pixels = decode(data, LIMITS).pixels
    assert pixels.unique().numel() == 1
    assert abs(int(pixels[0, 0, 0]) - value / 257) <= 1
    assert value == 65_535 or 0 <= int(pixels[0, 0, 0]) < 255


@pytest.mark.parametrize(("colour_type", "colour"), [(0, (10_000,)), (2, (10_000, 20_000, 30_000))])
def test_the_transparent_colour_of_a_16_bit_png_is_converted_with_the_pixels(
    colour_type, colour
) -> None:
    transparent = png_chunk(b"tRNS", struct.pack(f">{len(colour)}H", *colour))
    with raises_problem("unusable_image"):
        decode(wide_png(colour_type, colour, transparent), LIMITS)
    other = tuple(256 * value for value in (30, 70, 110)[: len(colour)])  # 8-bit forms of `small`
    small = png_chunk(b"tRNS", struct.pack(f">{len(colour)}H", *(30, 70, 110)[: len(colour)]))
    decode(wide_png(colour_type, other, small), LIMITS)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_contradictory_files_give_an_image_or_a_problem_of_the_client() -> None:
    limits = settings_of("images")
    refused = 0
    for content in contradictory_images():
        try:
            assert decode(content, limits).pixels.shape == (3, 32, 32)
        except Problem as problem:
            refused += 1
            assert problem.status in (415, 422)
    assert refused > 1000
