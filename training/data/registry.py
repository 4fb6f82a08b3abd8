"""All data sets, and the keys of a recipe that choose images."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator

from eulerlora_contract.settings import Positive, PositiveInt, Settings
from training.data.dataset import DataSet, DataSettings, LabelTable
from training.data.ham10000 import Ham10000
from training.data.image_folder import ImageFolder
from training.data.images import OodGroup
from training.data.splits import Split
from training.data.tiny_imagenet import TinyImageNet
from training.data.torchvision_sets import Cifar10, Cifar100, Svhn

DATA_SETS: dict[str, DataSet] = {
    data_set.kind: data_set
    for data_set in (
        Ham10000(),
        TinyImageNet(),
        ImageFolder(),
        Cifar10(),
        Cifar100(),
        Svhn(),
    )
}
"""The data sets by their kind."""

_AnyData = TypeVar("_AnyData", bound=DataSettings)
IMAGES = "images"
"""The kind of a folder or archive of any images, whose labels are not read."""


def known_data(settings: _AnyData) -> _AnyData:
    """Checks the settings of a data set by its kind.

    Raises:
        ValueError: For an unknown kind, and for keys that it ignores.
    """
    if settings.kind not in DATA_SETS:
        raise ValueError(f"expected kind {' or '.join(DATA_SETS)}, got {settings.kind!r}")
    if DATA_SETS[settings.kind].published:
        of_table = {*LabelTable.model_fields} - {"columns", "ignore_columns", "attributes"}
        for key in ("classes", *sorted(of_table)):
            if getattr(settings, key) != DataSettings.model_fields[key].default:
                raise ValueError(f"expected {key} only with kind imagefolder, got {settings.kind}")
    return settings


def _known_images(kind: str) -> str:
    known = [IMAGES, *(name for name, data_set in DATA_SETS.items() if data_set.published)]
    if kind not in known:
        raise ValueError(f"expected {' or '.join(known)}, got {kind!r}")
    return kind


Data = Annotated[DataSettings, AfterValidator(known_data)]
_ImagesKind = Annotated[str, AfterValidator(_known_images)]


class OodSettings(Settings):
    """A set of out-of-distribution images."""

    kind: _ImagesKind
    """`images` for any images, or a published data set, whose test part is used."""
    path: str = "."
    """A folder in the data directory, or for `images` also an archive."""
    group: OodGroup = "far"
    """`far` for other subjects, `near` for similar ones that belong to no class, `shifted` for
    images of the classes from another camera or under other conditions.
    """


class OutlierSettings(Settings):
    """Outliers, trained towards the frequencies of the classes among the training images.

    Outlier exposure (Hendrycks, Mazeika and Dietterich, ICLR 2019) pulls them to equal
    probabilities; here it is to the answer of a network that cannot tell images apart, so that
    class weights count and balanced draws do not.
    """

    path: str
    """A folder or an archive of any images in the data directory, disjoint from `evaluation.ood`.
    If it contains `train/`, only those images are used.
    """
    images: PositiveInt | None = None
    """Maximum number, evenly spaced; None uses all."""
    weight: Positive = 0.5
    """Loss weight of an outlier. A training image has weight 1, or its class's weight divided by
    the mean class weight.
    """


class UnlabelledData(Settings):
    """Images without labels, for the contrastive loss; their views are those of `cameras`.

    Attributes:
        kind: `images` for any images, or a published data set, whose train part is used without
            labels.
        path: A folder or an archive in the data directory.
    """

    kind: _ImagesKind
    path: str = "."
    split: Split = "lesion"
