"""Random views of groups of images."""

import pytest
import torch
from torch import Tensor

from eulerlora.preprocess import resize
from training.data.augmentation import seeded
from training.pretraining.mixed_batches import group_transform, in_groups
from training.recipe.pretraining import AugmentationSettings

CPU = torch.device("cpu")
PLAIN = {"crop_area": 1.0, "policy": "none", "erasing": 0.0, "mixed": 0.0}
PIXELS = torch.randint(
    0, 256, (12, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
SHARES = torch.eye(3).repeat(4, 1)


def views(
    size: int = 20, group: int = 4, seed: int = 0, **changes: object
) -> tuple[Tensor, Tensor]:
    settings = AugmentationSettings.model_validate(PLAIN | changes)
    with seeded(CPU, seed):
        return in_groups(group_transform(settings, size), PIXELS, SHARES, group)


@pytest.mark.parametrize("policy", ["none", "trivial", "rand"])
def test_views_are_pictures_of_the_wanted_size_in_the_unit_range(policy: str) -> None:
    found, shares = views(16, policy=policy, crop_area=0.35, erasing=1.0, mixed=1.0)
    assert found.shape == (12, 3, 16, 16)
    assert found.dtype == torch.float32
    assert found.min() >= 0
    assert found.max() <= 1
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(12))


def test_without_augmentation_a_view_is_the_service_s_own_but_for_flips() -> None:
    expected = resize(PIXELS, 20)
    found, shares = views()
    for index in range(12):
        flipped = torch.equal(found[index], expected[index].flip(-1))
        assert flipped or torch.allclose(found[index], expected[index], atol=1 / 255)
    assert torch.equal(shares, SHARES)


def test_a_group_shares_its_draw_and_groups_differ() -> None:
    def erased(group: int) -> list[tuple[bool, ...]]:
        found, _ = views(group=group, erasing=1.0)
        return [tuple((each == 0).all(dim=0).flatten().tolist()) for each in found]

    together, apart = erased(4), erased(1)
    assert [len(set(together[start : start + 4])) for start in (0, 4, 8)] == [1, 1, 1]
    assert len(set(together)) == 3
    assert len(set(apart)) > 6


def test_a_view_is_a_function_of_the_seed() -> None:
    changes = {"crop_area": 0.35, "policy": "rand", "erasing": 0.5, "mixed": 0.5}
    first, again, other = (views(seed=seed, **changes) for seed in (7, 7, 8))
    for one, same in zip(first, again, strict=True):
        assert torch.equal(one, same)
    assert not torch.equal(first[0], other[0])


def test_pictures_are_mixed_as_their_shares_are() -> None:
    level = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 3, 20, 20)
    transform = group_transform(AugmentationSettings.model_validate(PLAIN | {"mixed": 1.0}), 20)
    names = torch.eye(12)
    for seed in range(8):
        with seeded(CPU, seed):
            found, shares = in_groups(transform, level, names, 6)
        expected = shares @ (torch.arange(12.0) / 255)
        torch.testing.assert_close(found.mean(dim=(1, 2, 3)), expected, atol=1e-5, rtol=1e-4)
