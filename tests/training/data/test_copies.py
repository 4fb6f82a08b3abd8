"""The check of a data set finds copies, similar images and small ones.

Digests of training images: which copies they recognise, and their file.
"""

from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import CheckpointError, DataError
from tests.training.conftest import write_training_images
from training.data.cache import decoded_images
from training.data.copies import (
    check_images,
    image_digests,
    known_images,
    named_with_seen,
)
from training.data.images import ImageParts, LabelledImage

CLASSES = tuple(ClassName(name=name, description=name) for name in ("a", "b"))
SIDE = 32


def picture(seed: int, side: int = 64) -> Tensor:
    """Smooth random colours, (3, side, side) uint8."""
    coarse = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return (255 * F.interpolate(coarse, side, mode="bilinear")[0]).to(torch.uint8)


def half(pixels: Tensor, size: tuple[int, int] = (32, 32)) -> Tensor:
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    return torch.from_numpy(np.array(image.resize(size))).permute(2, 0, 1)


def turned(pixels: Tensor, turns: int, mirrored: bool = False) -> Tensor:
    return torch.rot90(pixels.flip(-1) if mirrored else pixels, turns, (-2, -1))


def checked(*placed: tuple[str, int, Tensor]):
    """Images are given by part, class and pixels; their names count from 0."""
    parts: dict[str, list[LabelledImage]] = {}
    for name, (part, label, pixels) in enumerate(placed):
        parts.setdefault(part, []).append(LabelledImage(str(name), pixels, label))
    return check_images(ImageParts("set", CLASSES, parts), SIDE)


def names(found) -> list[list[str]]:
    return [[entry.image.name for entry in pair] for pair in found]


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


ORIENTATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    f"{turns} turns{', mirrored' * mirrored}": partial(turned, turns=turns, mirrored=mirrored)
    for turns in range(4)
    for mirrored in (False, True)
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_turned_and_mirrored_copies_in_another_part_are_similar(orientation: str) -> None:
    wide = picture(0, 96)[:, :64]
    check = checked(
        ("train", 0, wide),
        ("train", 0, picture(1)),
        ("test", 0, ORIENTATIONS[orientation](half(wide, (40, 30)))),
    )
    assert names(check.similar) == [["0", "2"]]


@pytest.mark.parametrize("shape", [(64, 96), (63, 95), (33, 32), (1, 5)])
def test_the_digest_of_all_orientations_is_that_of_no_other_image(
    shape: tuple[int, int], tmp_path: Path
) -> None:
    height, width = shape
    plain = picture(0, 96)[:, :height, :width]
    even = torch.full_like(plain, 7)  # every orientation has the same sums
    even[:, 0, 0] = 8
    even[:, -1, -1] = 8
    for pixels in (plain, even):
        other = pixels.clone()
        other[0, 0, 0] += 1
        shown = {name: turn(pixels) for name, turn in ORIENTATIONS.items()} | {"other": other}
        for name, one in shown.items():
            Image.fromarray(one.permute(1, 2, 0).numpy()).save(tmp_path / f"{name}.png")
        digests = dict(decoded_images(tmp_path).digests)
        assert digests.pop("other.png") not in digests.values()
        assert (len(digests), len({*digests.values()})) == (8, 1)


def test_the_search_for_similar_images_is_that_of_all_pairs_and_orientations() -> None:
    pictures = [picture(seed) for seed in range(16)]
    mixed = [
        turned(torch.lerp(one.float(), other.float(), share).to(torch.uint8), index % 4)
        for index, (one, other) in enumerate(pairwise(pictures))
        for share in (0.03, 0.1, 0.2)
    ]
    check = checked(*(("train", 0, p) for p in pictures), *(("test", 0, p) for p in mixed))
    fields = [F.interpolate(p[None].float(), 16, mode="area")[0] for p in (*pictures, *mixed)]
    correlations = {
        (str(first), str(second)): max(
            float(torch.stack([turn(fields[first]), fields[second]]).flatten(1).corrcoef()[0, 1])
            for turn in ORIENTATIONS.values()
        )
        for first in range(len(pictures))
        for second in range(len(pictures), len(fields))
    }
    found = {(first, second) for first, second in names(check.similar)}
    assert 10 < len(found) == len(check.similar) < len(mixed)
    for pair, correlation in correlations.items():
        if abs(correlation - 0.995) > 0.001:  # the thumbnails are rounded
            assert (pair in found) == (correlation > 0.995)


def test_images_with_a_side_below_that_of_the_input_are_small() -> None:
    check = checked(
        ("train", 0, picture(0)[:, :31]), ("train", 1, picture(1)[:, :32]), ("test", 0, picture(2))
    )
    assert [entry.image.name for entry in check.small] == ["0"]


def encoded(pixels: np.ndarray, kind: str, **options: object) -> bytes:
    content = BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


@pytest.fixture
def copies() -> dict[str, LabelledImage]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x010E] = "a description"
    sources = {
        "png": encoded(pixels, "PNG"),
        "metadata": encoded(pixels, "PNG", exif=exif),
        "webp": encoded(pixels, "WEBP", lossless=True),
        "jpeg": encoded(pixels, "JPEG"),
        "shape": encoded(pixels.reshape(32, 24, 3), "PNG"),
    }
    return {name: LabelledImage(name, source, 0) for name, source in sources.items()}


def test_lossless_copies_are_recognised_and_other_images_are_not(
    copies: dict[str, LabelledImage], checkpoint_copy: Path
) -> None:
    assert known_images(checkpoint_copy, list(copies.values())).trained is None
    other, own = image_digests([copies["shape"]]), image_digests([copies["png"]])
    write_training_images(checkpoint_copy, save({"backbone": other, "adapters": own}))
    seen = known_images(checkpoint_copy, list(copies.values())).trained
    assert [image.name for image in seen] == ["png", "metadata", "webp", "shape"]
    assert " 4 of its images" in named_with_seen("set", checkpoint_copy, list(copies.values()))
    assert named_with_seen("set", checkpoint_copy, [copies["jpeg"]]) == "set"


def test_pictures_of_a_calibration_are_told_from_those_of_a_training(
    copies: dict[str, LabelledImage], checkpoint_copy: Path
) -> None:
    shown = list(copies.values())
    write_training_images(checkpoint_copy, save({"calibration": image_digests([copies["jpeg"]])}))
    known = known_images(checkpoint_copy, shown)
    assert (known.trained, known.fitted) == (None, [copies["jpeg"]])
    assert named_with_seen("set", checkpoint_copy, shown) == "set (fits used 1 of its images)"
    of_fit = image_digests([copies["png"]])
    assert "used 4 of its" in named_with_seen("set", checkpoint_copy, shown, of_fit)


@pytest.mark.parametrize("content", [b"", save({"adapters": torch.zeros(3)})])
def test_a_damaged_file_is_refused(content: bytes, checkpoint_copy: Path) -> None:
    write_training_images(checkpoint_copy, content)
    with pytest.raises(CheckpointError) as caught:
        known_images(checkpoint_copy, [])
    assert caught.value.path == checkpoint_copy / "training_images.safetensors"
