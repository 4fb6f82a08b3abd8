"""Splits keep groups whole and give every part every class."""

from collections import Counter
from dataclasses import dataclass

import pytest
from sklearn.model_selection import train_test_split

from training.data.splits import SPLIT_SEED, split_off


@dataclass(frozen=True)
class Picture:
    name: int
    label: int
    cluster: str | None = None


def test_without_groups_a_part_is_the_stratified_one_of_scikit_learn() -> None:
    items = [Picture(index, index % 3) for index in range(100)]
    first, second = split_off(items, 0.1)
    expected = train_test_split(
        items, test_size=0.1, stratify=[item.label for item in items], random_state=SPLIT_SEED
    )
    assert [list(first), list(second)] == expected


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_class_with_two_groups_is_in_both_parts(share: float) -> None:
    items = [Picture(index, 0, f"p{index // 4}") for index in range(80)]
    items += [Picture(80 + index, 1, f"q{index // 5}") for index in range(10)]
    first, second = split_off(items, share)
    assert Counter(item.label for item in first).keys() == {0, 1}
    assert Counter(item.label for item in second).keys() == {0, 1}
    assert not {item.cluster for item in first} & {item.cluster for item in second}
    assert sorted(item.name for item in (*first, *second)) == list(range(90))


def test_a_class_that_occurs_only_beside_rarer_ones_is_in_both_parts() -> None:
    items = [Picture(2 * index + label, label, f"p{index}") for index in range(8)
             for label in (0, 1)]  # fmt: skip
    items += [Picture(16 + index, 2) for index in range(40)]
    first, second = split_off(items, 0.1)
    for part in (first, second):
        assert {item.label for item in part} == {0, 1, 2}
