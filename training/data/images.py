"""Images: where they are stored, their decoding, labelled sets of them, and loading in batches."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eulerlora.images.decode import RgbImage
from eulerlora.images.files import read_image
from eulerlora.images.preprocess import network_input
from eulerlora.settings import Preprocessing
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError, ImageError
from eulerlora_contract.printable import printable

OodGroup = Literal["far", "near", "shifted"]
Augmentation = Literal["paper", "dermoscopy", "cameras", "natural"]
Encoded = Path | bytes
"""An image file on disk, or its bytes in memory."""

ImageSource = Encoded | Tensor | Callable[[], Tensor]
"""An encoded image, a decoded one or a function that makes it: (3, height, width) uint8, RGB."""

OnBad = Callable[[str, str], None]
"""(name, reason) -> None, to skip an unusable image or row; or raises DataError."""


class ReadSet(Protocol):
    """A set of images with the reasons, by name, why others were skipped, and further remarks."""

    @property
    def skipped(self) -> Mapping[str, str]: ...

    @property
    def notes(self) -> Sequence[str]: ...


def decode_source(name: str, source: Encoded) -> RgbImage:
    """Decodes an image, with warnings.

    Raises:
        DataError: With the image's name.
    """
    try:
        return read_image(source, name)
    except ImageError as error:
        raise DataError(str(error)) from error


def refuse(name: str, reason: str) -> None:
    """An OnBad that allows no unusable image.

    Raises:
        DataError: At every call.
    """
    raise DataError(f"{name}: {reason}; use --skip-bad to skip unusable images")


def report_skipped(*sets: ReadSet) -> None:
    """Prints on stderr the notes of all sets and the skipped images with reasons, if any."""
    for note in dict.fromkeys(note for images in sets for note in images.notes):
        print(printable(f"note: {note}"), file=sys.stderr)
    skipped = {name: reason for images in sets for name, reason in images.skipped.items()}
    if skipped:
        noun = "image" if len(skipped) == 1 else "images"
        print(f"skipped {len(skipped):,} {noun}:", file=sys.stderr)
    for name, reason in skipped.items():
        print(printable(f"  {name}: {reason}"), file=sys.stderr)


DIAGNOSED_BY, HISTOLOGY = "diagnosed by", "histology"
"""Attribute that says how the label of an image is known, and its most reliable value."""
UNKNOWN = "unknown"
"""Value of an attribute that is not stated."""
OUTSIDE = -1
"""Label of images that belong to none of the classes."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, eq=False)  # comparing tensors gives no single truth value
class LabelledImage:
    """An image with its name, source and class index.

    Attributes:
        cluster: Identifier of the group that several images share, such as a patient or a lesion,
            if known: a split does not divide it.
        attributes: Such as "female" by "sex"; results are also stated by their values.
        lesion: Identifier of the lesion, which figures count, if known; in one group.
    """

    name: str
    source: ImageSource
    label: int
    cluster: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    lesion: str | None = None

    @property
    def cluster_name(self) -> str:
        """The cluster or the lesion; an image without either is one by itself, by its name."""
        return self.cluster or self.lesion or self.name

    def pixels(self) -> Tensor:
        """(3, height, width) uint8, upright sRGB; decoded or made at every call.

        Raises:
            DataError: With the image's name.
        """
        if isinstance(self.source, Tensor):
            return self.source
        if not isinstance(self.source, Path | bytes):
            return self.source()
        return decode_source(self.name, self.source).pixels


@dataclass(frozen=True)
class ImageParts:
    """A labelled data set, split.

    Attributes:
        name: Title in reports, with the split.
        parts: Train, validation and calibration (not in every split), and test.
        skipped: Reasons by name of image or row.
        notes: Remarks for the user.
    """

    name: str
    classes: tuple[ClassName, ...]
    parts: Mapping[str, Sequence[LabelledImage]]
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.classes)

    @property
    def held_out(self) -> str:
        """The part that thresholds are fitted to: calibration, or test in a split without one."""
        return "calibration" if "calibration" in self.parts else "test"


@dataclass(frozen=True)
class OodSet:
    """Images beside those of the data set, with fields as in `ImageParts`.

    They are out-of-distribution images of an evaluation, outliers of a training, or unlabelled
    images of a pretraining.

    Attributes:
        images: Those of none of the classes are labelled OUTSIDE.
        group: How out-of-distribution images differ (`OodSettings`).
        generated: False for those of a folder or archive.
    """

    name: str
    images: Sequence[LabelledImage]
    skipped: Mapping[str, str] = field(default_factory=dict)
    group: OodGroup = "far"
    generated: bool = False
    notes: tuple[str, ...] = ()


def pixel_batches(
    images: Sequence[LabelledImage], preprocessing: Preprocessing, size: int
) -> Iterator[Tensor]:
    """Yields `size` images at a time as the network's input, (n, *preprocessing.shape) in [0, 1].

    Only one batch is in memory.
    """
    for start in range(0, len(images), size):
        part = images[start : start + size]
        yield torch.stack([network_input(image.pixels(), preprocessing) for image in part])


def class_counts(images: Sequence[LabelledImage], classes: int) -> Tensor:
    """The number of images per class, (classes,) int64."""
    return torch.bincount(torch.tensor([image.label for image in images]), minlength=classes)


def evenly_spaced(items: Sequence[_Item], count: int | None) -> Sequence[_Item]:
    """`count` items at equal distances, beginning with the first; all if fewer or None."""
    if count is None or count >= len(items):
        return items
    return [items[index * len(items) // count] for index in range(count)]


_SIGNALS = {signal.SIGINT, signal.SIGTERM}


def load(dataset: Dataset[Any], workers: int, **options: Any) -> Iterator[Any]:
    """Yields the batches of a DataLoader with these options; 0 workers use this process.

    Ctrl-C, `timeout`, systemd and Slurm send their signals to all processes of a run. A worker that
    ends raises an error in this process, at any place and before the run can save its state.
    Workers therefore ignore SIGINT, and SIGTERM unless this process sends it.
    """
    loader = DataLoader(
        dataset,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,  # starts no interpreter
        worker_init_fn=_obey_parent,
        **options,
    )
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # which workers inherit
    try:
        batches = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    yield from batches


def _obey_parent(_worker: int) -> None:
    """Waits for signals, which are blocked in a worker, in a thread of its own."""
    parent = os.getppid()

    def wait() -> None:
        while True:
            received = signal.sigwaitinfo(_SIGNALS)
            if received.si_signo == signal.SIGTERM and received.si_pid == parent:
                os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
