"""The data sets of a recipe: labelled parts, out-of-distribution images and outliers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.images.files import EXTENSIONS, is_image_name
from eulerlora.settings import Provenance
from eulerlora_contract.answers import ClassName
from eulerlora_contract.errors import DataError
from training.data.cache import DecodedImages, decoded_images
from training.data.images import (
    OUTSIDE,
    ImageParts,
    LabelledImage,
    OnBad,
    OodSet,
    evenly_spaced,
    refuse,
)
from training.data.labels import LABELS, ImageLabel, check_every_class, split_labels
from training.data.published import (
    TITLES,
    read_ham10000,
    read_tiny_imagenet,
    read_torchvision_set,
    split_suffix,
)
from training.data.splits import stratified_split
from training.recipe.pretraining import PretrainingData, UnlabelledData
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
        images = read_ham10000(path, settings.split, on_bad)
    elif settings.kind == "tiny-imagenet":
        images = read_tiny_imagenet(path, settings.split, on_bad)
    else:  # torchvision checks the digests of its files, so no image is unusable
        images = read_torchvision_set(settings.kind, path, settings.split)
    return replace(_limited(images, settings.at_most), skipped=skipped)


def checkpoint_dataset(
    config: CheckpointConfig,
    directory: Path,
    skip_bad: bool = False,
    ignore_columns: bool = False,
) -> ImageParts:
    """Returns the data set that a checkpoint was trained on, from a data directory.

    The labels are indices of the checkpoint's classes. ignore_columns: as `data.ignore_columns` of
    a recipe. Raises DataError if the classes of the data set have other names.
    """
    settings = dataset_settings(config)
    if ignore_columns:
        settings = settings.model_copy(update={"ignore_columns": True})
    images = read_dataset(settings, directory, skip_bad)
    names, expected = images.class_names, config.class_names
    if sorted(names) != sorted(expected):
        raise DataError(
            f"{directory}: expected the checkpoint's classes {', '.join(expected)}, got "
            f"{', '.join(names)}"
        )
    return images if names == expected else _with_classes(images, config.classes)


def _with_classes(images: ImageParts, classes: tuple[ClassName, ...]) -> ImageParts:
    indices = {label.name: index for index, label in enumerate(classes)}
    index = [indices[label.name] for label in images.classes]
    parts = {
        part: [replace(image, label=index[image.label]) for image in members]
        for part, members in images.parts.items()
    }
    return replace(images, classes=classes, parts=parts)


def dataset_settings(config: CheckpointConfig) -> DataSettings:
    """Returns the data set and the split that a checkpoint was trained on."""
    return DataSettings.model_validate(config.provenance["recipe"]["data"])


def _limited(images: ImageParts, limits: Mapping[Part, int]) -> ImageParts:
    name, parts = images.name, dict(images.parts)
    for part, limit in limits.items():
        whole = images.parts.get(part, [])
        if limit < len(whole):
            parts[part] = stratified_split(whole, [image.label for image in whole], limit)[1]
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
    title = TITLES[settings.kind]
    return OodSet(title, images, labelled.skipped, settings.group)


def read_outliers(settings: OutlierSettings, directory: Path, skip_bad: bool = False) -> OodSet:
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


def pretraining_images(
    origin: Provenance, settings: DataSettings, directory: Path
) -> list[LabelledImage]:
    """Returns the images of a data set with which a backbone was pretrained, labelled or not.

    origin: provenance of the backbone. A data set of its pretraining is this one if kind, name and
    split are equal. Images that cannot be decoded are left out.
    """
    if "stages" not in origin:
        return []
    recipe, here = origin["recipe"], {"path": settings.path}
    shown: list[LabelledImage] = []
    for data in recipe["data"]:
        if data["kind"] == settings.kind:
            same = PretrainingData.model_validate(data | here)
            labelled = read_dataset(same, directory, skip_bad=True)
            shown += labelled.parts["train"] if labelled.name in origin["data"] else []
    for data in recipe["unlabelled"]:
        if data["kind"] == {"imagefolder": "images"}.get(settings.kind, settings.kind):
            unlabelled = read_unlabelled(UnlabelledData(**data | here), directory, skip_bad=True)
            shown += unlabelled.images if unlabelled.name in origin["data"] else []
    return shown


def _read_images(path: str, part: Part, directory: Path, skip_bad: bool) -> OodSet:
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


def _read_image_folder(settings: DataSettings, path: Path, on_bad: OnBad) -> ImageParts:
    """Returns a user's images. Splitting precedes skipping: a bad image changes no other part.

    Raises DataError, with class and file.
    """
    decoded = decoded_images(path)
    split = split_labels(settings, path, {*decoded.sources, *decoded.bad})
    parts: dict[str, list[LabelledImage]] = {part: [] for part in split.parts}
    for part, rows in split.parts.items():
        for row in rows:
            if row.name in decoded.sources:
                label, source = split.classes.index(row.label), decoded.sources[row.name]
                parts[part].append(LabelledImage(row.name, source, label, row.cluster))
            else:
                on_bad(_in_directory(settings.path, row.name), _fault(path, row, decoded))
    counts = {part: Counter(image.label for image in images) for part, images in parts.items()}
    check_every_class(split, counts)
    classes = tuple(
        ClassName(name=name, description=settings.classes.get(name, name)) for name in split.classes
    )
    layout = LABELS if split.labels.table else "image folder"
    name = f"{path.absolute().name}, {layout}{split_suffix(settings.split)}"
    return ImageParts(name, classes, parts, notes=split.labels.notes)


def _fault(path: Path, row: ImageLabel, decoded: DecodedImages) -> str:
    if row.name in decoded.bad:
        reason = decoded.bad[row.name]
    elif not (path / row.name).exists():
        reason = "no such file"
    elif not is_image_name(row.name):
        reason = f"expected an image ({', '.join(EXTENSIONS)})"
    else:
        reason = f"expected a path below the folder of {LABELS}, without .."
    return f"{reason} ({row.place}, class {row.label})"


def _in_directory(path: str, name: str) -> str:
    return (PurePath(path) / name).as_posix()
