"""Tiny ImageNet in its publisher's layout.

    train/<wnid>/images/*.JPEG      100,000 images of 200 classes, 64 x 64 pixels
    val/images/*.JPEG               10,000 more, whose classes are in val/val_annotations.txt
    words.txt                       what the WordNet ids mean

The images of test/ have no labels and are not read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from eulerlora.config import ClassName
from eulerlora.errors import DataError
from training.data.bad_images import OnBad, refuse
from training.data.cache import decoded_images
from training.data.image_sources import Source

TRAIN, VALIDATION = "train", "val"
ANNOTATIONS, WORDS = "val_annotations.txt", "words.txt"


@dataclass(frozen=True, eq=False)  # pixels have no one truth value
class TinyImage:
    """An image: its name below the data set's folder, where it is, and its class index."""

    name: str
    source: Source
    label: int


@dataclass(frozen=True)
class TinyImageNet:
    """The labelled images: `train`, and as `test` the published validation images."""

    classes: tuple[ClassName, ...]
    parts: Mapping[str, Sequence[TinyImage]]


def read_tiny_imagenet(folder: Path, on_bad: OnBad = refuse) -> TinyImageNet:
    """Tiny ImageNet in `folder`; classes are in the order of their WordNet ids.

    on_bad: told of each image that does not open or whose class is unknown; if it returns, that
    image is left out. Raises DataError for a missing file or folder.
    """
    annotated, words = _table(folder / VALIDATION / ANNOTATIONS), _table(folder / WORDS)
    train, validation = (list(_opened(folder, part, on_bad)) for part in (TRAIN, VALIDATION))
    wnids = sorted({PurePosixPath(name).parts[1] for name, _ in train})
    label = {wnid: index for index, wnid in enumerate(wnids)}
    parts: dict[str, list[TinyImage]] = {
        "train": [TinyImage(n, source, label[PurePosixPath(n).parts[1]]) for n, source in train],
        "test": [],
    }
    for name, source in validation:
        wnid = annotated.get(PurePosixPath(name).name)
        if wnid in label:
            parts["test"].append(TinyImage(name, source, label[wnid]))
        else:
            on_bad(name, f"its class in {ANNOTATIONS} is {wnid}, wanted one of those of {TRAIN}/")
    classes = tuple(ClassName(name=wnid, description=words.get(wnid, wnid)) for wnid in wnids)
    return TinyImageNet(classes, parts)


def _opened(folder: Path, part: str, on_bad: OnBad) -> Iterator[tuple[str, Source]]:
    """Names below `folder` and sources of the images of a part that open."""
    found = decoded_images(folder / part)
    for name, reason in found.bad.items():
        on_bad(f"{part}/{name}", reason)
    yield from ((f"{part}/{name}", source) for name, source in found.sources.items())


def _table(path: Path) -> dict[str, str]:
    """The first two tab-separated columns of a file. Raises DataError where it has not both."""
    try:
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        return {row[0]: row[1] for row in rows}
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise DataError(f"{path}: not a readable table of Tiny ImageNet ({error})") from error
