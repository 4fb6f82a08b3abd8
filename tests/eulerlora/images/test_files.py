"""eulerlora.images.files: what people give as images, and its pixels."""

import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eulerlora import EulerLoRA
from eulerlora.images.files import read_image, rgb_images
from eulerlora_contract.errors import ImageError, ImageSizeError
from tests.damaged_images import contradictory_images, png_chunk

EXAMPLE = Path(__file__).parents[3] / "docs/images/example-lesion.jpg"
MAX_PROBABILITY_CHANGE = 0.005


@pytest.mark.parametrize(
    ("size", "input_side", "factor"),
    [
        ((600, 450), 64, 1), ((1791, 1791), 64, 1), ((1792, 400), 64, 2), ((400, 3584), 32, 4),
        ((4032, 3024), 64, 4), ((4032, 3024), 224, 4), ((4032, 3024), 300, 2),
        ((8064, 6048), 512, 2), ((8064, 6048), 224, 4), ((8064, 6048), 1009, 1),
    ],
)  # fmt: skip
def test_a_reduced_jpeg_keeps_three_times_the_input(size, input_side, factor, tmp_path) -> None:
    Image.new("RGB", size, (90, 60, 50)).save(tmp_path / "large.jpg")
    image = read_image(tmp_path / "large.jpg", "large.jpg", input_side)
    assert image.pixels.shape[1:] == (-(-size[1] // factor), -(-size[0] // factor))
    if factor > 1:
        assert min(size) // factor >= 3 * input_side


@pytest.mark.parametrize("content", ["lesion", "noise"])
def test_a_reduced_jpeg_gives_the_same_probabilities_within_the_documented_bound(
    content: str, tmp_path: Path
) -> None:
    """The bound of docs/how-to/serve.md, for both factors."""
    model = EulerLoRA.default("cpu")
    small = Image.open(EXAMPLE) if content == "lesion" else Image.effect_noise((400, 300), 80)
    for width, factor in ((2016, 2), (4032, 4)):
        path = tmp_path / f"{width}.jpg"
        large = small.convert("RGB").resize((width, width * 3 // 4), Image.Resampling.BICUBIC)
        large.save(path, quality=92)
        side = model.config.preprocessing.input_side
        assert read_image(path, path.name, side).pixels.shape[2] == width // factor
        whole = np.array(Image.open(path))
        expected, actual = (model.predict([image]).probabilities for image in (whole, path))
        assert 0 < (actual - expected).abs().max() < MAX_PROBABILITY_CHANGE


def test_an_opened_jpeg_that_was_not_read_is_reduced_like_its_file(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.linear_gradient("L").resize((1920, 1440)).convert("RGB").save(path)
    opened = Image.open(path)
    (rgb,) = rgb_images([opened], 64)
    assert torch.equal(rgb.pixels, read_image(path, "image", 64).pixels)
    assert opened.size == (1920, 1440)  # the user's image is as before
    assert opened.getpixel((0, 0)) is not None


def encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


NOISE = Image.effect_noise((64, 48), 60).convert("RGB")
JPEG, PNG = encoded(NOISE, "JPEG", quality=90), encoded(NOISE, "PNG")
TWO = {"save_all": True, "append_images": [Image.new("RGB", (64, 48))]}
MPO = encoded(NOISE, "MPO", **TWO)
FILES = {
    "a JPEG": JPEG,
    "a cut JPEG": JPEG[: len(JPEG) // 2] + b"\xff\xd9",
    "a JPEG with stray bytes": JPEG[:-2] + bytes(37) + JPEG[-2:],
    "a camera's file of two pictures": MPO,
    "such a file whose first picture is cut": MPO[:1500] + MPO[2000:],
    "a PNG": PNG,
    "a PNG with cICP": PNG[:33] + png_chunk(b"cICP", bytes([9, 13, 0, 1])) + PNG[33:],
    "a PNG of high dynamic range": PNG[:33] + png_chunk(b"cICP", bytes([9, 16, 0, 1])) + PNG[33:],
    "a PNG without rows": PNG[:33] + png_chunk(b"IDAT", zlib.compress(b"\0" * 193)) + PNG[-12:],
    "an animated PNG": encoded(
        NOISE, "PNG", save_all=True, append_images=[Image.new("RGB", (64, 48))]
    ),
    "a WebP": encoded(NOISE, "WEBP"),
    "an animated WebP": encoded(
        NOISE, "WEBP", save_all=True, append_images=[Image.new("RGB", (64, 48))]
    ),
}


def result_of(read: Callable[[], Any]) -> list[object]:
    try:
        image = read()
    except ImageError as error:
        return [type(error)]
    return [image.pixels.tolist(), *(warning.code for warning in image.warnings)]


@pytest.mark.parametrize("kind", FILES)
def test_an_image_that_pillow_has_opened_is_read_as_its_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(FILES[kind])
    expected = result_of(lambda: read_image(path, "image"))
    deleted = Image.open(path)
    with path.open("rb") as file:
        for image in (Image.open(path), Image.open(BytesIO(FILES[kind])), Image.open(file)):
            assert result_of(lambda image=image: next(rgb_images([image], 64))) == expected
    path.unlink()
    assert result_of(lambda: next(rgb_images([deleted], 64))) == expected
    with pytest.raises(ImageError, match="closed"):
        list(rgb_images([closed(FILES[kind])], 64))


def closed(content: bytes) -> Image.Image:
    file = BytesIO(content)
    image = Image.open(file)
    file.close()
    return image


def test_the_pixels_of_an_image_that_was_read_or_changed_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.new("RGB", (1920, 1440)).save(path)
    changed, drafted, other = Image.open(path), Image.open(path), Image.open(path)
    changed.putpixel((0, 0), (255, 255, 255))
    drafted.draft("RGB", (480, 360))
    images = list(rgb_images([changed, drafted, other.crop((0, 0, 9, 9))], 64))
    assert images[0].pixels[:, 0, 0].tolist() == [255] * 3
    assert [image.pixels.shape[1:] for image in images] == [(1440, 1920), (360, 480), (9, 9)]
    second = Image.open(BytesIO(MPO))
    second.seek(1)
    (image,) = rgb_images([second], 64)
    assert image.pixels.max() == 0


def test_a_cut_jpeg_that_pillow_is_to_reduce_is_refused() -> None:
    drafted = Image.open(BytesIO(FILES["a cut JPEG"]))
    drafted.draft("RGB", (32, 24))
    with pytest.raises(ImageError):
        list(rgb_images([drafted], 64))


def test_the_limit_of_bytes_holds_for_files_contents_and_opened_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EULERLORA_MAX_PIXELS", "3072")
    limit = 8 * 3072 + 2**24
    path = tmp_path / "image.jpg"
    for size, accepted in ((limit, True), (limit + 1, False)):
        path.write_bytes(content := JPEG + bytes(size - len(JPEG)))
        results = [
            result_of(lambda: read_image(path, "image")),
            result_of(lambda content=content: read_image(content, "image")),
            result_of(lambda: next(rgb_images([Image.open(path)], 64))),
        ]
        assert [result == [ImageSizeError] for result in results] == [not accepted] * 3


def test_files_of_other_formats_are_not_reduced(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.new("RGB", (1920, 1440)).save(path)
    assert read_image(path, "image", 64).pixels.shape == (3, 1440, 1920)


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_other_content_is_an_error_that_begins_with_the_name(content: bytes) -> None:
    with pytest.raises(ImageError, match=r"^lesion 7: ") as caught:
        read_image(content, "lesion 7")
    assert "0x" not in str(caught.value)  # a memory address


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_contradictory_files_are_an_image_or_an_image_error_with_the_name() -> None:
    refused = 0
    for content in contradictory_images():
        try:
            assert read_image(content, "lesion 7").pixels.shape == (3, 32, 32)
        except ImageError as error:
            refused += 1
            assert str(error).startswith("lesion 7: ")
    assert refused > 1000
