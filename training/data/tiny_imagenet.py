"""Tiny ImageNet in its published layout.

    train/<wnid>/images/*.JPEG      100,000 images of 200 classes, 64 x 64 pixels
    val/images/*.JPEG               10,000 images, with classes in val/val_annotations.txt
    words.txt                       meanings of the WordNet ids

The images of test/ have no labels and are not read.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError
from training.data.cache import decoded_images
from training.data.dataset import IMAGENET, PHOTOGRAPHS, DataSet, DataSettings
from training.data.images import ImageParts, ImageSource, LabelledImage, OnBad
from training.data.splits import parts_of

_TRAIN, _VALIDATION = "train", "val"
_ANNOTATIONS, _WORDS = "val_annotations.txt", "words.txt"


class TinyImageNet(DataSet):
    """Tiny ImageNet, with the published validation images as its test part.

    Classes are in the order of their WordNet ids. `on_bad` is also called for each image whose
    class is unknown.
    """

    kind = "tiny-imagenet"
    title = "Tiny ImageNet"
    licence = f"Tiny ImageNet (Stanford CS231n, 2015), {IMAGENET}"
    family = PHOTOGRAPHS

    def is_in(self, path: Path) -> bool:
        return (path / _WORDS).is_file()

    def read(self, path: Path, settings: DataSettings, on_bad: OnBad) -> ImageParts:
        annotations = _read_table(path / _VALIDATION / _ANNOTATIONS)
        words = _read_table(path / _WORDS)
        train, validation = (list(_usable(path, part, on_bad)) for part in (_TRAIN, _VALIDATION))
        wnids = sorted({PurePosixPath(name).parts[1] for name, _ in train})
        labels = {wnid: index for index, wnid in enumerate(wnids)}
        published: dict[str, list[LabelledImage]] = {
            "train": [LabelledImage(n, s, labels[PurePosixPath(n).parts[1]]) for n, s in train],
            "test": [],
        }
        for name, source in validation:
            wnid = annotations.get(PurePosixPath(name).name)
            if wnid in labels:
                published["test"].append(LabelledImage(name, source, labels[wnid]))
            else:
                on_bad(name, f"expected a class of {_TRAIN}/ in {_ANNOTATIONS}, got {wnid}")
        classes = tuple(ClassName(name=wnid, description=words.get(wnid, wnid)) for wnid in wnids)
        return ImageParts(self.named(settings.split), classes, parts_of(published, settings.split))


def _usable(folder: Path, part: str, on_bad: OnBad) -> Iterator[tuple[str, ImageSource]]:
    decoded = decoded_images(folder / part)
    for name, reason in decoded.bad.items():
        on_bad(f"{part}/{name}", reason)
    yield from ((f"{part}/{name}", source) for name, source in decoded.sources.items())


def _read_table(path: Path) -> dict[str, str]:
    """A file's first two tab-separated columns.

    Raises:
        DataError: If either is missing.
    """
    try:
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        return {row[0]: row[1] for row in rows}
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise DataError(
            f"{path}: expected a tab-separated table of Tiny ImageNet ({type(error).__name__})"
        ) from error
