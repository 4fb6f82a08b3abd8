"""training.augment: random views that depend on nothing but their generator."""

import pytest
import torch
from torch import Generator
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.preprocess import resize
from training.augment import (
    crop_and_flip,
    evaluation_view,
    flip_and_rotate,
    image_generator,
    training_view,
)

PIXELS = torch.arange(3 * 20 * 28, dtype=torch.uint8).reshape(3, 20, 28)


@pytest.mark.parametrize("view", [flip_and_rotate, crop_and_flip])
def test_a_view_is_a_function_of_its_generator(view: object) -> None:
    assert callable(view)
    views = [view(PIXELS, image_generator(0, 0, index)) for index in (5, 5, 6)]
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert views[0].shape == PIXELS.shape


def test_generators_differ_by_seed_epoch_and_index() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    draws = {float(torch.rand((), generator=image_generator(*key))) for key in keys}
    assert len(draws) == len(keys)


def test_the_paper_s_view_is_two_flips_and_a_rotation_of_at_most_half_a_turn() -> None:
    marked = torch.zeros(3, 41, 41, dtype=torch.uint8)
    marked[:, 20, 35] = 255  # right of the centre
    seen = set()
    for index in range(200):
        horizontal, vertical, turn = torch.rand(3, generator=image_generator(0, 0, index)).tolist()
        expected = marked
        if horizontal < 0.5:
            expected = expected.flip(-1)
        if vertical < 0.5:
            expected = expected.flip(-2)
        expected = F.rotate(expected, 180 * turn, v2.InterpolationMode.NEAREST)
        found = flip_and_rotate(marked, image_generator(0, 0, index))
        assert torch.equal(found, expected)
        seen.add((horizontal < 0.5, vertical < 0.5))
    assert len(seen) == 4


def test_what_a_rotation_leaves_empty_is_zero() -> None:
    white = torch.full((3, 30, 30), 255, dtype=torch.uint8)
    values = {
        value
        for index in range(10)
        for value in flip_and_rotate(white, image_generator(0, 0, index)).unique().tolist()
    }
    assert values == {0, 255}


def test_a_crop_shifts_by_at_most_an_eighth() -> None:
    marked = torch.zeros(3, 32, 32, dtype=torch.uint8)
    marked[:, 16, 16] = 255
    rows, columns = set(), set()
    for index in range(300):
        place = crop_and_flip(marked, Generator().manual_seed(index))[0].nonzero()[0].tolist()
        rows.add(place[0])
        columns.add(place[1])
    assert rows == set(range(12, 21))
    assert columns == set(range(11, 21))  # a flip mirrors 12..20 to 11..19


def test_a_training_view_is_resized_after_the_random_part_at_native_resolution() -> None:
    transform = training_view(16, seed=1, epoch=2, view=flip_and_rotate)
    expected = resize(flip_and_rotate(PIXELS, image_generator(1, 2, 3)), 16)
    assert torch.equal(transform(3, PIXELS), expected)


def test_an_evaluation_view_is_the_resize_alone() -> None:
    assert torch.equal(evaluation_view(16)(9, PIXELS), resize(PIXELS, 16))
