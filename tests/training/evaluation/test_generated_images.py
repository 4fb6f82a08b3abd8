"""Generated pictures are deterministic, of the stated kinds, and differ from each other.

Skin without a lesion: usable corners of test images, and tones in the order of their types.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from training.data.images import OUTSIDE, LabelledImage, read_image
from training.evaluation.generated_images import (
    IMAGES,
    TYPOLOGY_ANGLES,
    digits,
    noise,
    plain_skin,
    rendered_skin,
    rendered_text,
    solid_colours,
)

SETS = (noise, solid_colours, rendered_text, digits)


def pixels_of(image: LabelledImage) -> Tensor:
    return read_image(image.name, image.source)


@pytest.mark.parametrize("make", SETS)
def test_equal_indices_give_equal_pictures_without_a_class(
    make: Callable[[], Sequence[LabelledImage]],
) -> None:
    first, second = make(), make()
    torch.rand(3)  # the global generator has no influence
    assert len(first) == IMAGES
    for index in (0, 1, IMAGES - 1):
        pixels = pixels_of(first[index])
        assert torch.equal(pixels, pixels_of(second[index]))
        assert (pixels.dtype, pixels.shape[0]) == (torch.uint8, 3)
        assert first[index].label == OUTSIDE


def test_kinds_of_noise_differ_in_their_spatial_correlation() -> None:
    neighbours = {}
    for image in noise()[:6]:
        pixels = pixels_of(image)[0].float()
        pairs = torch.stack([pixels[:, :-1].flatten(), pixels[:, 1:].flatten()])
        neighbours[image.name.split("/")[1]] = float(torch.corrcoef(pairs)[0, 1])
    assert list(neighbours) == ["uniform", "grey", "gaussian", "blocks", "smooth", "gradient"]
    assert all(abs(neighbours[kind]) < 0.1 for kind in ("uniform", "grey", "gaussian"))
    assert all(neighbours[kind] > 0.9 for kind in ("blocks", "smooth", "gradient"))


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - reads a file

    first = pixels_of(digits()[0]).float()
    blocks = first[0].unflatten(0, (8, 16)).unflatten(2, (8, 16)).mean(dim=(1, 3))
    expected = torch.tensor(load_digits().images[0]).float() * 255 / 16
    assert float(torch.corrcoef(torch.stack([blocks.flatten(), expected.flatten()]))[0, 1]) > 0.9


SKIN = (210, 160, 150)


def lesion(border: int = 0) -> Tensor:
    """Returns plain skin with a lesion in all corners but the last, (3, 60, 80)."""
    pixels = torch.tensor(SKIN, dtype=torch.uint8)[:, None, None].repeat(1, 60, 80)
    pixels[:, :40, ::2] = 90
    pixels[:, :, :50:2] = 90
    if border:
        pixels[:, -border:] = 0
        pixels[:, :, -border:] = 0
    return pixels


def test_the_corner_without_a_lesion_is_used_with_the_cluster_of_its_image() -> None:
    image = LabelledImage("a", lesion(), 2, cluster="lesion 7", groups={"sex": "male"})
    corner, *rendered = plain_skin([image])
    assert (corner.name, corner.label) == ("plain-skin/corner/a", OUTSIDE)
    assert (corner.cluster, corner.groups) == ("lesion 7", {})
    pixels = read_image(corner.name, corner.source)
    assert pixels.shape == (3, 60, 80)
    assert pixels.flatten(1).float().mean(dim=1).tolist() == list(SKIN)
    assert len(rendered) == IMAGES - 1


def test_an_image_without_a_uniform_bright_corner_is_left_out() -> None:
    covered = torch.randint(0, 256, (3, 60, 80), generator=torch.Generator().manual_seed(0))
    images = [LabelledImage("covered", covered.to(torch.uint8), 0),
              LabelledImage("dark border", lesion(border=20), 0)]  # fmt: skip
    assert [image.name.split("/")[1] for image in plain_skin(images)[:6]] == list(TYPOLOGY_ANGLES)


def test_at_most_half_of_the_set_are_corners() -> None:
    images = [LabelledImage(str(index), lesion(), 0) for index in range(IMAGES)]
    names = [image.name for image in plain_skin(images)]
    assert len(names) == len(set(names)) == IMAGES
    assert sum("corner" in name for name in names) == IMAGES // 2


@pytest.mark.parametrize("seed", range(3))
def test_rendered_skin_is_darker_from_type_to_type_and_redder_than_blue(seed: int) -> None:
    tones = np.array(
        [
            np.mean(
                [
                    rendered_skin(np.random.default_rng([seed, index]), *angles).mean(axis=(0, 1))
                    for index in range(8)
                ],
                axis=0,
            )
            for angles in TYPOLOGY_ANGLES.values()
        ]
    )
    assert (np.diff(tones.mean(axis=1)) < 0).all()
    assert (tones[:, 0] > tones[:, 1]).all()
    assert (tones[:, 1] > tones[:, 2]).all()
