"""Thumbnails are small, upright and without metadata; unreadable files have none."""

import os
import re
import struct
from base64 import b64decode
from datetime import UTC, datetime
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from clinic.tests.triage_rows import failed
from eulerlora.images.files import read_image
from eulerlora_clinic.policy.policy import default_policy
from eulerlora_clinic.report.html import write_html_report
from tests.damaged_images import contradictory_images, png_chunk
from tests.icc_profiles import PROPHOTO, rgb_profile

pytestmark = pytest.mark.filterwarnings("error")

ORIENTATION, ARTIST = 0x112, 0x13B
RED, BLUE = (220, 30, 30), (30, 30, 220)


def two_colours(width: int, height: int) -> Image.Image:
    """Red above and blue below."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (0, height // 2, width, height))
    return image


def thumbnails(*paths: Path) -> list[Image.Image | None]:
    """The thumbnails in a report of the files, which are sorted by name."""
    report = paths[0].with_name("report.html")
    write_html_report(report, [*map(failed, paths)], default_policy(), datetime.now(UTC))
    rows = report.read_text().split('<tbody class="result')[1:]
    return [opened(row) for row in rows]


def opened(row: str) -> Image.Image | None:
    match = re.search(r'<img class="thumbnail" src="(\S+)" width="(\d+)" height="(\d+)"', row)
    if match is None:
        assert "no image" in row
        return None
    kind, _, text = match[1].partition(";base64,")
    assert kind == "data:image/jpeg"
    content = b64decode(text, validate=True)
    assert len(content) <= 15_000
    image = Image.open(BytesIO(content))
    assert image.size == (int(match[2]), int(match[3]))
    return image


def thumbnail_of(path: Path) -> Image.Image:
    (image,) = thumbnails(path)
    assert image is not None
    return image


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_the_longer_side_is_reduced_and_the_aspect_ratio_stays(tmp_path: Path, suffix: str) -> None:
    two_colours(1000, 500).save(tmp_path / f"a.{suffix}")
    assert thumbnail_of(tmp_path / f"a.{suffix}").size == (320, 160)


def test_the_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # rotate clockwise: the top becomes the right side
    two_colours(600, 400).save(tmp_path / "a.jpg", exif=exif)
    upright = thumbnail_of(tmp_path / "a.jpg")
    assert upright.height > upright.width
    middle = upright.height // 2
    assert np.allclose(upright.getpixel((upright.width - 10, middle)), RED, atol=12)
    assert np.allclose(upright.getpixel((10, middle)), BLUE, atol=12)


def test_the_colours_are_those_of_the_picture_in_srgb(tmp_path: Path) -> None:
    Image.new("RGB", (64, 48), (100, 100, 100)).save(
        tmp_path / "profile.png", icc_profile=rgb_profile(PROPHOTO)
    )
    plain = BytesIO()
    Image.fromarray(np.full((48, 64), 40_000, np.uint16)).save(plain, "PNG")
    png = plain.getvalue()
    (tmp_path / "gamma.png").write_bytes(
        png[:33] + png_chunk(b"gAMA", struct.pack(">I", 100_000)) + png[33:]
    )
    for name in ("profile.png", "gamma.png"):
        level = int(read_image(tmp_path / name, name).pixels[0, 0, 0])
        assert level not in (100, 156)
        small = np.asarray(thumbnail_of(tmp_path / name))
        assert np.abs(small.astype(int) - level).max() <= 2


def test_metadata_is_removed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ARTIST] = "A Name"
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "A Name")
    image = two_colours(600, 400)
    image.save(tmp_path / "a.jpg", exif=exif, comment=b"A Name", icc_profile=b"x" * 200)
    image.save(tmp_path / "a.png", exif=exif, pnginfo=text, icc_profile=b"x" * 200)
    for path in (tmp_path / "a.jpg", tmp_path / "a.png"):
        assert b"A Name" in path.read_bytes()
        small = thumbnail_of(path)
        assert set(small.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def test_noise_is_compressed_to_the_limit(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    assert thumbnail_of(tmp_path / "a.png").size == (320, 320)


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    Image.new("RGBA", (50, 50), (0, 0, 0, 0)).save(tmp_path / "a.png")
    assert np.allclose(thumbnail_of(tmp_path / "a.png"), 255, atol=3)


def test_palette_and_cmyk_images_are_converted(tmp_path: Path) -> None:
    two_colours(60, 40).convert("P").save(tmp_path / "a.png")
    two_colours(60, 40).convert("CMYK").save(tmp_path / "a.jpg")
    for name in ("a.png", "a.jpg"):
        small = thumbnail_of(tmp_path / name)
        assert small.mode == "RGB"
        assert np.argmax(np.asarray(small.getpixel((30, 5)))) == 0


def test_an_undecodable_file_has_no_thumbnail(tmp_path: Path, bombs: dict[str, bytes]) -> None:
    two_colours(60, 40).save(tmp_path / "whole.png")
    contents = {
        "empty": b"",
        "text": b"no image",
        "short": (tmp_path / "whole.png").read_bytes()[:60],
        **bombs,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert thumbnails(*(tmp_path / name for name in contents)) == [None] * len(contents)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    assert thumbnails(tmp_path / "pipe.png") == [None]


def test_a_photograph_of_48_megapixels_has_a_thumbnail(tmp_path: Path) -> None:
    path = tmp_path / "phone.jpg"
    Image.new("L", (8064, 6048), 120).save(path, quality=30)
    assert thumbnail_of(path).size == (320, 240)


def test_files_that_contradict_themselves_have_a_thumbnail_or_none(tmp_path: Path) -> None:
    paths = []
    for content in islice(contradictory_images(), 0, None, 7):  # the decoder's tests read all
        paths.append(tmp_path / f"{len(paths)}.png")
        paths[-1].write_bytes(content)
    found = [thumbnail is not None for thumbnail in thumbnails(*paths)]
    assert any(found)
    assert not all(found)
