"""What a data set is: the keys that choose it, how it is read, and what reports say of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from eulerlora_contract.errors import DataError
from eulerlora_contract.settings import PositiveInt, Settings, optional
from training.data.images import ImageParts, OnBad
from training.data.splits import FOLDS, Part, Split

INTERVALS = (
    "Brackets contain 95% intervals over the choice of test images, not another training seed, "
    "camera or clinic."
)
IMAGENET = "a part of ImageNet (Deng et al., CVPR 2009), for non-commercial research."
PHOTOGRAPHS, DERMATOSCOPY = "everyday photographs", "dermatoscopic images"


LABELS = "labels.csv"
Column = Literal["path", "label", "group", "lesion", "split"]


class LabelTable(Settings):
    """How the labels of a user's images are read, from a table or from folders."""

    images: str = optional(".")
    """The folder or archive of the pictures, as with `--images`, where it is another one than that
    of the table.
    """
    tables: tuple[str, ...] = optional(())
    """For imagefolder, the tables of labels instead of `labels.csv`, as with `--table`; later ones
    add columns to the rows of the first one, by the path.
    """
    encoding: str | None = optional(None)
    """Encoding of the tables, as with `--encoding`; by default that of a byte order mark, or UTF-8.
    """
    suffix: str = optional("")
    """Of the pictures, as with `--suffix`, if the paths of the table lack it."""
    columns: dict[Column, str] = optional({})
    """Names of the columns of `labels.csv`, as with `--path-column`, where they have others than
    path, label, group, lesion and split.
    """
    one_hot: tuple[str, ...] = optional(())
    """For imagefolder, columns of the table with a 1 for the class, as with `--one-hot`."""
    ignore_columns: bool = False
    """Ignore columns of `labels.csv` other than path, label, group, lesion and split, as with
    `--ignore-columns`.
    """
    attributes: tuple[str, ...] = optional(())
    """Further columns of `labels.csv`, such as `sex` or `skin_type`, as with `--attribute`: an
    evaluation states its results also by their values.
    """
    renamed: dict[str, str] = optional({})
    """For imagefolder, the class of local labels, as with `--class`."""
    ignored: tuple[str, ...] = optional(())
    """For imagefolder, labels whose images are left out, as with `--ignore`."""

    def options(self, given: "LabelTable") -> tuple[str, ...]:
        """The options of a command that make this table of the given one."""
        options = []
        for option, values, present in (
            ("--images", [self.images], [given.images]),
            ("--table", self.tables, given.tables),
            ("--encoding", [self.encoding or ""], [given.encoding or ""]),
            ("--suffix", [self.suffix], [given.suffix]),
        ):
            if values != present:
                options += [word for value in values for word in (option, value)]
        for column, name in self.columns.items():
            if given.columns.get(column) != name:
                options += [f"--{column}-column", name]
        if self.ignore_columns and not given.ignore_columns:
            options.append("--ignore-columns")
        return tuple(options)


@dataclass(frozen=True)
class Suggestion:
    """How a command would read data that it refuses.

    Attributes:
        options: To add to the command.
        purpose: What they do, such as "to leave them out".
        condition: That only a person can know, such as "if they are the classes".
        folder: For --data; None for the given one.
        recipe: Of a training with its options, in place of `options`; empty for the given one.
    """

    options: tuple[str, ...] = ()
    purpose: str = ""
    condition: str = ""
    folder: Path | None = None
    recipe: Sequence[str] = ()


class UnreadDataError(DataError):
    """Data are refused that a command reads with other options, which it prints."""

    def __init__(self, message: str, suggestion: Suggestion) -> None:
        super().__init__(message)
        self.suggestion = suggestion


class DataSettings(LabelTable):
    """The images of a data set and their split."""

    kind: str
    """A data set of `training.data.registry`: `ham10000`, `tiny-imagenet`, `cifar10`, `cifar100` or
    `svhn` in their published layouts, or `imagefolder`, pictures of one's own.
    """
    path: str = "."
    """A folder or, for imagefolder, an archive in the data directory; "." is the directory
    itself.
    """
    split: Split = "lesion"
    """`lesion`, the default, reserves a tenth of the training images for calibration; in ham10000,
    all images of a lesion are in one part. `lesion-validation`, for choosing settings, drops the
    test part and uses a tenth of the training images (ham10000: lesions) instead;
    `lesion-best-epoch` keeps the test part, and has the same tenth as the part `validation`.
    `paper` trains on all training images of the published (ham10000: the paper's) split, without a
    calibration part unless `val/` is given beside `test/`.
    """
    fold: Annotated[int, Field(ge=0, lt=FOLDS)] | None = optional(None)
    """The fold, 0 to 2, of the train and calibration parts that becomes the calibration part; the
    others are trained on. Trainings that differ in it only predict every image of both parts
    without having seen it (`eulerlora policy fit --fold`). None keeps the parts of the split.
    """
    classes: dict[str, str] = {}
    """For imagefolder, descriptions by class name; if given, these are the exact classes."""
    at_most: dict[Part, PositiveInt] = {}
    """Maximum number of images by part; a smaller part is a stratified subset, the same for every
    seed.
    """


class DataSet(ABC):
    """A labelled data set. A subclass is one file, and one line of `training.data.registry`.

    Attributes:
        kind: Its name in recipes.
        title: Its name in reports.
        licence: A sentence of the model card.
        hub_licence: The Hub's identifier of the weights' licence, or `other`.
        family: What its pictures show; a set of the same family is no independent
            out-of-distribution set.
        published: False for pictures of one's own, whose labels and parts are checked.
        intended: A paragraph of the model card.
        misuses: List items of the model card.
        limits: List items of the model card.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    licence: ClassVar[str]
    hub_licence: ClassVar[str] = "other"
    family: ClassVar[str | None] = None
    published: ClassVar[bool] = True
    intended: ClassVar[str] = "Research on images similar to the training images."
    misuses: ClassVar[tuple[str, ...]] = (
        "applications in which a wrong prediction causes harm: validate the model on your own data "
        "first;",
        "images unlike the training images: the model always assigns one of its labels.",
    )
    limits: ClassVar[tuple[str, ...]] = (INTERVALS,)

    @abstractmethod
    def read(self, path: Path, settings: DataSettings, on_bad: OnBad) -> ImageParts:
        """The data set in a folder, split as the settings say.

        Splitting precedes skipping, so that an unusable image changes no other part.

        Args:
            path: Of the folder or archive.
            settings: Of the recipe.
            on_bad: Called for each image or row that cannot be used; if it returns, the image is
                left out.

        Raises:
            DataError: A file is missing, or there are too few images.
        """

    def is_in(self, path: Path) -> bool:
        """False if a folder certainly does not contain the data set."""
        return True

    def named(self, split: Split) -> str:
        """The title with the split, which the default leaves out."""
        return self.title + split_suffix(split)


def split_suffix(split: Split) -> str:
    """The suffix of a data set's name; empty for the default split."""
    return "" if split == "lesion" else f", {split} split"
