"""Image arguments, and files without metadata."""

import os
import re
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms, ImageOps, PngImagePlugin

from eulerlora.images.decode import decode
from eulerlora_client.images import image_bytes
from eulerlora_contract.errors import ImageError
from eulerlora_contract.problems import Problem
from tests.problems import raises_problem


def closed_file() -> BytesIO:
    file = BytesIO(b"pixels")
    file.close()
    return file


@pytest.mark.parametrize(
    "image", ["nowhere.png", Path(), "nul\0.png", "x" * 5000, closed_file()], ids=type
)
def test_an_unreadable_file_is_a_problem(image: str | Path | BytesIO) -> None:
    with raises_problem("unreadable_file"):
        image_bytes(image)


def test_a_pipe_is_refused_instead_of_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "lesion.jpg")
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("the pipe was read"))
    with raises_problem("unreadable_file", match="not a regular file"):
        image_bytes(tmp_path / "lesion.jpg")


SECRET = "Jane Doe, ward 4"
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
XMP = f'<x:xmpmeta><rdf:li xml:lang="x-default">{SECRET}</rdf:li></x:xmpmeta>'.encode()


def picture() -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC)


def exif(orientation: int) -> Image.Exif:
    """An EXIF block with a name, a place and an orientation."""
    tags = Image.Exif()
    tags[ExifTags.Base.Artist] = SECRET
    tags[ExifTags.Base.Orientation] = orientation
    tags.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSMapDatum] = SECRET
    return tags


def encoded(file_format: str, orientation: int = 1, **options: Any) -> bytes:
    """A file with every kind of metadata that Pillow writes in this format."""
    shared = {"exif": exif(orientation).tobytes(), "icc_profile": PROFILE, "xmp": XMP}
    if file_format == "PNG":
        texts = PngImagePlugin.PngInfo()
        texts.add_text("Comment", SECRET)
        texts.add_text("Packed", SECRET, zip=True)
        texts.add_itxt("XML:com.adobe.xmp", XMP.decode())
        shared = {"exif": shared["exif"], "icc_profile": PROFILE, "pnginfo": texts}
    buffer = BytesIO()
    picture().save(buffer, file_format, **shared, **options)
    return buffer.getvalue()


def shown(content: bytes) -> np.ndarray:
    """The pixels as a viewer shows them, without colour conversion."""
    with Image.open(BytesIO(content)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGBA"))


CASES = {
    "JPEG": {"comment": SECRET},
    "JPEG progressive": {"progressive": True},
    "JPEG with restarts": {"restart_marker_blocks": 1},
    "PNG": {},
    "WEBP": {},
    "WEBP lossless": {"lossless": True},
}


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("case", CASES)
def test_only_pixels_profile_and_orientation_remain(case: str, orientation: int) -> None:
    content = encoded(case.partition(" ")[0], orientation, **CASES[case])
    assert SECRET.encode() in content
    stripped = image_bytes(content, strip_metadata=True)
    assert len(stripped) < len(content)
    assert np.array_equal(shown(stripped), shown(content))
    with Image.open(BytesIO(stripped)) as image:
        assert image.info["icc_profile"] == PROFILE
        tags = dict(image.getexif())
        assert tags == ({} if orientation == 1 else {ExifTags.Base.Orientation: orientation})
        assert not {"xmp", "comment", "Comment", "Packed", "XML:com.adobe.xmp"} & set(image.info)
    assert b"Jane" not in stripped
    assert image_bytes(stripped, strip_metadata=True) == stripped
    for appended in (SECRET.encode(), content):
        assert image_bytes(content + appended, strip_metadata=True) == stripped


def test_a_file_without_metadata_keeps_its_pixels_byte_for_byte() -> None:
    for file_format in ("JPEG", "PNG", "WEBP"):
        buffer = BytesIO()
        picture().save(buffer, file_format)
        assert image_bytes(buffer.getvalue(), strip_metadata=True) == buffer.getvalue()


def test_previews_and_appended_files_of_a_jpeg_are_removed() -> None:
    plain = encoded("JPEG")
    header, rest = plain[:20], plain[20:]
    assert header[6:10] == b"JFIF"
    with_pixel = header[:4] + b"\0\x13" + header[6:18] + b"\1\1" + b"RGB" + rest
    assert image_bytes(with_pixel, strip_metadata=True) == image_bytes(plain, strip_metadata=True)
    preview = b"\xff\xe0" + struct.pack(">H", 11) + b"JFXX\0\x10abc"
    photoshop = b"\xff\xed" + struct.pack(">H", 2 + len(SECRET)) + SECRET.encode()
    glued = plain[:2] + preview + photoshop + plain[2:] + b"trailer " + SECRET.encode()
    assert image_bytes(glued, strip_metadata=True) == image_bytes(plain, strip_metadata=True)
    assert re.search(b"JFXX|trailer", image_bytes(glued, strip_metadata=True)) is None


def test_the_orientation_of_xmp_is_none() -> None:
    buffer = BytesIO()
    picture().save(buffer, "JPEG", xmp=b'<rdf:Description tiff:Orientation="6"/>')
    stripped = image_bytes(buffer.getvalue(), strip_metadata=True)
    assert b"rdf" not in stripped
    assert shown(stripped).shape == (48, 64, 4)


def test_bytes_between_the_segments_of_a_jpeg_are_removed() -> None:
    content = encoded("JPEG")
    with_junk = content[:2] + SECRET.encode() + content[2:20] + SECRET.encode() + content[20:]
    assert image_bytes(with_junk, strip_metadata=True) == image_bytes(content, strip_metadata=True)


def test_an_animation_stays_an_animation() -> None:
    frames = [picture(), picture().rotate(90)]
    for file_format in ("PNG", "WEBP"):
        buffer = BytesIO()
        frames[0].save(buffer, file_format, save_all=True, append_images=frames[1:])
        with Image.open(BytesIO(image_bytes(buffer.getvalue(), strip_metadata=True))) as image:
            assert image.n_frames == 2


def test_transparency_and_palette_are_kept() -> None:
    buffer = BytesIO()
    picture().quantize(16).save(buffer, "PNG", transparency=3)
    assert np.array_equal(
        shown(image_bytes(buffer.getvalue(), strip_metadata=True)), shown(buffer.getvalue())
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        bytes(128) + b"DICM" + bytes(64),
        b"GIF89a",
        b"\xff\xd8\xff\xe1\0\x04ab no marker",
    ],
    ids=["empty", "text", "DICOM", "GIF", "broken JPEG"],
)
def test_another_format_is_not_sent(content: bytes) -> None:
    with raises_problem("metadata_not_removed"):
        image_bytes(content, strip_metadata=True)
    assert image_bytes(content) == content


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_a_truncated_file_has_no_metadata_either(file_format: str) -> None:
    content = encoded(file_format)
    for length in (*range(len(content[:60])), *range(60, len(content), 7)):
        try:
            stripped = image_bytes(content[:length], strip_metadata=True)
        except Problem as problem:
            assert problem.code == "metadata_not_removed"
            continue
        assert b"Jane" not in stripped


EXIF_AT = encoded("PNG").index(b"eXIf")
DAMAGED = {
    "a JPEG without a fifth": encoded("JPEG")[:-1500] + encoded("JPEG")[-500:],
    "a JPEG without its end": encoded("JPEG")[:-2],
    "a JPEG with stray bytes": encoded("JPEG")[:-2] + bytes(37) + b"\xff\xd9",
    "a PNG with a wrong checksum": encoded("PNG")[:-13] + b"\0" + encoded("PNG")[-12:],
    "a PNG without its end": encoded("PNG")[:-12],
    "a PNG with damaged EXIF": (
        encoded("PNG")[: EXIF_AT + 6] + b"\xff" + encoded("PNG")[EXIF_AT + 7 :]
    ),
    "a WebP that ends in its metadata": encoded("WEBP")[:-20],
    "a WebP of any length": encoded("WEBP")[:4] + b"\xfe\xff\xff\xff" + encoded("WEBP")[8:],
    "half a WebP": encoded("WEBP")[: len(encoded("WEBP")) // 2],
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_of_pixels_stays_and_that_of_metadata_has_no_effect(kind: str) -> None:
    def pixels_of(content: bytes) -> Any:
        try:
            return decode(content).pixels.tolist()
        except ImageError:
            return "refused"

    assert pixels_of(image_bytes(DAMAGED[kind], strip_metadata=True)) == pixels_of(DAMAGED[kind])
