"""A split of a site's labelled pictures that keeps lesions and patients whole."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from training.data.images import LabelledImage
from training.data.splits import MIN_FOR_SPLIT, SPLIT_SEED, Group, stratified_split, whole_groups
from training.metrics.intervals import Ints, cluster_indices


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
    groups = whole_groups(sorted(images, key=lambda image: image.cluster or image.name))
    sizes = Counter(group.label for group in groups)
    alone = [group for group in groups if sizes[group.label] < MIN_FOR_SPLIT]
    several = [group for group in groups if sizes[group.label] >= MIN_FOR_SPLIT]
    fit, measure = stratified_split(several, measured, seed)
    return HoldOut(_images([*fit, *alone]), _images(measure))


def _images(groups: Sequence[Group[LabelledImage]]) -> list[LabelledImage]:
    return sorted((image for group in groups for image in group.items), key=lambda i: i.name)
