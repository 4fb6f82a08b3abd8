"""Splits of labelled items into train, validation, calibration and test."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from sklearn.model_selection import train_test_split

from eulerlora_contract.errors import DataError

Split = Literal["lesion", "lesion-validation", "lesion-best-epoch", "paper"]
Part = Literal["train", "validation", "calibration", "test"]
_SHARES: Mapping[Part, float] = {"test": 0.2, "calibration": 0.1, "validation": 0.1}
SPLIT_SEED = 42
_MIN_FOR_SPLIT = 2
"""Items of a class that a stratified split needs."""


class _Grouped(Protocol):
    """An object with a class and the identifier of a group, such as a patient, if known.

    The classes are indices or names, in their order.
    """

    @property
    def label(self) -> Any: ...

    @property
    def cluster(self) -> str | None: ...


_AnyItem = TypeVar("_AnyItem")
_Item = TypeVar("_Item", bound=_Grouped)
SplitParts = Mapping[str, Sequence[_Item]]


@dataclass(frozen=True)
class _Group(Generic[_Item]):
    label: Any
    items: Sequence[_Item]


_Cut = Callable[[Sequence[_Item], Part], tuple[Sequence[_Item], Sequence[_Item]]]
"""(items, part) -> the rest and the part, without a common group."""


def _cut_by_share(items: Sequence[_Item], part: Part) -> tuple[Sequence[_Item], Sequence[_Item]]:
    return split_off(items, _SHARES[part])


def parts_of(
    published: Mapping[str, Sequence[_Item]], split: Split, cut: _Cut[_Item] = _cut_by_share
) -> SplitParts[_Item]:
    """Train, calibration and test, and for one split validation; always the same parts.

    The calibration part is the published validation part, or a tenth of the training items; `paper`
    has none of the latter. `lesion-validation` drops the test part and tests on the part
    `validation` of `lesion-best-epoch`, which is the published one or a tenth of the train part. No
    group is divided. `published` has the parts `train`, `test` and possibly `validation`; or `all`,
    of which a fifth becomes the test part.
    """
    if "all" in published:
        train, test = cut(published["all"], "test")
    else:
        train, test = published["train"], published["test"]
    given = published.get("validation", ())
    if split == "paper":
        return {"train": train, "test": test, **({"calibration": given} if given else {})}
    if split == "lesion" and given:
        return {"train": train, "calibration": given, "test": test}
    train, calibration = cut(train, "calibration")
    if split == "lesion":
        return {"train": train, "calibration": calibration, "test": test}
    train, validation = (train, given) if given else cut(train, "validation")
    if split == "lesion-validation":
        return {"train": train, "calibration": calibration, "test": validation}
    return {"train": train, "validation": validation, "calibration": calibration, "test": test}


def split_off(items: Sequence[_Item], share: float) -> tuple[Sequence[_Item], Sequence[_Item]]:
    """Divides items in two, stratified by class, without a common group.

    A `share` of the items or groups is in the second part, which has at least one of each class
    that has two.

    Raises:
        DataError: If there are too few items.
    """
    groups = _whole_groups(items)
    labels = Counter(group.label for group in groups)
    alone = [group for group in groups if labels[group.label] < _MIN_FOR_SPLIT]
    several = [group for group in groups if labels[group.label] >= _MIN_FOR_SPLIT]
    count = max(math.ceil(share * len(several)), len({group.label for group in several}))
    first, second = stratified_split(several, [group.label for group in several], count)
    first, second = _with_every_class([*first, *alone], second)
    return [i for group in first for i in group.items], [i for group in second for i in group.items]


FOLDS = 3


def fold_of(items: Sequence[_Item], fold: int) -> tuple[Sequence[_Item], Sequence[_Item]]:
    """The items outside of a fold, and those in it; always the same FOLDS folds.

    The folds divide the items as `split_off` does. `fold` is below FOLDS.

    Raises:
        DataError: If there are too few items.
    """
    folds, rest = list[Sequence[_Item]](), items
    for left in range(FOLDS, 1, -1):
        rest, chosen = split_off(rest, 1 / left)
        folds.append(chosen)
    folds.append(rest)
    return [item for other in folds if other is not folds[fold] for item in other], folds[fold]


def _whole_groups(items: Sequence[_Item]) -> list[_Group[_Item]]:
    """The groups of the items in order; an item without one is a group by itself."""
    members: dict[object, list[_Item]] = defaultdict(list)
    for index, item in enumerate(items):
        members[index if item.cluster is None else item.cluster].append(item)
    totals = Counter(item.label for item in items)
    return [
        _Group(min((item.label for item in group), key=totals.__getitem__), group)
        for group in members.values()
    ]


def _with_every_class(
    first: Sequence[_Group[_Item]], second: Sequence[_Group[_Item]]
) -> tuple[Sequence[_Group[_Item]], Sequence[_Group[_Item]]]:
    """Moves to the second part the smallest group of each class that it lacks.

    A class with a single group stays in the first part.
    """
    remaining, chosen = list(first), list(second)
    for label in sorted(_labels(remaining) - _labels(chosen)):
        having = [group for group in remaining if label in _labels([group])]
        if len(having) > 1 and label not in _labels(chosen):
            smallest = min(having, key=lambda group: len(group.items))
            remaining.remove(smallest)
            chosen.append(smallest)
    return remaining, chosen


def _labels(groups: Sequence[_Group[_Item]]) -> set[Any]:
    return {item.label for group in groups for item in group.items}


def stratified_split(
    items: Sequence[_AnyItem], labels: Sequence[Any], second: float
) -> tuple[Sequence[_AnyItem], Sequence[_AnyItem]]:
    """Divides items, at least two of each class, by their labels; always the same parts.

    `second` is the size of the second part: a fraction of all items, or as an int a count.

    Raises:
        DataError: If a class has too few items.
    """
    try:
        first_part, second_part = train_test_split(
            list(items), test_size=second, stratify=labels, random_state=SPLIT_SEED
        )
    except ValueError as error:
        raise DataError(
            f"expected enough images of every class for a stratified split, got {len(items):,} "
            f"images of {len(set(labels))} classes, the smallest with "
            f"{min(map(labels.count, set(labels)), default=0)}"
        ) from error
    return first_part, second_part
