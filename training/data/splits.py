"""Train, calibration and test parts, stratified by class; some of many images."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from sklearn.model_selection import train_test_split

from eulerlora.errors import DataError
from training.recipe.schema import Split

CALIBRATION_SHARE = 0.1
VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2
SPLIT_SEED = 42


class Labelled(Protocol):
    """Anything with the index of its class."""

    @property
    def label(self) -> int: ...


Anything = TypeVar("Anything")
Item = TypeVar("Item", bound=Labelled)


def evenly_spaced(images: Sequence[Anything], count: int | None) -> Sequence[Anything]:
    """`count` of the images, from the first on at equal distances; all where there are no more."""
    if count is None or count >= len(images):
        return images
    return [images[index * len(images) // count] for index in range(count)]


def three_parts(given: Mapping[str, Sequence[Item]], split: Split) -> dict[str, Sequence[Item]]:
    """train, calibration and test of a data set.

    given: its own `train` and `test`, or `all`, of which a fifth then tests. The calibration part
    is a tenth of the training images; `paper` has none. `lesion-validation` leaves the test part
    out and tests on a tenth of the train part. The same parts each time.
    """
    if "all" in given:
        train, test = stratified_halves(given["all"], TEST_SHARE)
    else:
        train, test = given["train"], given["test"]
    if split == "paper":
        return {"train": train, "test": test}
    train, calibration = stratified_halves(train, CALIBRATION_SHARE)
    if split == "lesion-validation":
        train, test = stratified_halves(train, VALIDATION_SHARE)
    return {"train": train, "calibration": calibration, "test": test}


def stratified_halves(
    images: Sequence[Item], share: float
) -> tuple[Sequence[Item], Sequence[Item]]:
    """The images in two parts, stratified by class, the same each time.

    share: of the second part, a share of all images; or, as an int, how many images.
    """
    labels = [each.label for each in images]
    try:
        first, second = train_test_split(
            list(images), test_size=share, stratify=labels, random_state=SPLIT_SEED
        )
    except ValueError as error:
        raise DataError(f"the images cannot be split by class: {error}") from error
    return first, second
