"""Random views and the seeding of torch's global generator."""

from typing import get_args

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.images.preprocess import resize
from eulerlora.settings import Preprocessing
from training.data.augmentation import (
    CPU,
    camera_border,
    colour_change,
    dermoscopy_view,
    jpeg_compression,
    paper_view,
    ruler,
    seeded,
    training_view,
)
from training.data.images import Augmentation

PIXELS = torch.arange(3 * 20 * 28, dtype=torch.uint8).reshape(3, 20, 28)


@pytest.mark.parametrize("augmentation", get_args(Augmentation))
def test_a_view_depends_on_seed_epoch_and_image_index_only(augmentation: Augmentation) -> None:
    def view(seed: int, epoch: int, index: int) -> bytes:
        return (
            training_view(Preprocessing(size=16), seed, epoch, augmentation)(index, PIXELS)
            .numpy()
            .tobytes()
        )

    torch.manual_seed(8)
    before = torch.get_rng_state()
    others = {view(*key) for key in [(0, 0, 5), (1, 0, 5), (0, 1, 5), (0, 0, 6)]}
    assert len(others) == 4
    assert view(0, 0, 5) in others
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("augmentation", get_args(Augmentation))
def test_a_view_is_a_square_in_the_range_of_evaluation(augmentation: Augmentation) -> None:
    white = torch.full((3, 30, 40), 255, dtype=torch.uint8)
    view = training_view(Preprocessing(size=24), 0, 0, augmentation)(0, white)
    assert view.shape == (3, 24, 24)
    assert view.dtype == torch.float32
    assert 0.85 < view.max() <= 1


def test_the_paper_view_is_two_flips_and_a_rotation_of_at_most_180_degrees_then_resized() -> None:
    marked = torch.zeros(3, 41, 41, dtype=torch.uint8)
    marked[:, 20, 35] = 255  # right of the centre
    flips = set()
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
            view = paper_view(Preprocessing(size=16))(marked)
        assert torch.equal(view, resize(expected, 16))
        flips.add((horizontal < 0.5, vertical < 0.5))
    assert len(flips) == 4


def test_the_dermoscopy_view_covers_all_symmetries_of_the_square() -> None:
    marked = torch.zeros(3, 32, 32, dtype=torch.uint8)
    marked[:, :14, 2:7] = 255  # a bar that every symmetry moves
    symmetries = [marked.rot90(turns, (1, 2)) for turns in range(4)]
    symmetries += [image.flip(-1) for image in symmetries]
    flat = torch.stack([resize(image, 32)[0].flatten() for image in symmetries])
    with seeded(CPU, 0):
        views = torch.stack(
            [dermoscopy_view(Preprocessing(size=32))(marked)[0].flatten() for _ in range(100)]
        )
    assert set((views @ flat.T).argmax(dim=1).tolist()) == set(range(8))


def test_the_dermoscopy_view_of_a_4_to_3_image_has_the_median_shape_of_evaluation() -> None:
    disc = (torch.arange(300)[:, None] - 150) ** 2 + (torch.arange(400) - 200) ** 2 < 25**2
    pixels = (255 * disc).to(torch.uint8).expand(3, -1, -1)
    as_evaluated = extent(resize(pixels, 256))
    with seeded(CPU, 0):
        crops = [
            dermoscopy_view(Preprocessing(size=256)).transforms[0](pixels) / 255 for _ in range(40)
        ]
    ratios = torch.tensor([extent(crop) for crop in crops])
    assert 3 / 4 * as_evaluated * 0.9 < ratios.min() < ratios.max() < 4 / 3 * as_evaluated * 1.1
    assert as_evaluated * 0.9 < ratios.median() < as_evaluated * 1.1


def test_views_of_a_canvas_are_crops_at_its_resolution_or_of_the_whole_image() -> None:
    slopes = torch.meshgrid(torch.linspace(0, 255, 300), torch.linspace(0, 255, 400), indexing="ij")
    pixels = torch.stack([*slopes, slopes[0]]).round().to(torch.uint8)
    preprocessing = Preprocessing(size=56, canvas=(100, 75))
    shares, shapes = [], []
    with seeded(CPU, 0):
        for _ in range(200):
            crop = dermoscopy_view(preprocessing).transforms[0](pixels)
            assert crop.shape == (3, 56, 56)
            height, width = ((of.max() - of.min()).item() / 255 for of in crop[:2].float())
            shares.append(height * width)  # of the area of the image
            shapes.append(width * 4 / (height * 3))
    details = np.array(shares) < 0.45  # some of them are crops of the whole image
    native = 56**2 / (100 * 75)
    assert 0.9 * native / 1.5 < min(shares)
    assert max(shares) > 0.8
    assert 0.35 < details.mean() < 0.75
    assert 0.9 < np.median(np.array(shapes)[details]) < 1.1


@pytest.mark.parametrize("augmentation", ["dermoscopy", "natural", "cameras"])
def test_every_augmentation_with_crops_shows_details_of_a_canvas(
    augmentation: Augmentation,
) -> None:
    canvas = Preprocessing(size=16, canvas=(24, 18))
    of_canvas, whole = (
        training_view(preprocessing, 0, 0, augmentation, 8)(0, PIXELS)
        for preprocessing in (canvas, canvas.of_whole_images)
    )
    assert of_canvas.shape == whole.shape == (8, 3, 16, 16)
    assert not torch.equal(of_canvas, whole)


def extent(view: torch.Tensor) -> float:
    """Height over width of the bright pixels in (3, height, width), by their spread."""
    bright = (view[0] > 0.5).nonzero().float()
    height, width = bright.std(dim=0).tolist()
    return height / width


def test_the_generator_is_restored_even_after_an_error() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2).tolist()
    torch.manual_seed(5)
    with pytest.raises(ZeroDivisionError), seeded(CPU, 1):
        torch.rand(7)
        raise ZeroDivisionError
    assert torch.rand(2).tolist() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_generator_is_seeded_independently_of_the_cpu() -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    before = torch.random.get_rng_state()
    draw_lists = []
    for _ in range(2):
        with seeded(gpu, 3):
            draw_lists.append(torch.rand(2, device=gpu).tolist())
    assert draw_lists[0] == draw_lists[1]
    assert torch.equal(torch.random.get_rng_state(), before)


GENERATOR = torch.Generator().manual_seed(0)
PHOTO = torch.randint(0, 256, (3, 40, 52), dtype=torch.uint8, generator=GENERATOR)


def test_colours_change_differently_from_draw_to_draw() -> None:
    gray = torch.full((3, 8, 8), 0.5)
    changed = torch.stack([colour_change(gray) for _ in range(4)])
    colours = {tuple(colour) for colour in changed.mean(dim=(-2, -1)).tolist()}
    assert len(colours) == 4
    torch.testing.assert_close(changed.std(dim=(-2, -1)), torch.zeros(4, 3), atol=1e-6, rtol=0)


def test_a_border_darkens_the_corners_and_leaves_the_centre() -> None:
    with seeded(CPU, 0):
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
