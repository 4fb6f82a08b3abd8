"""eulerlora_client.policy.quality: the client converts pictures to sRGB as the model does."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eulerlora.images.preprocess import upright_rgb
from eulerlora_client.policy.quality import in_srgb, measure_quality
from eulerlora_client.report.html import thumbnail_of
from tests.damaged_images import PNG_SIGNATURE, contradictory_images, png_chunks
from tests.icc_profiles import PROPHOTO, SRGB, WIDE_SPACES, RgbSpace, gray_profile, rgb_profile


def stored(image: Image.Image, profile: bytes = b"", kind: str = "PNG") -> Image.Image:
    file = BytesIO()
    image.save(file, kind, icc_profile=profile)
    return Image.open(BytesIO(file.getvalue()))


def noise(mode: str) -> Image.Image:
    layers = np.random.default_rng(0).integers(0, 256, (30, 40, 4)).astype(np.uint8)
    if mode == "P":
        return Image.fromarray(layers[..., :3]).quantize(16)
    return Image.fromarray(layers).convert(mode)


@pytest.mark.parametrize("space", [*WIDE_SPACES, SRGB], ids=lambda space: space.name)
@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_colours_are_converted_as_those_of_the_model(space: RgbSpace, mode: str) -> None:
    image = stored(noise(mode), rgb_profile(space))
    expected = upright_rgb(image).pixels.permute(1, 2, 0).numpy()
    assert np.array_equal(np.asarray(in_srgb(image).convert("RGB")), expected)


def test_gray_with_alpha_keeps_its_alpha() -> None:
    converted = in_srgb(stored(noise("LA"), gray_profile(1.5)))
    assert converted.mode == "RGBA"
    assert np.array_equal(
        np.asarray(converted.getchannel("A")), np.asarray(noise("LA").getchannel("A"))
    )


@pytest.mark.parametrize("profile", [b"", b"broken", rgb_profile(SRGB), gray_profile(1.5)])
def test_an_unusable_or_needless_profile_changes_nothing(profile: bytes) -> None:
    image = stored(noise("RGB"), profile)
    assert in_srgb(image) is image


def test_quality_and_thumbnail_are_those_of_the_picture_in_srgb(tmp_path: Path) -> None:
    gray = Image.new("RGB", (64, 48), (100, 100, 100))
    gray.save(tmp_path / "wide.png", icc_profile=rgb_profile(PROPHOTO))
    with Image.open(tmp_path / "wide.png") as image:
        level = int(upright_rgb(image).pixels[0, 0, 0])
        assert measure_quality(image).brightness == pytest.approx(level / 255, abs=1e-3)
    assert level != 100
    thumbnail = thumbnail_of(tmp_path / "wide.png")
    assert thumbnail is not None
    with Image.open(BytesIO(thumbnail.content)) as small:
        assert np.abs(np.asarray(small).astype(int) - level).max() <= 2


def test_indexed_colours_without_a_palette_have_no_quality() -> None:
    file = BytesIO()
    Image.new("RGB", (32, 32), (1, 2, 3)).quantize(2).save(file, "PNG")
    chunks = (chunk for chunk in png_chunks(file.getvalue()) if chunk[4:8] != b"PLTE")
    with pytest.raises(ValueError, match="no palette"):
        measure_quality(Image.open(BytesIO(PNG_SIGNATURE + b"".join(chunks))))


def test_files_that_contradict_themselves_have_a_thumbnail_or_none(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    found = []
    for content in contradictory_images():
        path.write_bytes(content)
        found.append(thumbnail_of(path) is not None)
    assert any(found)
    assert not all(found)
