"""The check of a data set finds copies, similar images and small ones."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eulerlora_client.contract.answers import ClassName
from eulerlora_client.errors import DataError
from training.data.check import Copies, DataCheck, check_images
from training.data.images import ImageParts, LabelledImage

CLASSES = tuple(ClassName(name=name, description=name) for name in ("a", "b"))
SIDE = 32


def picture(seed: int, side: int = 64) -> Tensor:
    """Returns (3, side, side) uint8, smooth random colours."""
    coarse = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return (255 * F.interpolate(coarse, side, mode="bilinear")[0]).to(torch.uint8)


def half(pixels: Tensor) -> Tensor:
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    return torch.from_numpy(np.array(image.resize((32, 32)))).permute(2, 0, 1)


def checked(*placed: tuple[str, int, Tensor]) -> DataCheck:
    """Checks images given by part, class and pixels; their names count from 0."""
    parts: dict[str, list[LabelledImage]] = {}
    for name, (part, label, pixels) in enumerate(placed):
        parts.setdefault(part, []).append(LabelledImage(str(name), pixels, label))
    return check_images(ImageParts("set", CLASSES, parts), SIDE)


def names(found: Sequence[Copies]) -> list[list[str]]:
    return [[entry.image.name for entry in copies] for copies in found]


@pytest.mark.parametrize(
    ("second", "in_classes", "in_parts", "repeated"),
    [
        (("train", 0), False, False, True),
        (("train", 1), True, False, False),
        (("test", 0), False, True, False),
        (("test", 1), True, True, False),
    ],
)
def test_copies_are_told_by_class_and_part(
    second: tuple[str, int], in_classes: bool, in_parts: bool, repeated: bool
) -> None:
    check = checked(("train", 0, picture(0)), ("test", 1, picture(1)), (*second, picture(0)))
    copies = [["0", "2"]]
    assert names(check.in_classes) == copies * in_classes
    assert names(check.in_parts) == copies * in_parts
    assert names(check.repeated) == copies * repeated
    assert check.similar == check.small == []
    if repeated:
        check.refuse_copies()
        return
    with pytest.raises(DataError) as caught:
        check.refuse_copies()
    assert "0 (train, a)" in str(caught.value)
    assert f"2 ({second[0]}, {'ab'[second[1]]})" in str(caught.value)


def test_resized_copies_in_another_part_or_class_are_similar() -> None:
    check = checked(
        ("train", 0, picture(0)),
        ("train", 0, half(picture(0))),
        ("test", 0, half(picture(0))),
        ("train", 1, half(picture(0)) // 2),
        ("test", 0, picture(1)),
    )
    assert names(check.similar) == [["0", "3"], ["0", "2"], ["1", "3"], ["3", "2"]]
    assert names(check.in_parts) == [["1", "2"]]


def test_images_with_a_side_below_that_of_the_input_are_small() -> None:
    check = checked(
        ("train", 0, picture(0)[:, :31]), ("train", 1, picture(1)[:, :32]), ("test", 0, picture(2))
    )
    assert names(check.small) == [["0"]]
