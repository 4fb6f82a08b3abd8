"""The data sets of a recipe: labelled parts, out-of-distribution images and outliers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.settings import Provenance
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError
from eulerlora_contract.printable import printable
from training.data.cache import decoded_images
from training.data.copies import images_in_training
from training.data.dataset import DataSettings, LabelTable
from training.data.images import (
    OUTSIDE,
    ImageParts,
    LabelledImage,
    OodSet,
    evenly_spaced,
    refuse,
)
from training.data.labels import mask_notes
from training.data.layouts import PART_WORDS, mask_names
from training.data.local_images import read_local_images
from training.data.registry import (
    DATA_SETS,
    IMAGES,
    OodSettings,
    OutlierSettings,
    UnlabelledData,
)
from training.data.splits import FOLDS, Part, fold_of, stratified_split

_COMPARED = 100
"""Images by which a folder is recognised as that of a training."""
_RECORDS_NONE = "imported"
"""In the provenance of a checkpoint that was not trained from a recipe (`config_of`)."""


def read_dataset(settings: DataSettings, directory: Path, skip_bad: bool = False) -> ImageParts:
    """The data set of a recipe from a data directory; every image of it can be decoded.

    With `skip_bad`, unusable images are skipped and listed in `skipped`.

    Raises:
        DataError: For data of another layout, and without `skip_bad` for an unusable image.
    """
    skipped: dict[str, str] = {}
    on_bad = skipped.__setitem__ if skip_bad else refuse
    images = DATA_SETS[settings.kind].read(directory / settings.path, settings, on_bad)
    images = _folded(_limited(images, settings.at_most), settings.fold)
    return replace(images, skipped=skipped)


def _folded(images: ImageParts, fold: int | None) -> ImageParts:
    """The images with a fold of those outside of validation and test as the calibration part."""
    if fold is None:
        return images
    train, calibration = fold_of(
        [*images.parts["train"], *images.parts.get("calibration", ())], fold
    )
    parts = {**images.parts, "train": train, "calibration": calibration}
    return replace(images, name=f"{images.name}, fold {fold} of {FOLDS}", parts=parts)


def evaluated_dataset(
    config: CheckpointConfig,
    folder: Path,
    directory: Path,
    skip_bad: bool = False,
    table: LabelTable | None = None,
) -> ImageParts:
    """The data set that an evaluation of a checkpoint tests on.

    That is `checkpoint_dataset`, or as the part `test` all images of another folder but those that
    the training was shown and others of their groups; classes may be absent. Another folder has
    neither the name nor the train part of the training's; or it has not the published data set of
    the training; or it has no parts, for a training that is not recorded.

    Args:
        config: Of the checkpoint.
        folder: The checkpoint's, which has the digests of the images of its training.
        directory: Of the data.
        skip_bad: As in `read_dataset`.
        table: How labels are read; None for the settings of the training. Classes of local labels
            are those of the table alone in another folder.

    Raises:
        DataError: As `read_dataset` and `checkpoint_dataset`, and if the training was shown all
            images of another folder.
    """
    settings = _with_table(dataset_settings(config), table)
    if not (directory / settings.path).exists():
        settings = settings.model_copy(update={"path": "."})
    kind, path = DATA_SETS[settings.kind], directory / settings.path
    trained_on = str(config.provenance.get("data"))
    name = printable(path.absolute().name)  # as in the provenance
    same_name = trained_on.startswith(f"{name}, ")
    if kind.published:
        mapped = table is not None and bool(
            table.renamed or table.ignored or table.columns or table.tables or table.images != "."
        )
        is_other = mapped or not kind.is_in(path)
        why = f"the folder is not that of {kind.title}"
    elif _RECORDS_NONE in config.provenance:
        is_other = not read_local_images(
            path, config.classes, settings, skip_bad=skip_bad
        ).has_parts
        why = "the training is not recorded"
    else:
        is_other = not same_name and not _has_train_part(folder, settings, directory, skip_bad)
        why = f"it is not the folder of the training on {trained_on}"
    if is_other:
        given = LabelTable() if table is None else table
        of_folder = ("renamed", "ignored", "images", "tables", "encoding", "suffix", "one_hot")
        own = settings.model_copy(update={key: getattr(given, key) for key in of_folder})
        local = read_local_images(path, config.classes, own, skip_bad=skip_bad)
        unseen, left_out = _unseen(folder, local.images)
        if not unseen:
            raise DataError(f"{path}: expected images that the training was not shown; {left_out}")
        absent = {*range(len(config.classes))} - {image.label for image in unseen}
        notes = [*local.notes, f"all images are tested on, because {why}"]
        if left_out:
            notes[-1] = f"{len(unseen):,} of {len(local.images):,} images are tested on: {left_out}"
        if absent:
            names = ", ".join(config.class_names[index] for index in sorted(absent))
            notes.append(f"no picture is of {names}; figures of all classes are of the others")
        return ImageParts(
            f"{local.name}, {'images outside of the training' if left_out else 'all images'}",
            config.classes,
            {"test": unseen},
            skipped=local.skipped,
            notes=tuple(notes),
        )
    images = read_dataset(settings, directory, skip_bad)
    train = evenly_spaced(images.parts.get("train", []), _COMPARED)
    note = None
    if same_name and train and images_in_training(folder, train) == []:
        note = (
            f"only the test part is tested on, because {name} has the name of the training's "
            "folder; rename it to test on all images"
        )
    elif not (kind.published or same_name):
        tested, total = len(images.parts["test"]), sum(map(len, images.parts.values()))
        has = f"the pictures of the training on {trained_on}"
        note = (
            f"only the test part is tested on, {tested:,} of {total:,} images, because {name} has "
            f"{'parts' if _RECORDS_NONE in config.provenance else has}"
        )
    if note is not None:
        images = replace(images, notes=(*images.notes, note))
    return _of_checkpoint(images, config, directory)


def _has_train_part(folder: Path, settings: DataSettings, directory: Path, skip_bad: bool) -> bool:
    """True if the checkpoint in `folder` was shown the whole train part of a data directory.

    Also without digests of its training.
    """
    try:
        train = read_dataset(settings, directory, skip_bad).parts["train"]
    except DataError:  # such as a class without images
        return False
    seen = images_in_training(folder, train)
    return seen is None or len(seen) == len(train)


def _unseen(folder: Path, images: Sequence[LabelledImage]) -> tuple[list[LabelledImage], str]:
    """The images whose groups a training was not shown, and in words how many others there are."""
    trained = images_in_training(folder, images) or []
    groups = {image.cluster_name for image in trained}
    unseen = [image for image in images if image.cluster_name not in groups]
    left_out = f"{len(trained):,} were in the training" if trained else ""
    if others := len(images) - len(unseen) - len(trained):
        left_out += f", and {others:,} more are of their groups"
    return unseen, left_out


def checkpoint_dataset(
    config: CheckpointConfig,
    directory: Path,
    skip_bad: bool = False,
    table: LabelTable | None = None,
) -> ImageParts:
    """The data set that a checkpoint was trained on, from a data directory.

    The labels are indices of the checkpoint's classes. What a `table` states replaces what the
    recipe says of `labels.csv`.

    Raises:
        DataError: If the classes of the data set have other names, and for classes of local labels
            in a published data set.
    """
    if DATA_SETS[dataset_settings(config).kind].published and table is not None:
        for option, labels in (("--class", table.renamed), ("--ignore", table.ignored)):
            if labels:
                raise DataError(f"{directory}: expected {option} only with pictures of one's own")
    settings = _with_table(dataset_settings(config), table)
    return _of_checkpoint(read_dataset(settings, directory, skip_bad), config, directory)


def calibrated_dataset(
    config: CheckpointConfig,
    directory: Path,
    skip_bad: bool = False,
    table: LabelTable | None = None,
) -> ImageParts:
    """The data set that a calibration of a checkpoint fits to.

    That is `checkpoint_dataset`. A checkpoint that was not trained from a recipe records none: the
    images are then held out, all in the part `calibration`; or their stated parts are kept.

    Raises:
        DataError: As `checkpoint_dataset`.
    """
    if _RECORDS_NONE not in config.provenance:
        return checkpoint_dataset(config, directory, skip_bad, table)
    settings = _with_table(dataset_settings(config), table)
    local = read_local_images(directory, config.classes, settings, skip_bad=skip_bad)
    if local.has_parts:
        parts = read_dataset(settings.model_copy(update={"split": "paper"}), directory, skip_bad)
        return _of_checkpoint(parts, config, directory)
    absent = {*range(len(config.classes))} - {image.label for image in local.images}
    if absent:
        names = ", ".join(config.class_names[index] for index in sorted(absent))
        raise DataError(f"{directory}: expected images of every class, got none of {names}")
    note = (
        f"all {len(local.images):,} images fit feature means, temperatures and thresholds, as "
        "images that the training was not shown; the distance of each is from means of others"
    )
    return ImageParts(
        f"{local.name}, all images",
        config.classes,
        {"calibration": local.images},
        skipped=local.skipped,
        notes=(*local.notes, note),
    )


def _with_table(settings: DataSettings, table: LabelTable | None) -> DataSettings:
    given = {} if table is None else table.model_dump(exclude_defaults=True)
    columns = settings.columns | given.get("columns", {})
    return settings.model_copy(update={**given, "columns": columns})


def _of_checkpoint(images: ImageParts, config: CheckpointConfig, directory: Path) -> ImageParts:
    """The images with indices of the checkpoint's classes.

    Raises:
        DataError: For others.
    """
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
    """The data set and the split that a checkpoint was trained on."""
    return DataSettings.model_validate(config.provenance["recipe"]["data"])


def _limited(images: ImageParts, limits: Mapping[Part, int]) -> ImageParts:
    name, parts = images.name, dict(images.parts)
    for part, limit in limits.items():
        whole = images.parts.get(part, [])
        if limit < len(whole):
            classes = len({image.label for image in whole})
            if not classes <= limit <= len(whole) - classes:
                raise DataError(
                    f"data.at_most.{part}: expected {classes} to {len(whole) - classes} images of "
                    f"{classes} classes, or at least all {len(whole)}, got {limit}"
                )
            parts[part] = stratified_split(whole, [image.label for image in whole], limit)[1]
            chosen = {image.label for image in parts[part]}
            for image in whole:
                if image.label not in chosen:
                    raise DataError(
                        f"data.at_most.{part}={limit}: leaves no image of the class "
                        f"{printable(images.class_names[image.label])}"
                    )
            name += f", {limit:,} of {len(whole):,} {part} images"
    return replace(images, name=name, parts=parts)


def check_outside_pictures(out: Path, settings: DataSettings, directory: Path) -> None:
    """Checks that an output folder is not among a user's pictures, where it would be a class.

    Raises:
        DataError: If it is.
    """
    pictures = (directory / settings.path / settings.images).resolve()
    if not DATA_SETS[settings.kind].published and out.resolve().is_relative_to(pictures):
        raise DataError(f"{out}: expected an output folder outside of the pictures in {pictures}")


def check_no_class(path: str, settings: DataSettings, directory: Path, images: ImageParts) -> None:
    """Checks that a folder of other images is no class of a user's pictures.

    Raises:
        DataError: If it is one.
    """
    folder, pictures = directory / path, directory / settings.path
    if DATA_SETS[settings.kind].published or folder.resolve().parent != pictures.resolve():
        return
    if folder.is_dir() and folder.name in images.class_names:
        raise DataError(f"{path}: expected images outside of the classes, got those of one")


def read_ood_set(settings: OodSettings, directory: Path, skip_bad: bool = False) -> OodSet:
    """Out-of-distribution images from a data directory.

    Kind `images`: all images of a folder or archive, or only those in its `test/`, if any. Other
    kinds: the test part of the data set.

    Raises:
        DataError: If there are none.
    """
    if settings.kind == IMAGES:
        unlabelled = _read_images(settings.path, "test", directory, skip_bad)
        return replace(unlabelled, group=settings.group)
    data = DataSettings(kind=settings.kind, path=settings.path, split="paper")
    labelled = read_dataset(data, directory, skip_bad)
    images = [replace(image, label=OUTSIDE) for image in labelled.parts["test"]]
    return OodSet(DATA_SETS[settings.kind].title, images, labelled.skipped, settings.group)


def read_outliers(settings: OutlierSettings, directory: Path, skip_bad: bool = False) -> OodSet:
    outliers = _read_images(settings.path, "train", directory, skip_bad)
    images = evenly_spaced(outliers.images, settings.images)
    return replace(outliers, name=settings.path, images=images)


def read_unlabelled(settings: UnlabelledData, directory: Path, skip_bad: bool = False) -> OodSet:
    """The unlabelled images of a pretraining.

    Raises:
        DataError: If there are none.
    """
    if settings.kind == IMAGES:
        return _read_images(settings.path, "train", directory, skip_bad)
    data = DataSettings(kind=settings.kind, path=settings.path, split=settings.split)
    labelled = read_dataset(data, directory, skip_bad)
    images = [replace(image, label=OUTSIDE) for image in labelled.parts["train"]]
    return OodSet(f"{labelled.name}, train part without labels", images, labelled.skipped)


def pretraining_images(
    origin: Provenance, settings: DataSettings, directory: Path
) -> list[LabelledImage]:
    """The images of a data set with which a backbone was pretrained, labelled or not.

    A data set in `origin`, the provenance of the backbone, is this one if kind, name and split are
    equal. Images that cannot be decoded are left out.
    """
    if "stages" not in origin:
        return []
    recipe, here = origin["recipe"], {"path": settings.path}
    unlabelled_kind = settings.kind if DATA_SETS[settings.kind].published else IMAGES
    shown: list[LabelledImage] = []
    for data in recipe["data"]:
        if data["kind"] == settings.kind:
            known = {key: data[key] for key in data.keys() & DataSettings.model_fields.keys()}
            same = DataSettings.model_validate(known | here)
            labelled = read_dataset(same, directory, skip_bad=True)
            shown += labelled.parts["train"] if labelled.name in origin["data"] else []
    for data in recipe["unlabelled"]:
        if data["kind"] == unlabelled_kind:
            unlabelled = read_unlabelled(UnlabelledData(**data | here), directory, skip_bad=True)
            shown += unlabelled.images if unlabelled.name in origin["data"] else []
    return shown


def _read_images(path: str, part: Part, directory: Path, skip_bad: bool) -> OodSet:
    folder = directory / path
    decoded = decoded_images(folder)
    masks = mask_names(decoded.names)
    names = sorted(decoded.names - masks)
    in_part = [n for n in names if "/" in n and PART_WORDS.get(n.split("/")[0].lower()) == part]
    names = in_part or names
    skipped = {(PurePath(path) / n).as_posix(): decoded.bad[n] for n in names if n in decoded.bad}
    if not skip_bad:
        for name, reason in skipped.items():
            refuse(name, reason)
    images = [LabelledImage(n, decoded.sources[n], OUTSIDE) for n in names if n in decoded.sources]
    if not images:
        found = "".join(f"; {note}" for note in decoded.left_out.notes)
        raise DataError(f"{folder}: expected usable images, got none that can be decoded{found}")
    name = printable(folder.resolve().name)  # without its path: notes stand in reports and cards
    left_out = (*decoded.left_out.notes, *mask_notes(masks))
    notes = tuple(f"{name}: {note}" for note in left_out)
    return OodSet(name, images, skipped, notes=notes)
