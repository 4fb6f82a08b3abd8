"""Several labelled sets in one batch."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from training.fit.batches import Share
from training.fit.run import Run, accelerator_on
from training.pretraining.image_tensor import ImageTensor, on_device_if_fits
from training.pretraining.mixed_batches import MixedBatches, ahead
from training.recipe.pretraining import AugmentationSettings, PretrainingStage

SIZES, CLASSES = (17, 10), (3, 2)
PLAIN = AugmentationSettings(crop_area=1.0, policy="none", erasing=0.0, mixed=0.0)
STAGE = PretrainingStage(epochs=2, batch_size=8, image_size=4, augmentation=PLAIN)


def image_sets() -> list[ImageTensor]:
    """Two sets of uniform images, of which each has a gray level of its own."""
    levels = torch.arange(sum(SIZES), dtype=torch.uint8).split(SIZES)
    return [
        ImageTensor(level.view(-1, 1, 1, 1).repeat(1, 3, size, size), level.long() % classes)
        for level, size, classes in zip(levels, (6, 4), CLASSES, strict=True)
    ]


def batches(stage: PretrainingStage = STAGE, seed: int = 0) -> MixedBatches:
    run = Run(Accelerator(cpu=True), seed=seed, recipe=stage, state=Path("none"))
    return MixedBatches(image_sets(), CLASSES, stage, run)


def levels(pixels: Tensor) -> list[int]:
    return (255 * pixels.mean(dim=(1, 2, 3))).round().int().tolist()


def test_an_epoch_has_every_image_of_every_set_once_in_mixed_batches() -> None:
    orders = []
    for epoch in (0, 1):
        found = [levels(pixels) for pixels, _ in batches().of_epoch(epoch, 0)]
        assert [len(batch) for batch in found] == [8, 8, 8, 3]
        assert sorted(level for batch in found for level in batch) == list(range(27))
        assert all(min(batch) < SIZES[0] <= max(batch) for batch in found[:3])
        orders.append(found)
    assert orders[0] != orders[1]


def test_shares_name_the_class_within_its_own_set() -> None:
    for pixels, shares in batches().of_epoch(0, 0):
        for level, each in zip(levels(pixels), shares, strict=True):
            expected = level % 3 if level < SIZES[0] else 3 + level % 2
            assert each.tolist() == [float(index == expected) for index in range(5)]


def test_only_images_of_one_set_are_mixed_with_each_other() -> None:
    augmentation = AugmentationSettings(mixed=1.0, group=8)
    stage = STAGE.model_copy(update={"augmentation": augmentation})
    mixed = 0
    for _, shares in batches(stage).of_epoch(0, 0):
        of_sets = torch.stack([part.sum(dim=1) for part in shares.split(CLASSES, dim=1)], dim=1)
        torch.testing.assert_close(of_sets.sum(dim=1), torch.ones(len(shares)))
        assert ((of_sets > 0).sum(dim=1) == 1).all()
        mixed += int(((shares > 0).sum(dim=1) > 1).sum())
    assert mixed > 5


def test_skipped_batches_are_the_first_ones_and_change_no_other() -> None:
    stage = STAGE.model_copy(update={"augmentation": AugmentationSettings(group=2)})
    whole, rest = list(batches(stage).of_epoch(1, 0)), list(batches(stage).of_epoch(1, 2))
    torch.rand(3)  # what others draw meanwhile changes nothing either
    assert len(rest) == 2
    for ours, theirs in zip(rest, whole[2:], strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_padding_has_no_class() -> None:
    pixels, shares = batches().batch([3, -1, 20, -1])
    assert len(pixels) == 4
    assert sorted(shares.sum(dim=1).tolist()) == [0.0, 0.0, 1.0, 1.0]


def test_processes_share_a_batch_and_draw_for_themselves() -> None:
    found = []
    for process in (0, 1):
        ours = batches()
        accelerator = ours.run.accelerator
        ours.run = SimpleNamespace(accelerator=accelerator, seed=0, share=Share(process, 2))
        found.append(list(ours.of_epoch(0, 0)))
    counted = [
        level
        for ours in found
        for pixels, shares in ours
        for level, share in zip(levels(pixels), shares.sum(dim=1), strict=True)
        if share
    ]
    assert sorted(counted) == list(range(27))
    assert all(len(one[0]) == len(other[0]) for one, other in zip(*found, strict=True))


def test_the_next_one_is_made_while_one_is_used() -> None:
    made = [threading.Event() for _ in range(3)]

    def make(number: int) -> int:
        made[number].set()
        return number

    coming = ahead(make, range(3))
    assert next(coming) == 0
    assert made[1].wait(60)
    assert not made[2].is_set()
    assert list(coming) == [1, 2]
    assert list(ahead(make, range(0))) == []


def test_what_goes_wrong_ahead_is_told() -> None:
    coming = ahead(lambda number: 1 / (1 - number), range(3))
    assert next(coming) == 1
    with pytest.raises(ZeroDivisionError):
        next(coming)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_s_batches_are_made_there_and_the_same_each_time() -> None:
    stage = STAGE.model_copy(update={"augmentation": AugmentationSettings(group=2)})
    device = torch.device("cuda", torch.cuda.current_device())
    run = Run(accelerator_on(device), seed=0, recipe=stage, state=Path("none"))
    sets = on_device_if_fits(image_sets(), device)
    found = [list(MixedBatches(sets, CLASSES, stage, run).of_epoch(0, 0)) for _ in range(2)]
    for ours, theirs in zip(*found, strict=True):
        assert ours[0].device == ours[1].device == device
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
