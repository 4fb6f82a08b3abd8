"""eulerlora.images.files: what people give as images, and its pixels."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eulerlora.images.decode import jpeg_reduction
from eulerlora.images.files import read_image, rgb_images, unread_file
from eulerlora.model import EulerLoRA
from eulerlora_contract.errors import ImageError
from tests.damaged_images import contradictory_images

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
def test_a_reduced_jpeg_keeps_three_times_the_input(size, input_side, factor) -> None:
    assert jpeg_reduction(size, input_side) == factor
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
        assert jpeg_reduction(large.size, model.config.preprocessing.input_side) == factor
        whole = np.array(Image.open(path))
        expected, actual = (model.predict([image]).probabilities for image in (whole, path))
        assert 0 < (actual - expected).abs().max() < MAX_PROBABILITY_CHANGE


def test_an_opened_jpeg_that_was_not_read_is_reduced_like_its_file(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.linear_gradient("L").resize((1920, 1440)).convert("RGB").save(path)
    opened = Image.open(path)
    assert unread_file(opened) == path
    (rgb,) = rgb_images([opened], 64)
    assert torch.equal(rgb.pixels, read_image(path, "image", 64).pixels)
    assert opened.size == (1920, 1440)  # the user's image is as before


def test_an_image_that_was_read_or_changed_is_not_read_from_its_file_again(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.new("RGB", (1920, 1440)).save(path)
    read, drafted, other = Image.open(path), Image.open(path), Image.open(path)
    read.load()
    drafted.draft("L", (480, 360))
    images = [read, drafted, other.crop((0, 0, 9, 9)), Image.open(BytesIO(path.read_bytes()))]
    assert [unread_file(image) for image in images] == [None] * 4
    deleted = Image.open(path)
    path.unlink()
    assert unread_file(deleted) is None


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
