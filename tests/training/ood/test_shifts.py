"""Shifts change what their names state and keep the image's size."""

import pytest
import torch
from torch import Tensor

from training.data.images import LabelledImage
from training.ood.corruptions import with_corruption
from training.ood.shifts import SHIFTS


@pytest.fixture
def pixels() -> Tensor:
    """Returns colourful pixels without extreme values, (3, 60, 80) uint8."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(60, 130, (3, 60, 80), generator=generator).to(torch.uint8)


def means(pixels: Tensor) -> list[float]:
    colours: list[float] = pixels.float().mean(dim=(1, 2)).tolist()
    return colours


@pytest.mark.parametrize("name", SHIFTS)
def test_a_shift_is_deterministic_and_does_not_modify_its_input(name: str, pixels: Tensor) -> None:
    before = pixels.clone()
    changed = SHIFTS[name].apply(pixels)
    torch.rand(3)
    assert torch.equal(changed, SHIFTS[name].apply(pixels))
    assert torch.equal(pixels, before)
    assert not torch.equal(changed, pixels)
    assert (changed.dtype, changed.shape) == (torch.uint8, pixels.shape)


def test_casts_change_the_balance_of_red_and_blue(pixels: Tensor) -> None:
    red, green, blue = means(pixels)
    warm, cold = (means(SHIFTS[f"colour-cast-{name}"].apply(pixels)) for name in ("warm", "cold"))
    assert warm == pytest.approx([1.25 * red, green, 0.7 * blue], rel=0.01)
    assert cold == pytest.approx([0.7 * red, green, 1.25 * blue], rel=0.01)


def test_brightness_is_multiplied(pixels: Tensor) -> None:
    for name, factor in (("brighter", 1.8), ("darker", 0.4)):
        expected = [factor * mean for mean in means(pixels)]
        assert means(SHIFTS[name].apply(pixels)) == pytest.approx(expected, rel=0.02)


def test_inversion_is_its_own_inverse_and_rotation_has_order_three(pixels: Tensor) -> None:
    invert, rotate = SHIFTS["colour-inverted"].transform, SHIFTS["colour-rotated"].transform
    assert torch.equal(invert(invert(pixels)), pixels)
    assert torch.equal(rotate(rotate(rotate(pixels))), pixels)
    assert means(rotate(pixels))[1] == means(pixels)[0]


def test_the_camera_border_is_black_and_the_centre_unchanged(pixels: Tensor) -> None:
    changed = SHIFTS["camera-border"].apply(pixels)
    assert float(changed[:, :5, :5].sum()) == 0
    assert torch.equal(changed[:, 20:40, 30:50], pixels[:, 20:40, 30:50])


def test_a_pasted_lesion_covers_an_ellipse_of_another_picture() -> None:
    lesion = torch.zeros(3, 60, 80, dtype=torch.uint8)
    lesion[0] = 200
    changed = SHIFTS["pasted-lesion"].apply(lesion)
    covered = (changed == torch.tensor([200, 0, 0])[:, None, None]).all(dim=0)
    assert 0.14 < float(covered.float().mean()) < 0.25  # pi / 4 of a quarter, less the soft edge
    sides = [covered.any(dim=axis).sum().item() for axis in (1, 0)]
    assert sides == pytest.approx([30, 40], abs=3)


def test_shifted_images_keep_label_cluster_and_groups(pixels: Tensor) -> None:
    image = LabelledImage("a", pixels, 2, "lesion 7", {"sex": "male"})
    (shifted,) = with_corruption([image], SHIFTS["darker"])
    assert (shifted.name, shifted.label, shifted.cluster) == ("a", 2, "lesion 7")
    assert shifted.groups == image.groups
