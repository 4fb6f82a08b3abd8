"""Random views and the seeding of torch's global generator."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.images.preprocess import resize
from eulerlora.settings import Preprocessing
from training.data.augmentation import seeded, training_view

AUGMENTATIONS = ["paper", "dermoscopy", "cameras", "natural"]
CPU = torch.device("cpu")
PIXELS = torch.arange(3 * 20 * 28, dtype=torch.uint8).reshape(3, 20, 28)


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_a_view_depends_on_seed_epoch_and_image_index_only(augmentation: str) -> None:
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


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_a_view_is_a_square_in_the_range_of_evaluation(augmentation: str) -> None:
    white = torch.full((3, 30, 40), 255, dtype=torch.uint8)
    view = training_view(Preprocessing(size=24), 0, 0, augmentation)(0, white)
    assert view.shape == (3, 24, 24)
    assert view.dtype == torch.float32
    assert 0.85 < view.max() <= 1


def test_the_paper_view_is_two_flips_and_a_rotation_of_at_most_180_degrees_then_resized() -> None:
    marked = torch.zeros(3, 41, 41, dtype=torch.uint8)
    marked[:, 15, 35] = 255  # right of and above the centre
    flips, paper = set(), training_view(Preprocessing(size=16), 0, 0, "paper")
    for index in range(200):
        with seeded(CPU, 0, 0, index):
            horizontal, vertical, turn = torch.rand(3).tolist()
        expected = marked
        if horizontal < 0.5:
            expected = expected.flip(-1)
        if vertical < 0.5:
            expected = expected.flip(-2)
        expected = F.rotate(expected, 180 * turn, v2.InterpolationMode.NEAREST)
        assert torch.equal(paper(index, marked), resize(expected, 16))
        flips.add((horizontal < 0.5, vertical < 0.5))
    assert len(flips) == 4


def test_the_dermoscopy_view_covers_all_symmetries_of_the_square() -> None:
    marked = torch.zeros(3, 32, 32, dtype=torch.uint8)
    marked[:, :14, 2:7] = 255  # a bar that every symmetry moves
    symmetries = [marked.rot90(turns, (1, 2)) for turns in range(4)]
    symmetries += [image.flip(-1) for image in symmetries]
    flat = torch.stack([resize(image, 32)[0].flatten() for image in symmetries])
    views = dermoscopy_views(marked, Preprocessing(size=32), 100)[:, 0].flatten(1)
    assert set((views @ flat.T).argmax(dim=1).tolist()) == set(range(8))


@pytest.fixture
def same_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views whose colours are those of the image."""
    monkeypatch.setattr(v2, "ColorJitter", lambda **_: v2.Identity())


def dermoscopy_views(pixels: torch.Tensor, of: Preprocessing, count: int) -> torch.Tensor:
    """(count, 3, size, size) random views of an image."""
    return training_view(of, 0, 0, "dermoscopy", views=count)(0, pixels)


def as_taken(view: torch.Tensor) -> torch.Tensor:
    """Undoes the transposition of a view whose third channel grows along the image's width."""
    slope = view[2]
    along_width = (slope[:, -1] - slope[:, 0]).abs() > (slope[-1] - slope[0]).abs()
    return view if along_width.float().mean() > 0.5 else view.mT


@pytest.mark.usefixtures("same_colours")
def test_the_dermoscopy_view_of_a_4_to_3_image_has_the_median_shape_of_evaluation() -> None:
    disc = (torch.arange(300)[:, None] - 150) ** 2 + (torch.arange(400) - 200) ** 2 < 25**2
    slope = torch.linspace(0, 255, 400).expand(300, -1)
    pixels = torch.stack([255 * disc, 255 * disc, slope]).to(torch.uint8)
    as_evaluated = extent(resize(pixels, 256))
    crops = dermoscopy_views(pixels, Preprocessing(size=256), 40)
    ratios = torch.tensor([extent(as_taken(crop)) for crop in crops])
    assert 3 / 4 * as_evaluated * 0.9 < ratios.min() < ratios.max() < 4 / 3 * as_evaluated * 1.1
    assert as_evaluated * 0.9 < ratios.median() < as_evaluated * 1.1


@pytest.mark.usefixtures("same_colours")
def test_views_of_a_canvas_are_crops_at_its_resolution_or_of_the_whole_image() -> None:
    slopes = torch.meshgrid(torch.linspace(0, 255, 300), torch.linspace(0, 255, 400), indexing="ij")
    pixels = torch.stack([*slopes, slopes[1]]).round().to(torch.uint8)
    preprocessing = Preprocessing(size=56, canvas=(100, 75))
    shares, shapes = [], []
    for view in dermoscopy_views(pixels, preprocessing, 200):
        assert view.shape == (3, 56, 56)
        height, width = ((of.max() - of.min()).item() for of in view[:2])
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
    augmentation: str,
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
