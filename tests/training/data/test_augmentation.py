"""Random views that depend on nothing but their generator."""

from typing import get_args

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.preprocess import resize
from training.data.augmentation import (
    dermoscopy_view,
    evaluation_view,
    flip_and_rotate,
    paper_view,
    seeded,
    training_view,
)
from training.recipe.schema import Augmentation

CPU = torch.device("cpu")
PIXELS = torch.arange(3 * 20 * 28, dtype=torch.uint8).reshape(3, 20, 28)


@pytest.mark.parametrize("augmentation", get_args(Augmentation))
def test_a_view_is_a_function_of_seed_epoch_and_image_alone(augmentation: Augmentation) -> None:
    def view(seed: int, epoch: int, index: int) -> bytes:
        return training_view(16, seed, epoch, augmentation)(index, PIXELS).numpy().tobytes()

    torch.manual_seed(8)
    before = torch.get_rng_state()
    others = {view(*key) for key in [(0, 0, 5), (1, 0, 5), (0, 1, 5), (0, 0, 6)]}
    assert len(others) == 4
    assert view(0, 0, 5) in others
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("augmentation", get_args(Augmentation))
def test_a_view_is_a_square_in_the_range_of_evaluation(augmentation: Augmentation) -> None:
    white = torch.full((3, 30, 40), 255, dtype=torch.uint8)
    view = training_view(24, 0, 0, augmentation)(0, white)
    assert view.shape == (3, 24, 24)
    assert view.dtype == torch.float32
    assert 0.85 < view.max() <= 1


def test_the_paper_s_view_is_two_flips_and_a_rotation_of_at_most_half_a_turn() -> None:
    marked = torch.zeros(3, 41, 41, dtype=torch.uint8)
    marked[:, 20, 35] = 255  # right of the centre
    seen = set()
    for index in range(200):
        with seeded(CPU, index):
            horizontal, vertical, turn = torch.rand(3).tolist()
        expected = marked
        if horizontal < 0.5:
            expected = expected.flip(-1)
        if vertical < 0.5:
            expected = expected.flip(-2)
        expected = F.rotate(expected, 180 * turn, v2.InterpolationMode.NEAREST)
        with seeded(CPU, index):
            found = flip_and_rotate(marked)
        assert torch.equal(found, expected)
        seen.add((horizontal < 0.5, vertical < 0.5))
    assert len(seen) == 4


def test_what_a_rotation_leaves_empty_is_zero() -> None:
    white = torch.full((3, 30, 30), 255, dtype=torch.uint8)
    with seeded(CPU, 0):
        values = {value for _ in range(10) for value in flip_and_rotate(white).unique().tolist()}
    assert values == {0, 255}


def test_the_paper_s_view_is_resized_after_the_random_part_at_native_resolution() -> None:
    with seeded(CPU, 3):
        found = paper_view(16)(PIXELS)
    with seeded(CPU, 3):
        assert torch.equal(found, resize(flip_and_rotate(PIXELS), 16))


def test_the_dermoscopy_view_has_nothing_from_outside_the_picture() -> None:
    white = torch.full((3, 30, 40), 255, dtype=torch.uint8)
    with seeded(CPU, 0):
        darkest = min(float(dermoscopy_view(24)(white).min()) for _ in range(100))
    assert darkest > 0.85  # a jitter of a tenth, and no black corner


def test_the_dermoscopy_view_shows_all_symmetries_of_the_square() -> None:
    marked = torch.zeros(3, 32, 32, dtype=torch.uint8)
    marked[:, :14, 2:7] = 255  # a bar that none of them leaves in its place
    places = [marked.rot90(turns, (1, 2)) for turns in range(4)]
    places += [each.flip(-1) for each in places]
    flat = torch.stack([resize(each, 32)[0].flatten() for each in places])
    with seeded(CPU, 0):
        views = torch.stack([dermoscopy_view(32)(marked)[0].flatten() for _ in range(100)])
    assert set((views @ flat.T).argmax(dim=1).tolist()) == set(range(8))


def test_the_dermoscopy_view_of_a_4_to_3_picture_has_the_shapes_of_evaluation_on_average() -> None:
    disc = (torch.arange(300)[:, None] - 150) ** 2 + (torch.arange(400) - 200) ** 2 < 25**2
    pixels = (255 * disc).to(torch.uint8).expand(3, -1, -1)
    as_evaluated = extent(resize(pixels, 256))
    with seeded(CPU, 0):
        crops = [dermoscopy_view(256).transforms[0](pixels) / 255 for _ in range(40)]
    ratios = torch.tensor([extent(each) for each in crops])
    assert 3 / 4 * as_evaluated * 0.9 < ratios.min() < ratios.max() < 4 / 3 * as_evaluated * 1.1
    assert as_evaluated * 0.9 < ratios.median() < as_evaluated * 1.1


def extent(view: torch.Tensor) -> float:
    """Height over width of what is bright in (3, height, width), by its spread."""
    bright = (view[0] > 0.5).nonzero().float()
    height, width = bright.std(dim=0).tolist()
    return height / width


def test_an_evaluation_view_is_the_resize_alone() -> None:
    assert torch.equal(evaluation_view(16)(9, PIXELS), resize(PIXELS, 16))
