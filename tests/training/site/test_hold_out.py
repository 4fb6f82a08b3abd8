"""The split keeps lesions whole and every class in both parts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from eulerlora.errors import DataError
from training.data.images import LabelledImage
from training.evaluation.prediction_sets import Lesions
from training.site.hold_out import group_indices, split_groups


def image(name: str, label: int, group: str | None = None) -> LabelledImage:
    return LabelledImage(name, Path(name), label, group)


def lesions(label: int, count: int, pictures: int = 2) -> list[LabelledImage]:
    """Returns `count` lesions of a class with several pictures each."""
    return [
        image(f"{label}-{lesion}-{n}", label, f"{label}-{lesion}")
        for lesion in range(count)
        for n in range(pictures)
    ]


def counts(images: Sequence[LabelledImage]) -> tuple[int, ...]:
    return Lesions.of(images).counts(classes=2)


def test_no_lesion_is_in_both_parts_and_none_is_lost() -> None:
    images = [*lesions(0, 20), *lesions(1, 10, pictures=1)]
    halves = split_groups(images, 0.5)
    fit, measure = ({i.cluster for i in part} for part in (halves.fit, halves.measure))
    assert not fit & measure
    assert {i.name for i in (*halves.fit, *halves.measure)} == {i.name for i in images}
    assert counts(halves.fit) == counts(halves.measure) == (10, 5)
    assert split_groups(images[::-1], 0.5) == halves


def test_a_class_with_one_lesion_is_fitted_and_not_measured() -> None:
    halves = split_groups([*lesions(0, 20), *lesions(1, 1)], 0.25)
    assert counts(halves.fit) == (15, 1)
    assert counts(halves.measure) == (5, 0)


def test_images_without_a_group_are_groups_by_themselves() -> None:
    images = [image("a", 0, "patient"), image("b", 1, "patient"), image("c", 1), image("d", 1)]
    groups = group_indices(images).tolist()
    assert groups[0] == groups[1]
    assert len(set(groups)) == 3


def test_too_few_lesions_to_split_are_refused() -> None:
    with pytest.raises(DataError, match="expected enough"):
        split_groups(lesions(0, 1), 0.5)
