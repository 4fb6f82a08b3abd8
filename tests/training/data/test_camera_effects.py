"""Effects of other cameras on an image."""

import torch

from training.data.augmentation import seeded
from training.data.camera_effects import camera_border, colour_change, jpeg_compression, ruler

GENERATOR = torch.Generator().manual_seed(0)
PHOTO = torch.randint(0, 256, (3, 40, 52), dtype=torch.uint8, generator=GENERATOR)


def test_colours_change_differently_from_draw_to_draw() -> None:
    gray = torch.full((3, 8, 8), 0.5)
    changed = torch.stack([colour_change(gray) for _ in range(4)])
    colours = {tuple(colour) for colour in changed.mean(dim=(-2, -1)).tolist()}
    assert len(colours) == 4
    torch.testing.assert_close(changed.std(dim=(-2, -1)), torch.zeros(4, 3), atol=1e-6, rtol=0)


def test_a_border_darkens_the_corners_and_leaves_the_centre() -> None:
    with seeded(torch.device("cpu"), 0):
        darkened = torch.stack([camera_border(torch.ones(3, 40, 40)) for _ in range(30)])
    assert (darkened[:, :, 20, 20] == 1).all()
    assert (darkened[:, :, 0, 0] == 0).float().mean() > 0.8
    assert (darkened[:, :, 20, 20] >= darkened[:, :, 2, 2]).all()


def test_a_ruler_marks_columns_at_the_lower_edge_only() -> None:
    gray = torch.full((3, 40, 40), 0.5)
    marked = ruler(gray)
    changed = (marked != gray).any(dim=0)
    assert not changed[:30].any()
    assert 6 <= int(changed[-1].sum()) <= 16
    assert set(marked[:, changed].unique().tolist()) <= {0.0, 1.0}
    assert (gray == 0.5).all()


def test_jpeg_compression_changes_a_smooth_image_little() -> None:
    ramp = torch.arange(64, dtype=torch.uint8).expand(3, 64, 64).contiguous()
    compressed = jpeg_compression(ramp)
    assert compressed.dtype == torch.uint8
    assert compressed.shape == ramp.shape
    assert (compressed.int() - ramp.int()).abs().max() < 16
    assert not torch.equal(jpeg_compression(PHOTO), PHOTO)
