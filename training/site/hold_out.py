"""A split of a site's labelled pictures that keeps lesions and patients whole."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from training.data.labelled_images import SPLIT_SEED, LabelledImage, stratified_split
from training.metrics.intervals import Ints, cluster_indices

MIN_FOR_SPLIT = 2  # groups of a class


@dataclass(frozen=True)
class Group:
    """The images of a lesion or patient. label: the class by which a split is stratified."""

    label: int
    images: Sequence[LabelledImage]


@dataclass(frozen=True)
class HoldOut:
    """Two parts of the images without a common group: one to fit and one to measure."""

    fit: Sequence[LabelledImage]
    measure: Sequence[LabelledImage]


def group_indices(images: Sequence[LabelledImage]) -> Ints:
    """Returns (n,) the index of each image's group; an image without one is a group by itself."""
    return cluster_indices([image.cluster or image.name for image in images])


def split_groups(
    images: Sequence[LabelledImage], measured: float, seed: int = SPLIT_SEED
) -> HoldOut:
    """Returns the images in two parts, stratified by class; the same parts for the same seed.

    measured: share of the groups in the second part, 0 to 1. Groups of a class with fewer than two
    stay in the first. Raises DataError if there are too few groups.
    """
    members: dict[int, list[LabelledImage]] = defaultdict(list)
    for index, image in zip(group_indices(images).tolist(), images, strict=True):
        members[index].append(image)
    totals = Counter(image.label for image in images)
    groups = [
        Group(min((image.label for image in group), key=totals.__getitem__), group)
        for _, group in sorted(members.items())
    ]
    sizes = Counter(group.label for group in groups)
    alone = [group for group in groups if sizes[group.label] < MIN_FOR_SPLIT]
    several = [group for group in groups if sizes[group.label] >= MIN_FOR_SPLIT]
    fit, measure = stratified_split(several, measured, seed)
    return HoldOut(_images([*fit, *alone]), _images(measure))


def _images(groups: Sequence[Group]) -> list[LabelledImage]:
    return sorted((image for group in groups for image in group.images), key=lambda i: i.name)
