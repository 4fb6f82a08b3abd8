"""Labels of images by their folders."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from training.labels.table import PART_NAMES, ImageLabel

Folders = tuple[str, ...]


@dataclass(frozen=True)
class FolderLabels:
    """The labels of images by their folders.

    ignored: names of the other images.
    """

    labels: Sequence[ImageLabel]
    ignored: Sequence[str]


def folder_labels(names: Collection[str], packed: bool = False) -> FolderLabels:
    """Returns the labels of images, given by relative name.

    Layouts: `train/CLASS/`, `val/CLASS/` and `test/CLASS/`, with other folders ignored, or
    `CLASS/`. A class folder may have sub-folders. packed: for an archive, whose outer folder, if
    all images share one, is no class.
    """
    folders = {name: PurePosixPath(name).parts[:-1] for name in sorted(names)}
    outer = _outer_folders(folders.values()) if packed else 0
    inner = {name: parts[outer:] for name, parts in folders.items()}
    in_parts = {
        name: parts for name, parts in inner.items() if parts[:1] and parts[0] in PART_NAMES
    }
    in_parts = {name: parts for name, parts in in_parts.items() if len(parts) > 1}
    if in_parts:
        labels = [
            ImageLabel(name, parts[1], f"{parts[0]}/{parts[1]}", part=PART_NAMES[parts[0]])
            for name, parts in in_parts.items()
        ]
    else:
        labels = [ImageLabel(name, parts[0], parts[0]) for name, parts in inner.items() if parts]
    labelled = {label.name for label in labels}
    return FolderLabels(labels, [name for name in inner if name not in labelled])


def _outer_folders(folders: Collection[Folders]) -> int:
    """Returns 1 if all images are below one folder that has sub-folders only, otherwise 0."""
    top = {parts[:1] for parts in folders}
    shared = len(top) == 1 and all(len(parts) > 1 for parts in folders)
    return int(shared and next(iter(top))[0] not in PART_NAMES)
