"""Views of a dermatoscopic image as other cameras take it."""

import pytest
import torch
from torch import Tensor

from training.data.augmentation import (
    CPU,
    LOG_GAIN,
    camera_border,
    camera_view,
    colour_change,
    jpeg_compression,
    log_uniform,
    ruler,
    seeded,
)

GENERATOR = torch.Generator().manual_seed(0)
PIXELS = torch.randint(0, 256, (5, 3, 40, 52), dtype=torch.uint8, generator=GENERATOR)


def test_a_batch_and_an_image_give_views_of_the_size_and_the_unit_range() -> None:
    for pixels in (PIXELS, PIXELS[0]):
        for index in range(20):
            with seeded(CPU, index):
                view = camera_view(24)(pixels)
            assert view.shape == (*pixels.shape[:-2], 24, 24)
            assert view.dtype == torch.float32
            assert view.min() >= 0
            assert view.max() <= 1


def test_colours_of_images_in_a_batch_change_differently() -> None:
    gray = torch.full((4, 3, 8, 8), 0.5)
    changed = colour_change(gray)
    colours = {tuple(colour) for colour in changed.mean(dim=(-2, -1)).tolist()}
    assert len(colours) == 4
    torch.testing.assert_close(changed.std(dim=(-2, -1)), torch.zeros(4, 3), atol=1e-6, rtol=0)


def test_a_colour_change_without_width_is_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.data.augmentation.log_uniform", lambda _, s: torch.ones(s))
    pixels = torch.rand(2, 3, 6, 7)
    torch.testing.assert_close(colour_change(pixels), pixels)


def test_factors_lie_within_the_bound_and_are_symmetric_in_their_logarithm() -> None:
    with seeded(CPU, 0):
        logarithms = log_uniform(LOG_GAIN, (20_000,)).log()
    assert logarithms.abs().max() <= LOG_GAIN + 1e-6
    assert logarithms.mean().abs() < 0.01
    assert logarithms.std() == pytest.approx(2 * LOG_GAIN / 12**0.5, rel=0.02)


def test_a_border_darkens_the_corners_and_leaves_the_centre() -> None:
    white = torch.ones(3, 40, 40)
    darkened = torch.stack([_drawn(index, white) for index in range(30)])
    assert (darkened[:, :, 20, 20] == 1).all()
    assert (darkened[:, :, 0, 0] == 0).float().mean() > 0.8
    assert (darkened[:, :, 20, 20] >= darkened[:, :, 2, 2]).all()


def _drawn(seed: int, pixels: Tensor) -> Tensor:
    with seeded(CPU, seed):
        return camera_border(pixels)


def test_a_ruler_marks_columns_at_the_lower_edge_only() -> None:
    gray = torch.full((3, 40, 40), 0.5)
    marked = ruler(gray)
    changed = (marked != gray).any(dim=0)
    assert not changed[:30].any()
    assert 6 <= int(changed[-1].sum()) <= 16
    assert set(marked[:, changed].unique().tolist()) <= {0.0, 1.0}
    assert (gray == 0.5).all()


def test_jpeg_compression_changes_a_smooth_image_little() -> None:
    ramp = torch.arange(64, dtype=torch.uint8).expand(2, 3, 64, 64).contiguous()
    compressed = jpeg_compression(ramp)
    assert compressed.dtype == torch.uint8
    assert compressed.shape == ramp.shape
    assert (compressed.int() - ramp.int()).abs().max() < 16
    assert not torch.equal(jpeg_compression(PIXELS), PIXELS)
