"""Images become the network's input: orientation, modes, colours, transparency, resizing."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from torch import Generator, Tensor
from torch.nn import functional
from torchvision.transforms import v2

from eulerlora.images.decode import decode, upright_rgb
from eulerlora.images.preprocess import content_seed, network_input, resize, shades_of_gray
from eulerlora.methods.registry import build_network
from eulerlora.nn.method import RowDraws
from eulerlora.nn.rows import Rows
from eulerlora.settings import Draw, Preprocessing
from eulerlora_contract.answers import WarningCode
from eulerlora_contract.errors import ImageError
from tests.conftest import TINY_ADAPTERS, random_network
from tests.icc_profiles import (
    ADOBE_RGB,
    D50,
    DISPLAY_P3,
    SRGB,
    WIDE_SPACES,
    RgbSpace,
    cmyk_profile,
    gray_profile,
    in_srgb,
    linear_to_srgb,
    rgb_profile,
)

ORIENTATION = 0x0112
# EXIF 2.3, "Orientation": which visual side the stored rows and columns start from
FIRST_ROW_AND_COLUMN = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def noise(*shape: int, high: int = 256) -> np.ndarray:
    return np.random.default_rng(0).integers(0, high, shape).astype(np.uint8)


def array(image) -> np.ndarray:
    """(height, width, 3)"""
    pixels = getattr(image, "pixels", image)
    return pixels.permute(1, 2, 0).numpy()


def messages(image) -> list[str]:
    return [warning.message for warning in image.warnings]


def as_stored(upright: np.ndarray, orientation: int) -> np.ndarray:
    """The pixels as a camera stores them with this orientation tag."""
    row, column = FIRST_ROW_AND_COLUMN[orientation]
    if "bottom" in (row, column):
        upright = upright[::-1]
    if "right" in (row, column):
        upright = upright[:, ::-1]
    return upright.swapaxes(0, 1) if row in ("left", "right") else upright


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def levels_in(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)))


def tagged(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


@pytest.mark.parametrize("orientation", FIRST_ROW_AND_COLUMN)
def test_every_exif_orientation_gives_the_upright_images_pixels(orientation: int) -> None:
    upright = noise(4, 6, 3)
    stored = Image.fromarray(np.ascontiguousarray(as_stored(upright, orientation)))
    actual = decode(encoded(stored, exif=tagged(orientation)))
    assert np.array_equal(array(actual.pixels), upright)
    assert actual.warnings == ()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16"])
def test_the_orientation_is_applied_in_every_mode(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(noise(4, 6).astype(np.uint16) * 257)
    else:
        image = Image.fromarray(noise(4, 6, 3)).convert(mode)
    turned = decode(encoded(image, exif=tagged(6))).pixels
    plain = decode(encoded(image)).pixels
    assert torch.equal(turned, plain.rot90(-1, dims=(1, 2)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", [b"garbage", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff"])
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_a_damaged_exif_block_is_ignored(kind: str, exif: bytes) -> None:
    image = Image.fromarray(noise(4, 6, 3))
    prefix = b"Exif\0\0" if kind == "JPEG" else b""
    damaged = decode(encoded(image, kind, exif=prefix + exif)).pixels
    assert torch.equal(damaged, decode(encoded(image, kind)).pixels)


@pytest.mark.parametrize(
    ("levels", "dtype"), [((0, 0.5), np.float32), ((0, 65_536), np.int32), ((-1, 9), np.int32)]
)
def test_gray_without_a_range_or_beyond_16_bits_is_refused(
    levels: tuple[float, float], dtype: type[np.number]
) -> None:
    with pytest.raises(ImageError):
        upright_rgb(Image.fromarray(np.array([levels], dtype=dtype)))


@pytest.mark.parametrize("dtype", [">u2", "<u2"])
def test_16_bit_gray_is_scaled_to_8_bits_and_not_clipped(dtype: str) -> None:
    wide = np.arange(0, 65536, 13, dtype=np.uint16)[:5000].reshape(50, 100)
    wide[-1, -1] = 65535
    mode = "I;16B" if dtype == ">u2" else "I;16"
    image = Image.frombytes(mode, (100, 50), wide.astype(dtype).tobytes())
    actual = upright_rgb(image)
    expected = np.round(wide / 257).astype(np.uint8)
    assert np.array_equal(array(actual.pixels), np.stack([expected] * 3, axis=-1))
    assert actual.warnings


@pytest.mark.parametrize("transparent", [None, 2])
def test_a_palette_is_converted_to_its_colours_over_white(transparent: int | None) -> None:
    colours, indices = noise(7, 3), noise(4, 6, high=7)
    image = Image.fromarray(indices).convert("L")
    image.putpalette(colours.flatten().tolist())
    options = {} if transparent is None else {"transparency": transparent}
    actual = decode(encoded(image, **options))
    if transparent is not None:
        colours[transparent] = 255
    assert np.array_equal(array(actual.pixels), colours[indices])
    assert codes(actual)[0] == WarningCode.CONVERTED_TO_RGB


@pytest.mark.parametrize("channels", [2, 4], ids=["gray+alpha", "RGBA"])
def test_transparency_is_composited_on_white(channels: int) -> None:
    layers = noise(8, 9, channels)
    colour, alpha = layers[..., :-1].astype(float), layers[..., -1:] / 255
    image = Image.frombytes("LA" if channels == 2 else "RGBA", (9, 8), layers.tobytes())
    actual = decode(encoded(image))
    expected = np.broadcast_to(alpha * colour + (1 - alpha) * 255, (8, 9, 3))
    assert np.abs(array(actual.pixels) - expected).max() <= 1
    assert len(actual.warnings) == 1


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (1, 2, 3)), ("L", 7)])
def test_a_transparent_colour_lies_over_white_and_is_warned_of(
    mode: str, colour: tuple[int, ...] | int
) -> None:
    image = Image.new(mode, (3, 2), colour)
    image.putpixel((0, 0), (9, 9, 9) if mode == "RGB" else 9)
    actual = decode(encoded(image, transparency=colour))
    expected = np.full((2, 3, 3), 255)
    expected[0, 0] = 9
    assert np.array_equal(array(actual.pixels), expected)
    assert actual.warnings


@pytest.mark.parametrize(
    ("alpha", "accepted"),
    [([255] * 2 + [0] * 14, True), ([128] * 16, True), ([128] * 4 + [0] * 12, True),
     ([255] + [0] * 15, False), ([127] * 16, False)],
)  # fmt: skip
def test_an_image_that_is_transparent_nearly_everywhere_is_refused(alpha, accepted) -> None:
    image = Image.new("RGBA", (4, 4), (10, 20, 30))
    image.putalpha(Image.frombytes("L", (4, 4), bytes(alpha)))
    if accepted:
        shown = [255 + (colour - 255) * alpha[0] / 255 for colour in (10, 20, 30)]
        assert upright_rgb(image).pixels[:, 0, 0].tolist() == pytest.approx(shown, abs=1)
    else:
        with pytest.raises(ImageError, match="nearly transparent"):
            upright_rgb(image)


def test_cmyk_is_converted_with_black_multiplied_in() -> None:
    inks = noise(8, 9, 4)
    actual = upright_rgb(Image.frombytes("CMYK", (9, 8), inks.tobytes()))
    paper = 255.0 - inks
    assert np.abs(array(actual.pixels) - paper[..., :3] * paper[..., 3:] / 255).max() <= 1
    assert messages(actual) == ["converted from CMYK to RGB"]


def ycck_jpeg(stored: np.ndarray, transform: int) -> bytes:
    """A JPEG with these four components and an Adobe marker; transform: 0 CMYK, 2 YCCK.

    Pillow writes inverted inks without a transform, so that the components are as stored here.
    """
    file = io.BytesIO()
    inks = Image.frombytes("CMYK", stored.shape[1::-1], (255 - stored).tobytes())
    inks.save(file, "JPEG", quality=100, subsampling=0)
    content = bytearray(file.getvalue())
    flag = content.index(b"\xff\xee\0\x0eAdobe") + 15
    assert content[flag] == 0
    content[flag] = transform
    return bytes(content)


def smooth(seed: int, *shape: int) -> np.ndarray:
    """Blurred noise, which a JPEG of the best quality changes by few levels."""
    layers = np.random.default_rng(seed).integers(0, 256, (4, 4, shape[-1])).astype(np.uint8)
    channels = [Image.fromarray(layers[..., k]).resize(shape[1::-1]) for k in range(shape[-1])]
    return np.stack([np.asarray(channel) for channel in channels], axis=-1)


def test_a_cmyk_jpeg_stores_inverted_inks() -> None:
    stored = smooth(0, 32, 48, 4)
    actual = decode(ycck_jpeg(stored, 0))
    expected = stored[..., :3] * (stored[..., 3:] / 255)
    assert np.abs(array(actual.pixels) - expected).max() <= 4


def test_a_ycck_jpeg_is_converted_as_adobe_s_technical_note_5116_says() -> None:
    stored = smooth(1, 32, 48, 4)
    stored[..., 1:3] = 96 + stored[..., 1:3] // 4  # chroma of colours that exist
    actual = decode(ycck_jpeg(stored, 2))
    luma, blue, red, key = np.moveaxis(stored.astype(float) - [0, 128, 128, 0], -1, 0)
    complement = np.stack(
        [luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue], axis=-1
    )
    inverted_inks = 255 - np.clip(complement, 0, 255)
    expected = inverted_inks * (key[..., None] / 255)
    assert np.abs(array(actual.pixels) - expected).max() <= 6
    assert np.ptp(expected, axis=(0, 1)).min() > 60


def without_palette() -> Image.Image:
    image = Image.new("P", (4, 4))
    image.palette = None
    return image


def with_transparency_of_a_palette() -> Image.Image:
    image = Image.new("RGB", (4, 4))
    image.info["transparency"] = bytes(3)
    return image


def truncated() -> Image.Image:
    file = io.BytesIO()
    Image.fromarray(noise(40, 60, 3)).save(file, "PNG")
    return Image.open(io.BytesIO(file.getvalue()[:500]))


@pytest.mark.parametrize(
    ("create", "named"),
    [
        (lambda: Image.new("La", (4, 4)), "La"),
        (lambda: Image.new("RGBA", (4, 4)), "fully transparent"),
        (lambda: Image.new("LA", (4, 4)), "fully transparent"),
        (without_palette, "no palette"),
        (with_transparency_of_a_palette, "header"),
        (truncated, "truncated"),
    ],
)
def test_an_image_without_usable_pixels_is_refused(
    create: Callable[[], Image.Image], named: str
) -> None:
    with pytest.raises(ImageError, match=named):
        upright_rgb(create())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_plain_image_is_returned_as_decoded(kind: str) -> None:
    plain = encoded(Image.fromarray(noise(4, 6, 3)), kind)
    assert np.array_equal(array(decode(plain)), levels_in(plain))


@pytest.mark.parametrize("shape", [(450, 600), (60, 33), (32, 32), (7, 300)])
def test_resizing_equals_torchvisions_transform_on_floats(shape: tuple[int, int]) -> None:
    pixels = noise(*shape, 3)
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Resize((32, 32), v2.InterpolationMode.BILINEAR, antialias=True),
        ]
    )
    actual = resize(torch.from_numpy(pixels).permute(2, 0, 1), 32)
    assert torch.equal(actual, transform(Image.fromarray(pixels)).as_subclass(Tensor))


def test_floats_and_batches_are_resized_as_the_bytes_they_came_from() -> None:
    pixels = torch.randint(
        0, 256, (2, 3, 40, 50), generator=Generator().manual_seed(0), dtype=torch.uint8
    )
    batch = resize(pixels, 32)
    assert batch.shape == (2, 3, 32, 32)
    torch.testing.assert_close(resize(pixels.double() / 255, 32), batch)
    torch.testing.assert_close(batch[1], resize(pixels[1], 32))
    expected = functional.interpolate(
        pixels / 255, (32, 32), mode="bilinear", antialias=True, align_corners=False
    )
    torch.testing.assert_close(batch, expected)


@pytest.mark.parametrize("shape", [(300, 401), (401, 300), (64, 64)])
@pytest.mark.parametrize(
    ("interpolation", "mode"),
    [("bilinear-antialias", "BILINEAR"), ("bicubic-antialias", "BICUBIC")],
)
def test_a_crop_is_that_of_torchvision(
    shape: tuple[int, int], interpolation: str, mode: str
) -> None:
    pixels = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    preprocessing = Preprocessing.model_validate(
        {"resize": "crop", "interpolation": interpolation, "size": 48, "shorter_side": 56}
    )
    interpolate = v2.InterpolationMode[mode]
    expected = v2.Compose([v2.Resize(56, interpolate, antialias=True), v2.CenterCrop(48)])(pixels)
    actual = network_input(pixels, preprocessing)
    assert actual.shape == (3, 48, 48)
    torch.testing.assert_close(actual, expected.clamp(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(150, 200), (450, 600), (900, 700), (60, 33), (80, 80)])
def test_a_canvas_gives_the_whole_image_and_crops_at_one_resolution(
    shape: tuple[int, int],
) -> None:
    pixels = torch.from_numpy(noise(3, *shape))
    preprocessing = Preprocessing(size=56, canvas=(100, 75))
    whole, *crops = actual = network_input(pixels, preprocessing)
    assert actual.shape == preprocessing.shape
    assert torch.equal(whole, network_input(pixels, Preprocessing(size=56)))
    sides = [100, 75] if shape[0] > shape[1] else [75, 100]
    canvas = v2.functional.resize(pixels / 255, sides, antialias=True)
    height, width = (side - 56 for side in sides)
    places = [(height // 2, width // 2), (0, 0), (0, width), (height, 0), (height, width)]
    for crop, place in zip(crops, places, strict=True):
        expected = v2.functional.crop(canvas, *place, 56, 56)
        torch.testing.assert_close(crop, expected, rtol=0, atol=1e-5)
    several = network_input(torch.stack([pixels, pixels.flip(-1)]), preprocessing)
    torch.testing.assert_close(several[0], actual)


LITTLECMS_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
TOLERANCE = 1.0  # of 255 levels, between rounded levels and exact ones


def codes(image) -> list[str]:
    return [warning.code for warning in image.warnings]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("space", WIDE_SPACES, ids=lambda space: space.name)
def test_the_colours_of_wide_spaces_are_those_computed_from_their_primaries(
    space: RgbSpace, kind: str
) -> None:
    image = Image.fromarray(noise(40, 50, 3))
    decoded = levels_in(encoded(image, kind))
    actual = decode(encoded(image, kind, icc_profile=rgb_profile(space)))
    expected = in_srgb(decoded, space)
    assert np.abs(expected - decoded).max() > 30
    assert np.abs(array(actual) - expected).max() <= TOLERANCE
    assert codes(actual) == [WarningCode.CONVERTED_TO_SRGB]


def test_rotated_transparent_and_indexed_images_are_converted_as_plain_ones() -> None:
    colours = noise(4, 3)
    indices = np.arange(4, dtype=np.uint8).reshape(2, 2)
    profile, expected = rgb_profile(ADOBE_RGB), in_srgb(colours[indices], ADOBE_RGB)
    indexed = Image.fromarray(indices).convert("L")
    indexed.putpalette(colours.flatten().tolist())
    opaque = np.concatenate([colours[indices], np.full((2, 2, 1), 255, np.uint8)], axis=-1)
    for image in (indexed, Image.fromarray(opaque)):
        actual = decode(encoded(image, icc_profile=profile))
        assert np.abs(array(actual) - expected).max() <= TOLERANCE
        assert codes(actual) == [WarningCode.CONVERTED_TO_RGB, WarningCode.CONVERTED_TO_SRGB]
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = decode(encoded(Image.fromarray(opaque), icc_profile=profile, exif=exif))
    assert np.abs(array(turned) - np.rot90(expected, -1)).max() <= TOLERANCE


def test_transparent_colours_are_composited_after_their_conversion() -> None:
    layers = noise(20, 30, 4)
    actual = decode(encoded(Image.fromarray(layers), icc_profile=rgb_profile(DISPLAY_P3)))
    alpha = layers[..., 3:] / 255
    expected = alpha * in_srgb(layers[..., :3], DISPLAY_P3) + (1 - alpha) * 255
    assert np.abs(array(actual) - expected).max() <= TOLERANCE + 1  # composition rounds too


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_gray_is_converted_by_the_curve_of_its_profile(mode: str) -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = Image.fromarray(gray)
    if mode == "LA":
        image.putalpha(255)
    elif mode == "I;16":
        image = Image.fromarray(gray.astype(np.uint16) * 257)
    actual = decode(encoded(image, icc_profile=gray_profile(1.5)))
    expected = 255 * linear_to_srgb((gray / 255) ** 1.5)
    assert np.abs(array(actual) - expected[..., None]).max() <= 2  # 16-bit curve, 8-bit levels
    assert codes(actual)[-1] == WarningCode.CONVERTED_TO_SRGB


def test_gray_pixels_with_an_rgb_profile_are_its_equal_channels() -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    actual = decode(encoded(Image.fromarray(gray), "JPEG", icc_profile=rgb_profile(ADOBE_RGB)))
    decoded = levels_in(encoded(Image.fromarray(gray), "JPEG"))
    expected = in_srgb(np.repeat(decoded[..., None], 3, axis=-1), ADOBE_RGB)
    assert np.abs(array(actual) - expected).max() <= TOLERANCE


def paper(inks: np.ndarray) -> np.ndarray:
    """XYZ of a paper on which every ink removes a part of the light of each primary."""
    absorbed = np.array([[0.9, 0.1, 0.0], [0.1, 0.8, 0.2], [0.0, 0.1, 0.7], [0.95, 0.95, 0.95]])
    light = np.prod(1 - inks[..., None] * absorbed, axis=-2)
    return light @ SRGB.to_d50.T


def test_cmyk_is_converted_by_the_table_of_its_profile() -> None:
    inks = noise(60, 80, 4)
    image = Image.frombytes("CMYK", (80, 60), inks.tobytes())
    with Image.open(io.BytesIO(encoded(image, "TIFF", icc_profile=cmyk_profile(paper)))) as opened:
        actual = upright_rgb(opened)
    darkest = paper(np.ones(4))[1]  # becomes black: the perceptual intent compensates for it
    light = (paper(inks / 255) - darkest * D50) / (1 - darkest) @ np.linalg.inv(SRGB.to_d50).T
    expected = 255 * linear_to_srgb(np.clip(light, 0, 1))
    error = np.abs(array(actual) - expected)
    assert error.mean() < 1  # LittleCMS interpolates the table
    assert np.percentile(error, 99) < 8  # in the darkest colours
    assert codes(actual) == [WarningCode.CONVERTED_TO_RGB, WarningCode.CONVERTED_TO_SRGB]


@pytest.mark.parametrize(
    "profile", [LITTLECMS_SRGB, rgb_profile(SRGB)], ids=["of LittleCMS", "with a table"]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_profile_of_srgb_changes_no_pixel_and_gives_no_warning(kind: str, profile: bytes) -> None:
    image = Image.fromarray(noise(20, 30, 3))
    actual = decode(encoded(image, kind, icc_profile=profile))
    assert torch.equal(actual.pixels, decode(encoded(image, kind)).pixels)
    assert actual.warnings == ()


BROKEN = {
    "text": b"not a profile",
    "zeros": bytes(200),
    "truncated": rgb_profile(DISPLAY_P3)[:200],
    "without its curves": rgb_profile(DISPLAY_P3).replace(b"TRC", b"XXX"),
    "a device link": rgb_profile(DISPLAY_P3).replace(b"mntr", b"link", 1),
    "another colour space": rgb_profile(DISPLAY_P3).replace(b"RGB ", b"Lab ", 1),
    "for other images": cmyk_profile(paper),
}


@pytest.mark.parametrize("profile", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_broken_profile_is_ignored_with_a_warning(kind: str, profile: bytes) -> None:
    image = Image.fromarray(noise(20, 30, 3))
    actual = decode(encoded(image, kind, icc_profile=profile))
    assert torch.equal(actual.pixels, decode(encoded(image, kind)).pixels)
    assert codes(actual) == [WarningCode.PROFILE_IGNORED]
    assert actual.warnings[0].message.startswith("the colour profile is ignored: it is ")


IMAGES = 0.2 + 0.4 * torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
GRAY = Preprocessing(size=32, colour_constancy="shades-of-gray")
GAINS = torch.tensor([1.4, 1.0, 0.7])[:, None, None]


def test_the_colour_of_the_light_does_not_change_the_result_up_to_brightness() -> None:
    plain, lit = shades_of_gray(IMAGES), shades_of_gray(IMAGES * GAINS)
    ratio = lit / plain
    torch.testing.assert_close(ratio, ratio.mean(dim=(-3, -2, -1), keepdim=True).expand_as(ratio))


def test_a_gray_image_and_a_black_one_do_not_change() -> None:
    gray = IMAGES[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(shades_of_gray(gray), gray)
    assert torch.equal(shades_of_gray(torch.zeros(3, 8, 8)), torch.zeros(3, 8, 8))


def test_a_saturated_result_is_clipped_to_the_unit_range() -> None:
    blue = torch.stack([torch.full((8, 8), level) for level in (0.01, 0.01, 1.0)])
    blue[:, 0, 0] = 1.0
    result = shades_of_gray(blue)
    assert result.min() >= 0
    assert result.max() == 1


def test_the_network_applies_the_method_first() -> None:
    plain = random_network()
    network = build_network(plain.backbone, TINY_ADAPTERS, 3, GRAY)
    network.load_state_dict(plain.state_dict())
    rows = Rows.of([1] * len(IMAGES), TINY_ADAPTERS.adapters)
    draws = RowDraws.of_coefficients(torch.ones(len(rows), plain.depth, 4, TINY_ADAPTERS.rank))
    expected = plain(shades_of_gray(IMAGES), rows, draws)
    assert torch.equal(network(IMAGES, rows, draws), expected)
    assert not torch.allclose(plain(IMAGES, rows, draws), expected)


DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def pixels() -> Tensor:
    shape = (3, 4, 6)
    generator = Generator().manual_seed(0)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def test_a_seed_is_valid_for_a_draw(pixels: Tensor) -> None:
    seeds = [content_seed(pixels, str(number)) for number in range(200)]
    for seed in seeds:
        Draw(mode="stoch", seed=seed)
    assert len(set(seeds)) == 200
    assert min(seeds) < 2**30
    assert max(seeds) > 3 * 2**30


def test_the_seed_depends_on_digest_values_shape_and_dtype_only(pixels: Tensor) -> None:
    strided = pixels.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert not strided.is_contiguous()
    assert content_seed(strided, DIGEST) == content_seed(pixels, DIGEST)
    changed = pixels.clone()
    changed[2, 3, 5] ^= 1
    others = [changed, pixels.reshape(3, 6, 4), pixels.view(torch.int8), pixels.float()]
    seeds = {content_seed(values, DIGEST) for values in (pixels, *others)}
    assert len(seeds | {content_seed(pixels, DIGEST[:-1] + "1")}) == 6
