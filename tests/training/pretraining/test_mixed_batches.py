"""Batches of several labelled sets, and their augmentation in groups."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from training.data.augmentation import CPU, seeded
from training.fit.batches import Shard
from training.fit.run import Run, accelerator_on
from training.pretraining.mixed_batches import (
    ImageTensor,
    MixedBatches,
    PretrainingSet,
    group_transform,
    on_device_if_fits,
    prefetch,
    transform_groups,
)
from training.recipe.pretraining import AugmentationSettings, PretrainingStage

SIZES, CLASSES = (17, 10), (3, 2)
PLAIN = AugmentationSettings(crop_area=1.0, policy="none", erasing=0.0, mixed=0.0)
STAGE = PretrainingStage(epochs=2, batch_size=8, image_size=4, augmentation=PLAIN)


def image_sets() -> list[ImageTensor]:
    """Two sets of uniform images with distinct gray levels."""
    levels = torch.arange(sum(SIZES), dtype=torch.uint8).split(SIZES)
    return [
        ImageTensor(level.view(-1, 1, 1, 1).repeat(1, 3, size, size), level.long() % classes)
        for level, size, classes in zip(levels, (6, 4), CLASSES, strict=True)
    ]


def pretraining_sets(images: Sequence[ImageTensor]) -> list[PretrainingSet]:
    return [PretrainingSet(*part) for part in zip(images, CLASSES, strict=True)]


def batches(
    stage: PretrainingStage = STAGE, seed: int = 0, sets: Sequence[PretrainingSet] | None = None
) -> MixedBatches:
    run = Run(Accelerator(cpu=True), seed=seed, recipe=stage, state=Path("none"))
    return MixedBatches(sets or pretraining_sets(image_sets()), stage, run)


def levels(pixels: Tensor) -> list[int]:
    return (255 * pixels.mean(dim=(1, 2, 3))).round().int().tolist()


def test_an_epoch_contains_every_image_of_every_set_once() -> None:
    orders = []
    for epoch in (0, 1):
        batch_levels = [levels(pixels) for pixels, _ in batches().epoch(epoch, 0)]
        assert [len(batch) for batch in batch_levels] == [8, 8, 8, 3]
        assert sorted(level for batch in batch_levels for level in batch) == list(range(27))
        assert all(min(batch) < SIZES[0] <= max(batch) for batch in batch_levels[:3])
        orders.append(batch_levels)
    assert orders[0] != orders[1]


def test_only_images_of_the_same_set_are_mixed() -> None:
    augmentation = AugmentationSettings(mixed=1.0, group=8)
    stage = STAGE.model_copy(update={"augmentation": augmentation})
    mixed = 0
    for _, targets in batches(stage).epoch(0, 0):
        per_set = targets[:, :-1].split(CLASSES, dim=1)
        of_sets = torch.stack([part.sum(dim=1) for part in per_set], dim=1)
        torch.testing.assert_close(of_sets.sum(dim=1), torch.ones(len(targets)))
        assert ((of_sets > 0).sum(dim=1) == 1).all()
        mixed += int(((targets > 0).sum(dim=1) > 1).sum())
    assert mixed > 5


def test_an_epoch_repeats_the_images_of_a_set_as_often_as_it_says() -> None:
    first, second = pretraining_sets(image_sets())
    sets = [replace(first, repeats=0), replace(second, repeats=3)]
    epoch = list(batches(sets=sets).epoch(0, 0))
    seen = Counter(level for pixels, _ in epoch for level in levels(pixels))
    assert seen == dict.fromkeys(range(SIZES[0], sum(SIZES)), 3)


def test_every_unlabelled_image_has_two_different_views_with_its_number() -> None:
    labelled, _ = image_sets()
    noise = torch.randint(0, 256, (9, 3, 12, 12), dtype=torch.uint8)
    sets = [
        PretrainingSet(labelled, CLASSES[0]),
        PretrainingSet(ImageTensor(noise, torch.full((9,), -1)), 0, "cameras"),
    ]
    views: dict[float, list[Tensor]] = {}
    for pixels, targets in batches(sets=sets).epoch(0, 0):
        assert targets.shape[1] == CLASSES[0] + 1
        for view, target in zip(pixels, targets, strict=True):
            if target[-1] > 0:
                assert target[:-1].sum() == 0
                views.setdefault(float(target[-1]), []).append(view)
    assert sorted(views) == [SIZES[0] + 1 + number for number in range(9)]
    assert all(len(pair) == 2 and not torch.equal(*pair) for pair in views.values())


def test_skipping_drops_the_first_batches_and_changes_no_other() -> None:
    stage = STAGE.model_copy(update={"augmentation": AugmentationSettings(group=2)})
    whole, rest = list(batches(stage).epoch(1, 0)), list(batches(stage).epoch(1, 2))
    torch.rand(3)  # other draws change nothing
    assert len(rest) == 2
    for ours, theirs in zip(rest, whole[2:], strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_processes_partition_a_batch() -> None:
    epochs = []
    for process in (0, 1):
        ours = batches()
        accelerator = ours.run.accelerator
        ours.run = SimpleNamespace(accelerator=accelerator, seed=0, shard=Shard(process, 2))
        epochs.append(list(ours.epoch(0, 0)))
    counted = [
        level
        for ours in epochs
        for pixels, targets in ours
        for level, share in zip(levels(pixels), targets.sum(dim=1), strict=True)
        if share
    ]
    assert sorted(counted) == list(range(27))
    assert all(len(one[0]) == len(other[0]) for one, other in zip(*epochs, strict=True))


def test_prefetch_makes_the_next_item_during_the_use_of_one() -> None:
    made = [threading.Event() for _ in range(3)]

    def make(number: int) -> int:
        made[number].set()
        return number

    items = prefetch(make, range(3))
    assert next(items) == 0
    assert made[1].wait(60)
    assert not made[2].is_set()
    assert list(items) == [1, 2]
    assert list(prefetch(make, range(0))) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu_are_made_there_and_deterministic() -> None:
    stage = STAGE.model_copy(update={"augmentation": AugmentationSettings(group=2)})
    device = torch.device("cuda", torch.cuda.current_device())
    run = Run(accelerator_on(device), seed=0, recipe=stage, state=Path("none"))
    sets = on_device_if_fits(image_sets(), device)
    epochs = [list(MixedBatches(pretraining_sets(sets), stage, run).epoch(0, 0)) for _ in range(2)]
    for ours, theirs in zip(*epochs, strict=True):
        assert ours[0].device == ours[1].device == device
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


NO_AUGMENTATION = {"crop_area": 1.0, "policy": "none", "erasing": 0.0, "mixed": 0.0}
PIXELS = torch.randint(
    0, 256, (12, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
TARGETS = torch.eye(3).repeat(4, 1)


def views(
    size: int = 20, group: int = 4, seed: int = 0, **changes: object
) -> tuple[Tensor, Tensor]:
    settings = AugmentationSettings.model_validate(NO_AUGMENTATION | changes)
    with seeded(CPU, seed):
        return transform_groups(group_transform(settings, size), PIXELS, TARGETS, group)


@pytest.mark.parametrize("policy", ["none", "trivial", "rand"])
def test_views_have_the_given_size_and_the_unit_range(policy: str) -> None:
    pixels, targets = views(16, policy=policy, crop_area=0.35, erasing=1.0, mixed=1.0)
    assert pixels.shape == (12, 3, 16, 16)
    assert pixels.dtype == torch.float32
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(12))


def test_images_of_a_group_share_a_draw_and_groups_differ() -> None:
    def erased(group: int) -> list[tuple[bool, ...]]:
        pixels, _ = views(group=group, erasing=1.0)
        return [tuple((view == 0).all(dim=0).flatten().tolist()) for view in pixels]

    together, apart = erased(4), erased(1)
    assert [len(set(together[start : start + 4])) for start in (0, 4, 8)] == [1, 1, 1]
    assert len(set(together)) == 3
    assert len(set(apart)) > 6


def test_images_are_mixed_in_the_proportion_of_their_targets() -> None:
    level = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 3, 20, 20)
    transform = group_transform(
        AugmentationSettings.model_validate(NO_AUGMENTATION | {"mixed": 1.0}), 20
    )
    names = torch.eye(12)
    for seed in range(8):
        with seeded(CPU, seed):
            pixels, targets = transform_groups(transform, level, names, 6)
        expected = targets @ (torch.arange(12.0) / 255)
        torch.testing.assert_close(pixels.mean(dim=(1, 2, 3)), expected, atol=1e-5, rtol=1e-4)


def test_prefetch_raises_the_error_of_an_item() -> None:
    items = prefetch(lambda number: 1 / (1 - number), range(3))
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError):
        next(items)
