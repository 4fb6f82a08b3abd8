"""eulerlora.images.preprocess: the seed derived from an image and a revision."""

import io

import pytest
import torch
from PIL import Image
from torch import Generator, Tensor

from eulerlora.images.preprocess import content_seed, upright_rgb
from eulerlora.settings import Draw

REVISION = "sha256:" + "0" * 64


@pytest.fixture
def pixels() -> Tensor:
    shape = (3, 4, 6)
    generator = Generator().manual_seed(0)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def test_the_same_pixels_and_revision_give_the_same_seed(pixels: Tensor) -> None:
    assert content_seed(pixels, REVISION) == content_seed(pixels.clone(), REVISION)


def test_a_seed_is_valid_for_a_draw(pixels: Tensor) -> None:
    seeds = [content_seed(pixels, str(number)) for number in range(200)]
    for seed in seeds:
        Draw(mode="stoch", seed=seed)
    assert len(set(seeds)) == 200
    assert min(seeds) < 2**30
    assert max(seeds) > 3 * 2**30


def test_one_changed_pixel_gives_another_seed(pixels: Tensor) -> None:
    changed = pixels.clone()
    changed[2, 3, 5] ^= 1
    assert content_seed(pixels, REVISION) != content_seed(changed, REVISION)


def test_another_revision_gives_another_seed(pixels: Tensor) -> None:
    assert content_seed(pixels, REVISION) != content_seed(pixels, REVISION[:-1] + "1")


def test_the_same_bytes_in_another_shape_or_dtype_give_another_seed(pixels: Tensor) -> None:
    others = [pixels.reshape(3, 6, 4), pixels.view(torch.int8), pixels.float()]
    seeds = {content_seed(values, REVISION) for values in (pixels, *others)}
    assert len(seeds) == 4


def test_the_layout_in_memory_does_not_change_the_seed(pixels: Tensor) -> None:
    strided = pixels.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert not strided.is_contiguous()
    assert content_seed(strided, REVISION) == content_seed(pixels, REVISION)


def test_a_files_metadata_does_not_change_the_seed(pixels: Tensor) -> None:
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    exif = Image.Exif()
    exif[0x010E] = "a description"
    seeds = set()
    for options in ({}, {"exif": exif}, {"compress_level": 1}):
        file = io.BytesIO()
        image.save(file, "PNG", **options)
        with Image.open(file) as opened:
            seeds.add(content_seed(upright_rgb(opened).pixels, REVISION))
    assert seeds == {content_seed(pixels, REVISION)}
