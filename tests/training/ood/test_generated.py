"""Generated pictures are deterministic, of the stated kinds, and differ from each other."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from training.data.images import OUTSIDE, LabelledImage, read_image
from training.ood.generated import IMAGES, digits, noise, rendered_text, solid_colours

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


@pytest.mark.parametrize("make", SETS)
def test_names_and_pictures_of_a_set_are_distinct(
    make: Callable[[], Sequence[LabelledImage]],
) -> None:
    images = make()[:24]
    assert len({image.name for image in images}) == 24
    assert len({pixels_of(image).numpy().tobytes() for image in images}) >= 22  # greys may repeat


def test_a_solid_colour_has_one_value_per_channel() -> None:
    for image in solid_colours()[:6]:
        assert float(pixels_of(image).float().flatten(1).std(dim=1).max()) == 0


def test_kinds_of_noise_differ_in_their_spatial_correlation() -> None:
    neighbours = {}
    for image in noise()[:6]:
        pixels = pixels_of(image)[0].float()
        pairs = torch.stack([pixels[:, :-1].flatten(), pixels[:, 1:].flatten()])
        neighbours[image.name.split("/")[1]] = float(torch.corrcoef(pairs)[0, 1])
    assert list(neighbours) == ["uniform", "grey", "gaussian", "blocks", "smooth", "gradient"]
    assert all(abs(neighbours[kind]) < 0.1 for kind in ("uniform", "grey", "gaussian"))
    assert all(neighbours[kind] > 0.9 for kind in ("blocks", "smooth", "gradient"))


def test_a_page_of_text_has_two_tones() -> None:
    for image in rendered_text()[:2]:
        brightness = pixels_of(image).float().mean(dim=0).flatten()
        page = brightness.mode().values
        ink = (brightness - page).abs() > 60
        assert 0.03 < float(ink.float().mean()) < 0.5


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - reads a file

    first = pixels_of(digits()[0]).float()
    blocks = first[0].unflatten(0, (8, 16)).unflatten(2, (8, 16)).mean(dim=(1, 3))
    expected = torch.tensor(load_digits().images[0]).float() * 255 / 16
    assert float(torch.corrcoef(torch.stack([blocks.flatten(), expected.flatten()]))[0, 1]) > 0.9
