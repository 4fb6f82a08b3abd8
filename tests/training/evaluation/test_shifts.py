"""Shifts change what their names state, deterministically, and keep the image's size."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from training.data.images import LabelledImage, read_image
from training.evaluation.shifts import SHIFTS, Shift, with_shift


@pytest.fixture
def pixels() -> Tensor:
    """Returns a smooth gradient, (3, 60, 80) uint8, that brightness changes do not clip much."""
    steps = torch.linspace(60, 190, 80).expand(3, 60, 80)
    return steps.to(torch.uint8)


@pytest.mark.parametrize("change", SHIFTS.values(), ids=lambda change: change.name)
def test_a_change_is_deterministic_and_does_not_modify_its_input(
    change: Shift, picture: Tensor
) -> None:
    before = picture.clone()
    changed = change.apply(picture)
    torch.rand(3)
    assert torch.equal(changed, change.apply(picture))
    assert torch.equal(picture, before)
    assert not torch.equal(changed, picture)
    assert (changed.dtype, changed.shape) == (torch.uint8, picture.shape)


def test_noise_has_its_sigma_and_differs_between_images(pixels: Tensor) -> None:
    other, shift = pixels.flip(-1), SHIFTS["noisy"]
    noise = shift.apply(pixels).float() - pixels
    assert float(noise.std()) == pytest.approx(255 * 0.15, rel=0.05)
    assert abs(float(noise.mean())) < 2
    assert not torch.allclose(noise, shift.apply(other).float() - other)


@pytest.mark.parametrize(("name", "factor"), [("brighter", 1.8), ("darker", 0.4)])
def test_brightness_multiplies_the_pixels(pixels: Tensor, name: str, factor: float) -> None:
    expected = (pixels.float() * factor).clamp(0, 255)
    torch.testing.assert_close(SHIFTS[name].apply(pixels).float(), expected, atol=1, rtol=0)


def test_blur_agrees_with_scipy_with_sigma_relative_to_the_shorter_side() -> None:
    noise = torch.randint(0, 256, (3, 60, 80), generator=torch.Generator().manual_seed(0))
    pixels, sigma = noise.to(torch.uint8), 0.03 * 60
    expected = gaussian_filter(pixels.numpy().astype(float), (0, sigma, sigma), mode="mirror")
    np.testing.assert_allclose(SHIFTS["blurred"].apply(pixels).numpy(), expected, atol=2.5)


def test_changed_images_keep_their_labels_and_are_made_when_they_are_read(pixels: Tensor) -> None:
    image = LabelledImage("a", pixels, 2, "lesion 7", {"sex": "male"})
    (shifted,) = with_shift([image], SHIFTS["noisy"])
    assert (shifted.name, shifted.label, shifted.cluster) == ("a", 2, "lesion 7")
    assert shifted.groups == image.groups
    changed = read_image(shifted.name, shifted.source)
    assert torch.equal(changed, SHIFTS["noisy"].apply(pixels))


@pytest.fixture
def picture() -> Tensor:
    """Returns colourful picture without extreme values, (3, 60, 80) uint8."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(60, 130, (3, 60, 80), generator=generator).to(torch.uint8)


def means(picture: Tensor) -> list[float]:
    colours: list[float] = picture.float().mean(dim=(1, 2)).tolist()
    return colours


def test_casts_change_the_balance_of_red_and_blue(picture: Tensor) -> None:
    red, green, blue = means(picture)
    warm, cold = (means(SHIFTS[f"colour-cast-{name}"].apply(picture)) for name in ("warm", "cold"))
    assert warm == pytest.approx([1.25 * red, green, 0.7 * blue], rel=0.01)
    assert cold == pytest.approx([0.7 * red, green, 1.25 * blue], rel=0.01)


def test_inversion_is_its_own_inverse_and_rotation_has_order_three(
    picture: Tensor,
) -> None:
    invert, rotate = SHIFTS["colour-inverted"].transform, SHIFTS["colour-rotated"].transform
    assert torch.equal(invert(invert(picture)), picture)
    assert torch.equal(rotate(rotate(rotate(picture))), picture)
    assert means(rotate(picture))[1] == means(picture)[0]


def test_the_camera_border_is_black_and_the_centre_unchanged(picture: Tensor) -> None:
    changed = SHIFTS["camera-border"].apply(picture)
    assert float(changed[:, :5, :5].sum()) == 0
    assert torch.equal(changed[:, 20:40, 30:50], picture[:, 20:40, 30:50])


def test_a_pasted_lesion_covers_an_ellipse_of_another_picture() -> None:
    lesion = torch.zeros(3, 60, 80, dtype=torch.uint8)
    lesion[0] = 200
    changed = SHIFTS["pasted-lesion"].apply(lesion)
    covered = (changed == torch.tensor([200, 0, 0])[:, None, None]).all(dim=0)
    assert 0.14 < float(covered.float().mean()) < 0.25  # pi / 4 of a quarter, less the soft edge
    sides = [covered.any(dim=axis).sum().item() for axis in (1, 0)]
    assert sides == pytest.approx([30, 40], abs=3)
