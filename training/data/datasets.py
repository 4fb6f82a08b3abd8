"""The data sets of a recipe: labelled parts, out-of-distribution images and outliers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath

from eulerlora.config import CheckpointConfig, ClassName
from eulerlora.errors import DataError
from training.data import ham10000
from training.data.cache import decoded_images
from training.data.labelled_images import (
    OUTSIDE,
    ImageParts,
    LabelledImage,
    OodSet,
    evenly_spaced,
    stratified_split,
    three_parts,
)
from training.data.public_sets import (
    TITLES,
    read_tiny_imagenet,
    read_torchvision_set,
    split_suffix,
)
from training.data.sources import OnBad, refuse
from training.recipe.pretraining import UnlabelledData
from training.recipe.schema import DataSettings, OodSettings, OutlierSettings, Part


def read_dataset(settings: DataSettings, directory: Path, skip_bad: bool = False) -> ImageParts:
    """Returns the data set of a recipe from a data directory; every image of it can be decoded.

    skip_bad: skip unusable images and list them in `skipped` instead of raising DataError.
    """
    skipped: dict[str, str] = {}
    on_bad = skipped.__setitem__ if skip_bad else refuse
    path = directory / settings.path
    if settings.kind == "imagefolder":
        images = _read_image_folder(settings, path, on_bad)
    elif settings.kind == "ham10000":
        images = ham10000.read_ham10000(path, settings.split, on_bad)
    elif settings.kind == "tiny-imagenet":
        images = read_tiny_imagenet(path, settings.split, on_bad)
    else:  # torchvision checks the digests of its files, so no image is unusable
        images = read_torchvision_set(settings.kind, path, settings.split)
    return replace(_limited(images, settings.at_most), skipped=skipped)


def checkpoint_dataset(
    config: CheckpointConfig, directory: Path, skip_bad: bool = False
) -> ImageParts:
    """Returns the data set that a checkpoint was trained on, from a data directory.

    Raises DataError if its classes differ from the checkpoint's.
    """
    images = read_dataset(dataset_settings(config), directory, skip_bad)
    names, expected = (
        [name.name for name in classes] for classes in (images.classes, config.classes)
    )
    if names != expected:
        raise DataError(
            f"{directory}: expected the checkpoint's classes {', '.join(expected)}, got "
            f"{', '.join(names)}"
        )
    return images


def dataset_settings(config: CheckpointConfig) -> DataSettings:
    """Returns the data set and the split that a checkpoint was trained on."""
    return DataSettings.model_validate(config.provenance["recipe"]["data"])


def _limited(images: ImageParts, limits: Mapping[Part, int]) -> ImageParts:
    """Returns the data set with at most `limits` images per part, and with this in its name."""
    name, parts = images.name, dict(images.parts)
    for part, limit in limits.items():
        whole = images.parts.get(part, [])
        if limit < len(whole):
            parts[part] = stratified_split(whole, limit)[1]
            name += f", {limit:,} of {len(whole):,} {part} images"
    return replace(images, name=name, parts=parts)


def read_ood_set(settings: OodSettings, directory: Path, skip_bad: bool = False) -> OodSet:
    """Returns out-of-distribution images from a data directory.

    Kind `images`: all images of a folder or archive, or only those in its `test/`, if any. Other
    kinds: the test part of the data set. Raises DataError if there are none.
    """
    if settings.kind == "images":
        unlabelled = _read_images(settings.path, "test", directory, skip_bad)
        return replace(unlabelled, group=settings.group)
    data = DataSettings(kind=settings.kind, path=settings.path, split="paper")
    labelled = read_dataset(data, directory, skip_bad)
    images = [replace(image, label=OUTSIDE) for image in labelled.parts["test"]]
    title = ham10000.TITLE if settings.kind == "ham10000" else TITLES[settings.kind]
    return OodSet(title, images, labelled.skipped, settings.group)


def read_outliers(settings: OutlierSettings, directory: Path, skip_bad: bool = False) -> OodSet:
    """Returns the outliers to train with. Raises DataError if there are none."""
    outliers = _read_images(settings.path, "train", directory, skip_bad)
    return OodSet(settings.path, evenly_spaced(outliers.images, settings.images), outliers.skipped)


def read_unlabelled(settings: UnlabelledData, directory: Path, skip_bad: bool = False) -> OodSet:
    """Returns the unlabelled images of a pretraining. Raises DataError if there are none."""
    if settings.kind == "images":
        return _read_images(settings.path, "train", directory, skip_bad)
    data = DataSettings(kind=settings.kind, path=settings.path, split=settings.split)
    labelled = read_dataset(data, directory, skip_bad)
    images = [replace(image, label=OUTSIDE) for image in labelled.parts["train"]]
    return OodSet(f"{labelled.name}, train part without labels", images, labelled.skipped)


def _read_images(path: str, part: Part, directory: Path, skip_bad: bool) -> OodSet:
    """Returns all images of a folder or archive, or those in its folder `part`, if any."""
    folder = directory / path
    decoded = decoded_images(folder)
    names = sorted({*decoded.sources, *decoded.bad})
    names = [name for name in names if name.startswith(f"{part}/")] or names
    skipped = {_in_directory(path, n): decoded.bad[n] for n in names if n in decoded.bad}
    if not skip_bad:
        for name, reason in skipped.items():
            refuse(name, reason)
    images = [LabelledImage(n, decoded.sources[n], OUTSIDE) for n in names if n in decoded.sources]
    if not images:
        raise DataError(f"{folder}: expected usable images, got none that can be decoded")
    return OodSet(folder.resolve().name, images, skipped)


@dataclass(frozen=True)
class FolderImage:
    """An image of an image folder: its relative name and class index."""

    name: str
    label: int


@dataclass(frozen=True)
class ClassFolders:
    """Sorted classes, and the images of `train` and `test`, or of `all` without such folders."""

    classes: Sequence[str]
    parts: Mapping[str, Sequence[FolderImage]]


def _read_image_folder(settings: DataSettings, path: Path, on_bad: OnBad) -> ImageParts:
    """Returns an image folder. Splitting precedes skipping: a bad image changes no other part."""
    decoded = decoded_images(path)
    names = sorted({*decoded.sources, *decoded.bad})
    folders = _class_folders(path, names, settings.classes.keys())
    parts = {}
    for part, images in three_parts(folders.parts, settings.split).items():
        for image in images:
            if image.name in decoded.bad:
                on_bad(_in_directory(settings.path, image.name), decoded.bad[image.name])
        parts[part] = [
            LabelledImage(image.name, decoded.sources[image.name], image.label)
            for image in images
            if image.name in decoded.sources
        ]
    trained = {image.label for image in parts["train"]}
    for label, name in enumerate(folders.classes):
        if label not in trained:
            raise DataError(f"{path}: expected usable training images of class {name}, got none")
    classes = tuple(
        ClassName(name=name, description=settings.classes.get(name, name))
        for name in folders.classes
    )
    return ImageParts(f"{path.name}, image folder{split_suffix(settings.split)}", classes, parts)


def _class_folders(path: Path, names: Collection[str], expected: Collection[str]) -> ClassFolders:
    """Assigns images, given by relative name, to classes and parts by their folders.

    Layouts: `train/<class>/` and `test/<class>/`, or `val/<class>/` if there is no `test/`, with
    other folders ignored; or `<class>/`.
    expected: the exact classes; if empty, at least two of any name. Raises DataError, with the
    folder, for a missing or unexpected class.
    """
    folders = {name: PurePosixPath(name).parts[:-1] for name in names}
    top = {folder[0] for folder in folders.values() if len(folder) > 1}
    test = "val" if "val" in top and "test" not in top else "test"
    parts = {
        part: [n for n, folder in folders.items() if folder[:1] == (name,) and len(folder) > 1]
        for part, name in (("train", "train"), ("test", test))
    }
    if not all(parts.values()):
        parts = {"all": [name for name, folder in folders.items() if folder]}
    present = {part: {folders[name][-1] for name in members} for part, members in parts.items()}
    classes = sorted(expected or set.union(*present.values()))
    if len(classes) < 2:
        raise DataError(f"{path}: expected a folder for each of two classes or more")
    for part, name in (("all", "."), ("train", "train"), ("test", test)):
        if part in parts:
            _check_classes(path / name, present[part], classes)
    labels = {name: index for index, name in enumerate(classes)}
    return ClassFolders(
        classes,
        {
            part: [FolderImage(name, labels[folders[name][-1]]) for name in members]
            for part, members in parts.items()
        },
    )


def _check_classes(folder: Path, present: Collection[str], expected: Sequence[str]) -> None:
    for name in expected:
        if name not in present:
            raise DataError(f"{folder / name}: expected a folder with images of this class")
    for name in sorted(present):
        if name not in expected:
            raise DataError(
                f"{folder / name}: expected one of the classes {', '.join(expected)}, got {name}"
            )


def _in_directory(path: str, name: str) -> str:
    """Returns an image's name relative to the data directory."""
    return (PurePath(path) / name).as_posix()
