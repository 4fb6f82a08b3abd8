"""Which image of a folder or archive is of which class, and in which part."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from eulerlora.errors import DataError

PARTS = ("train", "test")


@dataclass(frozen=True)
class FolderImage:
    """An image's relative name, and the index of the class whose folder it lies in."""

    name: str
    label: int


@dataclass(frozen=True)
class ClassFolders:
    """The classes, sorted, and the images of `train` and `test`, or of `all` where the folder
    does not tell those apart.
    """

    classes: Sequence[str]
    parts: Mapping[str, Sequence[FolderImage]]


def class_folders(place: Path, names: Collection[str], wanted: Collection[str]) -> ClassFolders:
    """Sorts images, given by relative name, by their folders.

    `train/<class>/` and `test/<class>/`, other folders then being left aside; or `<class>/`
    alone. wanted: exactly these classes must be there; any two or more where it is empty.
    Raises DataError, naming the folder, for a class that is missing or that nobody wants.
    """
    folders = {name: PurePosixPath(name).parts[:-1] for name in names}
    parts = {
        part: [n for n, folder in folders.items() if folder[:1] == (part,) and len(folder) > 1]
        for part in PARTS
    }
    if not all(parts.values()):
        parts = {"all": [name for name, folder in folders.items() if folder]}
    found = {part: {folders[name][-1] for name in members} for part, members in parts.items()}
    classes = sorted(wanted or set.union(*found.values()))
    if len(classes) < 2:
        raise DataError(f"{place}: wanted a folder of images for each of two classes or more")
    for part in parts:
        _check(place if part == "all" else place / part, found[part], classes)
    label = {name: index for index, name in enumerate(classes)}
    return ClassFolders(
        classes,
        {
            part: [FolderImage(name, label[folders[name][-1]]) for name in members]
            for part, members in parts.items()
        },
    )


def _check(folder: Path, found: Collection[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in found:
            raise DataError(f"{folder / name}: wanted a folder with images of this class")
    for name in sorted(found):
        if name not in wanted:
            raise DataError(
                f"{folder / name}: its class is not in the recipe, which has {', '.join(wanted)}"
            )
