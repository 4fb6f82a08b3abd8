"""The units that figures about labelled images count: lesions, groups by class, or pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eulerlora_contract.checkpoints import Unit
from training.data.images import LabelledImage

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """The units of n images, each of one group and one class.

    A unit is the images of one class in a lesion; where no image has a known lesion, in a group,
    such as a patient; an image without either is one by itself. A group with a benign and a
    malignant lesion is never one unit, and without known lesions at least two. Units of one group
    are not independent.

    Attributes:
        indices: (n,) the unit of each image.
        labels: (units,) their class indices.
        groups: (units,) the group of each.
        unit: What a unit is.
    """

    indices: _Ints
    labels: _Ints
    groups: _Ints
    unit: Unit

    @classmethod
    def of(cls, images: Sequence[LabelledImage]) -> "Units":
        names = {image.name for image in images}
        unit: Unit = "picture"
        if any(image.lesion for image in images):
            unit = "lesion"
        # Copies without a group have that of the name of one of them.
        elif any(image.cluster and image.cluster not in names for image in images):
            unit = "group"

        def key(image: LabelledImage) -> tuple[str | bool | int, ...]:
            shared = image.lesion if unit == "lesion" else image.cluster
            return image.cluster_name, image.label, bool(shared), shared or image.name

        keys = [key(image) for image in images]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        groups = {name: number for number, name in enumerate(dict.fromkeys(k[0] for k in keys))}
        return cls(
            indices=np.array([numbers[key] for key in keys], np.int64),
            labels=np.array([label for _, label, *_ in numbers], np.int64),
            groups=np.array([groups[name] for name, *_ in numbers], np.int64),
            unit=unit,
        )

    @classmethod
    def of_lesions(cls, lesions: _Ints, labels: _Ints) -> "Units":
        """Lesions of one class each, which are their own groups, from those of n images."""
        _, first, indices = np.unique(lesions, return_index=True, return_inverse=True)
        return cls(indices, labels[first], np.arange(len(first)), "lesion")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_groups(self) -> _Ints:
        """(n,) the group of each image."""
        return self.groups[self.indices]

    @property
    def group(self) -> Unit:
        """What a group is: a unit if each group has one, which are then independent."""
        return self.unit if len(np.unique(self.groups)) == len(self) else "group"

    def counts(self, classes: int) -> tuple[int, ...]:
        """The number of units of each class."""
        return tuple(np.bincount(self.labels, minlength=classes).tolist())

    def of_images(self, chosen: NDArray[np.bool_]) -> "Units":
        """The units of the chosen images; `chosen` is (n,)."""
        kept, indices = np.unique(self.indices[chosen], return_inverse=True)
        return Units(indices, self.labels[kept], self.groups[kept], self.unit)

    def combine(self, values: NDArray[Any], function: np.ufunc) -> NDArray[Any]:
        """(units,) a value of each unit from those of its images, (n,).

        `function`: such as np.maximum, or np.logical_and for flags.
        """
        order = np.argsort(self.indices, kind="stable")
        starts = np.searchsorted(self.indices[order], np.arange(len(self)))
        combined: NDArray[Any] = function.reduceat(values[order], starts)
        return combined

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(units,) the mean over the images of each unit."""
        sizes = np.bincount(self.indices)
        means: NDArray[np.float64] = np.bincount(self.indices, weights=values) / sizes
        return means
