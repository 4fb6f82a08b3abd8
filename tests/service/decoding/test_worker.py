"""What a decoding worker makes of a job, in this process."""

import torch
from PIL import ExifTags, Image

from eulerlora.preprocess import resize, upright_rgb
from eulerlora.seeds import content_seed
from eulerlora_client.contract.problems import UnusableImage
from eulerlora_client.policy.quality import measure_quality
from service.decoding.decode import Declared
from service.decoding.worker import Done, Job, perform
from service.settings import ImageLimits

LIMITS = ImageLimits()
REVISION = "sha256:0"
UNDECLARED = Declared()


def done(content: bytes, declared: Declared = UNDECLARED, revision: str = REVISION) -> Done:
    found = perform(Job(content, declared, 32, revision), LIMITS)
    assert isinstance(found, Done), found
    return found


def test_an_image_becomes_the_resized_pixels(png, photo) -> None:
    found = done(png, Declared("image/png"))
    assert torch.equal(torch.from_numpy(found.pixels), resize(upright_rgb(photo).pixels, 32))
    assert found.warnings == ()
    assert 0 < found.decode_s < 20


def test_the_content_seed_comes_from_the_pixels_and_the_revision_alone(photo, encode, png) -> None:
    wanted = content_seed(upright_rgb(photo).pixels, REVISION)
    assert done(png).content_seed == wanted
    assert done(encode(photo, "WEBP", lossless=True)).content_seed == wanted
    assert done(encode(photo.rotate(90), "PNG")).content_seed != wanted
    assert done(png, revision="sha256:1").content_seed != wanted


def test_warnings_of_the_decoding_are_kept(encode, photo) -> None:
    assert len(done(encode(photo.convert("P"), "PNG"), Declared("image/jpeg")).warnings) == 2


def test_quality_is_measured_on_the_whole_upright_picture_where_it_is_wanted(encode, photo) -> None:
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    content = encode(photo, "PNG", exif=turned)
    found = perform(Job(content, UNDECLARED, 32, REVISION, measured=True), LIMITS)
    assert isinstance(found, Done)
    assert found.quality == measure_quality(photo.rotate(-90, expand=True))
    assert done(content).quality is None


def test_an_image_outside_the_limits_is_not_decoded(png) -> None:
    found = perform(Job(png, Declared(), 32, REVISION), ImageLimits(max_side=63))
    assert isinstance(found, UnusableImage)
