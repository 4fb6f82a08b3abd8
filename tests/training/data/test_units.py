"""The units of labelled images: lesions, groups by class, or pictures."""

import numpy as np
import pytest
import torch

from training.data.images import LabelledImage
from training.data.units import Units

NEVUS, MELANOMA = 0, 1


def image(
    name: str, label: int, group: str | None = None, lesion: str | None = None
) -> LabelledImage:
    return LabelledImage(name, torch.empty(0), label, group or lesion, lesion=lesion)


def test_a_group_with_a_melanoma_and_nevi_is_two_units_and_four_where_lesions_are_known() -> None:
    rows = [("a", NEVUS, "1"), ("b", NEVUS, "2"), ("c", NEVUS, "2"), ("d", NEVUS, "3"),
            ("e", MELANOMA, "4")]  # fmt: skip
    by_lesion = Units.of([image(name, label, "P", lesion) for name, label, lesion in rows])
    by_group = Units.of([image(name, label, "P") for name, label, _ in rows])
    assert (by_lesion.unit, by_lesion.counts(2), by_lesion.group) == ("lesion", (3, 1), "group")
    assert (by_group.unit, by_group.counts(2), by_group.group) == ("group", (1, 1), "group")
    for units in (by_lesion, by_group):
        assert set(units.groups.tolist()) == {0}
        assert units.combine(np.array([0, 0, 0, 0, 1]), np.maximum).tolist() == [
            *[0] * (len(units) - 1), 1,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("images", "unit", "indices"),
    [
        ([image("a", 0), image("b", 0)], "picture", [0, 1]),
        ([image("a", 0, "a"), image("b", 0, "a")], "picture", [0, 0]),  # copies
        ([image("a", 0, "b"), image("b", 0), image("c", 1), image("d", 0, "b")], "picture",
         [0, 1, 2, 0]),
        ([image("a", 0, "P"), image("b", 0), image("c", 0, "P")], "group", [0, 1, 0]),
        ([image("a", 0, "P", "x"), image("b", 0, "P"), image("c", 0, "P")], "lesion", [0, 1, 2]),
        ([image("a", 0, "P", "P/1"), image("b", 0, "Q", "Q/1")], "lesion", [0, 1]),
        ([], "picture", []),
    ],
)  # fmt: skip
def test_an_image_without_a_lesion_or_a_group_is_a_unit_by_itself(
    images: list[LabelledImage], unit: str, indices: list[int]
) -> None:
    units = Units.of(images)
    assert (units.unit, units.indices.tolist()) == (unit, indices)
    assert units.counts(2) == tuple(
        len({index for index, one in zip(indices, images, strict=True) if one.label == label})
        for label in (0, 1)
    )


def test_the_units_of_some_images_keep_their_groups_and_labels() -> None:
    units = Units.of([image(f"{i}", i % 2, f"P{i // 4}", f"L{i // 2}") for i in range(12)])
    chosen = np.arange(12) >= 5
    some = units.of_images(chosen)
    assert some.labels.tolist() == units.labels[5:].tolist()
    assert some.image_groups.tolist() == units.image_groups[chosen].tolist()
    values = np.arange(12.0)
    assert some.means(values[chosen]).tolist() == values[chosen].tolist()
