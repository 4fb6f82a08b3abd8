"""The jobs of a decoder process, run in this process."""

import pytest
from PIL import ExifTags, Image, ImageOps

from eulerlora.settings import Preprocessing
from eulerlora_contract.quality import measure_quality
from service.decoding.formats import Declared
from service.decoding.messages import DecodedInput, DecodeJob
from service.decoding.worker import run_job
from tests.service.conftest import encoded
from tests.service.settings import settings_of

LIMITS = settings_of("images")
REVISION = "sha256:0"
UNDECLARED = Declared()
INPUT = Preprocessing(size=32)


def test_quality_is_measured_on_the_whole_upright_image_on_request(photo) -> None:
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    content = encoded(photo, "PNG", exif=turned)
    result = run_job(DecodeJob(content, UNDECLARED, INPUT, REVISION, with_quality=True), LIMITS)
    assert isinstance(result, DecodedInput)
    assert result.quality == measure_quality(photo.rotate(-90, expand=True))
    unmeasured = run_job(DecodeJob(content, UNDECLARED, INPUT, REVISION), LIMITS)
    assert isinstance(unmeasured, DecodedInput)
    assert unmeasured.quality is None


@pytest.mark.parametrize("code", ["frame", "ruler"])
def test_a_frame_and_a_ruler_are_named_with_the_quality_and_change_no_pixel(photo, code) -> None:
    frame = ImageOps.expand(photo, photo.height // 16, (3, 3, 3))
    ruler = photo.resize((600, 450))
    for x in range(20, 590, 30):
        ruler.paste((20, 20, 20), (x, 0, x + 3, 25))
    content = encoded({"frame": frame, "ruler": ruler}[code], "PNG")
    named, plain = (
        run_job(DecodeJob(content, UNDECLARED, INPUT, REVISION, with_quality=asked), LIMITS)
        for asked in (True, False)
    )
    assert isinstance(named, DecodedInput) and isinstance(plain, DecodedInput)
    assert ([one.code for one in named.warnings], plain.warnings) == ([code], ())
    assert (named.pixels == plain.pixels).all()


def test_the_quality_of_a_reduced_image_has_the_size_of_the_original(photo) -> None:
    large = photo.resize((2000, 1500), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    content = encoded(large, "JPEG", exif=turned, quality=95)
    result = run_job(DecodeJob(content, UNDECLARED, INPUT, REVISION, with_quality=True), LIMITS)
    assert isinstance(result, DecodedInput)
    assert result.quality is not None
    full = measure_quality(large.rotate(-90, expand=True))
    assert (result.quality.width, result.quality.height) == (1500, 2000)
    assert result.quality.brightness == pytest.approx(full.brightness, abs=0.002)
    assert result.quality.sharpness == pytest.approx(full.sharpness, rel=0.05)
