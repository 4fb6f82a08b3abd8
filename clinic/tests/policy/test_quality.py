"""Images that the packaged policy asks to retake."""

from collections.abc import Callable

import pytest
from PIL import Image, ImageFilter

from eulerlora_clinic.policy.policy import AnswerSummary, default_policy
from eulerlora_contract.answers import Reason
from eulerlora_contract.quality import measure_quality
from tests.eulerlora_contract.policy_inputs import make_prediction
from tests.eulerlora_contract.test_quality import lesion, real_images

__all__ = ["real_images"]


def reasons(image: Image.Image) -> set[Reason]:
    summary = AnswerSummary(make_prediction())
    return set(default_policy().decide(summary, measure_quality(image)).reasons)


def test_an_image_of_32_pixels_is_too_small_and_one_of_200_by_150_is_not() -> None:
    assert Reason.TOO_SMALL in reasons(lesion(32, 32))
    assert reasons(lesion(200, 150)) == set()


@pytest.mark.data
@pytest.mark.slow  # reads an archive of 10,000 images
def test_at_most_one_real_image_in_a_hundred_is_to_be_retaken(
    real_images: list[Image.Image],
) -> None:
    retaken = [image for image in real_images if reasons(image)]
    assert len(real_images) > 200
    assert len(retaken) <= 0.01 * len(real_images)


@pytest.mark.data
@pytest.mark.slow  # reads an archive of 10,000 images
@pytest.mark.parametrize(
    ("degrade", "reason", "min_share"),
    [
        (lambda image: image.filter(ImageFilter.GaussianBlur(2)), Reason.BLURRED, 0.85),
        (lambda image: image.filter(ImageFilter.GaussianBlur(3)), Reason.BLURRED, 0.98),
        (lambda image: image.point(lambda level: level // 4), Reason.TOO_DARK, 0.9),
        (lambda image: image.point(lambda level: level * 2), Reason.TOO_BRIGHT, 0.9),
        (lambda image: image.resize((96, 72)), Reason.TOO_SMALL, 1),
    ],
)
def test_degraded_copies_of_real_images_are_to_be_retaken(
    real_images: list[Image.Image],
    degrade: Callable[[Image.Image], Image.Image],
    reason: Reason,
    min_share: float,
) -> None:
    flagged = [reason in reasons(degrade(image)) for image in real_images]
    assert sum(flagged) >= min_share * len(flagged)
