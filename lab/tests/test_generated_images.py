"""Generated pictures are deterministic, of the stated kinds, and differ from each other.

Skin without a lesion: usable corners of test images, and tones in the order of their types.

Shifts change what their names state, deterministically, and keep the image's size.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from eulerlora_lab.generated_images import GENERATED
from training.data.images import OUTSIDE, LabelledImage
from training.evaluation.ood_sets import ood_sources

IMAGES = 200
SHIFTS = [name for name, made in GENERATED.items() if made.group == "shifted"]
DRAWN = ("noise", "solid-colours", "rendered-text", "digits-8x8")
TYPES = [f"type-{number}" for number in range(1, 7)]


def shifted(pixels: Tensor, name: str) -> Tensor:
    (image,) = GENERATED[name].images([LabelledImage("a", pixels, 0)])
    return image.pixels()


def test_evaluate_knows_all_sets_and_those_of_a_group() -> None:
    assert ood_sources(["generated"]) == {name: made.group for name, made in GENERATED.items()}
    assert set(ood_sources(["shifted:generated"])) == set(SHIFTS)
    assert ood_sources(["far:generated"]).keys() == GENERATED.keys() - {*SHIFTS}


@pytest.mark.parametrize("name", DRAWN)
def test_equal_indices_give_equal_pictures_without_a_class(name: str) -> None:
    first, second = (GENERATED[name].images([]) for _ in range(2))
    torch.rand(3)  # the global generator has no influence
    assert len(first) == IMAGES
    for index in (0, 1, IMAGES - 1):
        pixels = first[index].pixels()
        assert torch.equal(pixels, second[index].pixels())
        assert (pixels.dtype, pixels.shape[0]) == (torch.uint8, 3)
        assert first[index].label == OUTSIDE


def test_kinds_of_noise_differ_in_their_spatial_correlation() -> None:
    neighbours = {}
    for image in GENERATED["noise"].images([])[:6]:
        pixels = image.pixels()[0].float()
        pairs = torch.stack([pixels[:, :-1].flatten(), pixels[:, 1:].flatten()])
        neighbours[image.name.split("/")[1]] = float(torch.corrcoef(pairs)[0, 1])
    assert list(neighbours) == ["uniform", "grey", "gaussian", "blocks", "smooth", "gradient"]
    assert all(abs(neighbours[kind]) < 0.1 for kind in ("uniform", "grey", "gaussian"))
    assert all(neighbours[kind] > 0.9 for kind in ("blocks", "smooth", "gradient"))


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - reads a file

    first = GENERATED["digits-8x8"].images([])[0].pixels().float()
    blocks = first[0].unflatten(0, (8, 16)).unflatten(2, (8, 16)).mean(dim=(1, 3))
    expected = torch.tensor(load_digits().images[0]).float() * 255 / 16
    assert float(torch.corrcoef(torch.stack([blocks.flatten(), expected.flatten()]))[0, 1]) > 0.9


SKIN = (210, 160, 150)


def lesion(border: int = 0) -> Tensor:
    """Plain skin with a lesion in all corners but the last, (3, 60, 80)."""
    pixels = torch.tensor(SKIN, dtype=torch.uint8)[:, None, None].repeat(1, 60, 80)
    pixels[:, :40, ::2] = 90
    pixels[:, :, :50:2] = 90
    if border:
        pixels[:, -border:] = 0
        pixels[:, :, -border:] = 0
    return pixels


def test_the_corner_without_a_lesion_is_used_with_the_cluster_of_its_image() -> None:
    image = LabelledImage("a", lesion(), 2, cluster="lesion 7", attributes={"sex": "male"})
    corner, *rendered = GENERATED["plain-skin"].images([image])
    assert (corner.name, corner.label) == ("plain-skin/corner/a", OUTSIDE)
    assert (corner.cluster, corner.attributes) == ("lesion 7", {})
    pixels = corner.pixels()
    assert pixels.shape == (3, 60, 80)
    assert pixels.flatten(1).float().mean(dim=1).tolist() == list(SKIN)
    assert len(rendered) == IMAGES - 1


def test_images_without_a_uniform_bright_corner_and_half_of_the_set_are_left_out() -> None:
    covered = torch.randint(0, 256, (3, 60, 80), generator=torch.Generator().manual_seed(0))
    images = [LabelledImage("covered", covered.to(torch.uint8), 0),
              LabelledImage("dark border", lesion(border=20), 0)]  # fmt: skip
    assert [
        image.name.split("/")[1] for image in GENERATED["plain-skin"].images(images)[:6]
    ] == TYPES
    many = [LabelledImage(str(index), lesion(), 0) for index in range(IMAGES)]
    names = {image.name for image in GENERATED["plain-skin"].images(many)}
    assert (len(names), sum("corner" in name for name in names)) == (IMAGES, IMAGES // 2)


@pytest.mark.parametrize("group", range(3))
def test_rendered_skin_is_darker_from_type_to_type_and_redder_than_blue(group: int) -> None:
    rendered = GENERATED["plain-skin"].images([])[48 * group : 48 * (group + 1)]
    by_type: dict[str, list[np.ndarray]] = {name: [] for name in TYPES}
    for image in rendered:
        by_type[image.name.split("/")[1]].append(image.pixels().float().mean(dim=(1, 2)).numpy())
    tones = np.array([np.mean(of_type, axis=0) for of_type in by_type.values()])
    assert (np.diff(tones.mean(axis=1)) < 0).all()
    assert (tones[:, 0] > tones[:, 1]).all()
    assert (tones[:, 1] > tones[:, 2]).all()


@pytest.fixture
def picture() -> Tensor:
    """Colourful, without extreme values, (3, 60, 80) uint8."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(60, 130, (3, 60, 80), generator=generator).to(torch.uint8)


@pytest.mark.parametrize("name", SHIFTS)
def test_a_change_is_deterministic_and_does_not_modify_its_input(
    name: str, picture: Tensor
) -> None:
    before = picture.clone()
    changed = shifted(picture, name)
    torch.rand(3)
    assert torch.equal(changed, shifted(picture, name))
    assert torch.equal(picture, before)
    assert not torch.equal(changed, picture)
    assert (changed.dtype, changed.shape) == (torch.uint8, picture.shape)


def test_noise_has_its_sigma_and_differs_between_images() -> None:
    pixels = torch.full((3, 60, 80), 128, dtype=torch.uint8)
    other = pixels + 1
    noise = shifted(pixels, "noisy").float() - pixels
    assert float(noise.std()) == pytest.approx(255 * 0.15, rel=0.05)
    assert abs(float(noise.mean())) < 2
    assert not torch.allclose(noise, shifted(other, "noisy").float() - other)


def gains(*channels: float) -> Tensor:
    return torch.tensor(channels)[:, None, None]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("brighter", lambda pixels: 1.8 * pixels),
        ("darker", lambda pixels: 0.4 * pixels),
        ("colour-cast-warm", lambda pixels: gains(1.25, 1, 0.7) * pixels),
        ("colour-cast-cold", lambda pixels: gains(0.7, 1, 1.25) * pixels),
        ("colour-inverted", lambda pixels: 255 - pixels),
        ("colour-rotated", lambda pixels: pixels[[2, 0, 1]]),
    ],
)
def test_a_change_of_colours_is_that_of_its_name(
    picture: Tensor, name: str, expected: Callable[[Tensor], Tensor]
) -> None:
    actual = shifted(picture, name).float()
    torch.testing.assert_close(actual, expected(picture.float()).clamp(0, 255), atol=1, rtol=0)


def test_blur_agrees_with_scipy_with_sigma_relative_to_the_shorter_side() -> None:
    noise = torch.randint(0, 256, (3, 60, 80), generator=torch.Generator().manual_seed(0))
    pixels, sigma = noise.to(torch.uint8), 0.03 * 60
    expected = gaussian_filter(pixels.numpy().astype(float), (0, sigma, sigma), mode="mirror")
    np.testing.assert_allclose(shifted(pixels, "blurred").numpy(), expected, atol=2.5)


def test_changed_images_keep_their_labels_and_are_made_when_they_are_read(picture: Tensor) -> None:
    image = LabelledImage("a", picture, 2, "lesion 7", {"sex": "male"})
    (image_read,) = GENERATED["noisy"].images([image])
    assert (image_read.name, image_read.label, image_read.cluster) == ("a", 2, "lesion 7")
    assert image_read.attributes == image.attributes
    changed = image_read.pixels()
    assert torch.equal(changed, shifted(picture, "noisy"))


def test_the_camera_border_is_black_and_the_centre_unchanged(picture: Tensor) -> None:
    changed = shifted(picture, "camera-border")
    assert float(changed[:, :5, :5].sum()) == 0
    assert torch.equal(changed[:, 20:40, 30:50], picture[:, 20:40, 30:50])


def test_a_pasted_lesion_covers_an_ellipse_of_another_picture() -> None:
    lesion = torch.zeros(3, 60, 80, dtype=torch.uint8)
    lesion[0] = 200
    changed = shifted(lesion, "pasted-lesion")
    covered = (changed == torch.tensor([200, 0, 0])[:, None, None]).all(dim=0)
    assert 0.14 < float(covered.float().mean()) < 0.25  # pi / 4 of a quarter, less the soft edge
    sides = [covered.any(dim=axis).sum().item() for axis in (1, 0)]
    assert sides == pytest.approx([30, 40], abs=3)
