"""Skin without a lesion: usable corners of test images, and tones in the order of their types."""

import numpy as np
import pytest
import torch
from torch import Tensor

from training.data.images import OUTSIDE, LabelledImage, read_image
from training.ood.generated import IMAGES
from training.ood.skin import TYPOLOGY_ANGLES, plain_skin, rendered_skin

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


def test_rendered_skin_has_texture_but_no_structure() -> None:
    pixels = rendered_skin(np.random.default_rng(0), 28, 41).astype(float)
    assert 2 < pixels.std(axis=(0, 1)).max() < 25
