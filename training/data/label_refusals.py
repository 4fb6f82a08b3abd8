"""Refusals of folders that are no labelled pictures, with the options by which they are read."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from eulerlora.images.files import EXTENSIONS
from eulerlora_contract.errors import DataError
from eulerlora_contract.image_folders import list_files
from eulerlora_contract.printable import printable
from training.data.cache import ARCHIVES, DecodedImages, decoded_images
from training.data.dataset import DataSettings, LabelTable, Suggestion, UnreadDataError
from training.data.labels import (
    ImageLabel,
    Labels,
    empty_folders,
    folder_label,
    label_tables,
    read_labels,
    states_parts,
)
from training.data.layouts import (
    UnreadTable,
    mask_classes,
    other_format,
    part_of,
    picture_folders,
    unlike_classes,
    unread_tables,
)
from training.data.tables import WINDOWS, EncodingError, Table


@contextmanager
def suggesting_options(path: Path, images: DecodedImages, settings: LabelTable) -> Iterator[None]:
    """Adds to the refusal of a folder the options by which it is read, or what else helps.

    Raises:
        UnreadDataError: In place of a DataError, with options.
    """
    try:
        yield
    except DataError as error:
        if not path.is_dir():
            raise
        message, suggestion = str(error), None
        if isinstance(error, UnreadDataError) and not error.suggestion.condition:
            suggestion = error.suggestion
        else:
            found = next(_suggestions(path, images, settings), None)
            if found is not None:
                suggestion, note = found
                message = message.partition("; ")[0] + note  # without notes on what is not read
        folders = [path, *_only_folders(path, images.names)]
        if suggestion is not None:
            folders = [suggestion.folder or path]
        formats = [(folder, known) for folder in folders if (known := other_format(folder))]
        place, known = formats[0] if formats else (path, None)
        if known is not None and suggestion is None:
            message += f"; the files are those of {known.name}{known.way}"
        if known is not None and known.recipe:
            suggestion = suggestion or Suggestion(folder=None if place == path else place)
            suggestion = replace(suggestion, recipe=known.recipe)
        if suggestion is not None:
            raise UnreadDataError(message, suggestion) from error
        message += "" if known is not None else _obstacle(path, images, settings)
        if isinstance(error, UnreadDataError):
            raise UnreadDataError(message, error.suggestion) from error
        raise DataError(message) from error


def _obstacle(path: Path, images: DecodedImages, settings: LabelTable) -> str:
    """Why a table of the pictures is not read, or that the pictures are in archives; or nothing."""
    try:
        if _readable_tables(path, settings):
            return ""
    except DataError:
        return ""
    for found in unread_tables(path, images.names, settings):
        if found.folder == path:
            try:
                read_labels(path, images, found.table)
            except DataError as error:
                return f"; {error}"
    packed = [] if images.names else sorted(
        file.name for file in path.rglob("*") if file.name.lower().endswith(ARCHIVES)
    )  # fmt: skip
    return f"; unpack {', '.join(packed[:4])}{', ...' * (len(packed) > 4)}" if packed else ""


def _only_folders(path: Path, names: Collection[str]) -> Iterator[Path]:
    """Yields the only folder of all pictures in a folder, the only one in that, and so on."""
    while len(tops := {name.partition("/")[0] for name in names}) == 1:
        (top,) = tops
        names = [name.partition("/")[2] for name in names]
        if not all(names):
            return
        path /= top
        yield path


def _suggestions(
    path: Path, images: DecodedImages, settings: LabelTable
) -> Iterator[tuple[Suggestion, str]]:
    """Yields what reads a folder, the likely first, with a note on each.

    That are columns of the table that it is read by; or else another table, the only folder in it
    or what reads that, a table in it, or its only archive.
    """
    try:
        given = _readable_tables(path, settings)
    except DataError:
        return
    folder = (
        None if given or settings.images != "." else next(_only_folders(path, images.names), None)
    )
    inner_tables = []
    for found in unread_tables(path, images.names, settings, given):
        if folder is not None and found.path.is_relative_to(folder):
            inner_tables.append(found)
        elif (suggestion := _table_suggestion(path, images, settings, found)) is not None:
            yield suggestion, found.note
    if folder is not None:
        names = [name.partition("/")[2] for name in images.names]
        listed = DecodedImages(dict.fromkeys(names, folder), {})
        with suppress(DataError):
            check_layout(read_labels(folder, listed, settings), DataSettings(kind="imagefolder"))
            yield Suggestion(folder=folder), ""
        for suggestion, note in _suggestions(folder, listed, settings):
            yield replace(suggestion, folder=suggestion.folder or folder), note
    for found in inner_tables:
        if (suggestion := _table_suggestion(path, images, settings, found)) is not None:
            yield suggestion, found.note
    if images.names:
        return
    archives = [file for file in path.iterdir() if file.name.lower().endswith(ARCHIVES)]
    if len(archives) == 1:
        inner = settings.model_copy(update={"images": archives[0].name})
        with suppress(DataError):
            of_archive = decoded_images(archives[0])
            for found in unread_tables(path, of_archive.names, inner, given):
                suggestion = _table_suggestion(path, of_archive, settings, found)
                if suggestion is not None:
                    yield suggestion, found.note
            check_layout(read_labels(path, of_archive, inner), DataSettings(kind="imagefolder"))
            yield Suggestion(inner.options(settings)), ""


def _readable_tables(path: Path, settings: LabelTable) -> Sequence[Table]:
    """As `label_tables`; a table that is not in UTF-8 is read as one of Windows."""
    try:
        return label_tables(path, settings)[0]
    except EncodingError:
        return label_tables(path, settings.model_copy(update={"encoding": WINDOWS}))[0]


def _table_suggestion(
    path: Path, images: DecodedImages, settings: LabelTable, found: UnreadTable
) -> Suggestion | None:
    """The options by which a table is read; None if it states no two classes."""
    if not found.has_labels:
        return None
    names = images.names
    if found.folder != path:
        files = list_files([found.folder], EXTENSIONS).files
        names = {file.relative_to(found.folder).as_posix() for file in files}
    listed = DecodedImages(dict.fromkeys(names, path), {})
    labels = None
    for ignores in (settings.ignore_columns, True):
        table = found.table.model_copy(update={"ignore_columns": ignores})
        with suppress(DataError):
            labels = read_labels(found.folder, listed, table)
            check_spelling(labels)
            break
    options = table.options(settings)
    if labels is None or not options:
        return None
    if "split" in table.columns and not states_parts(labels.rows):
        columns = {column: name for column, name in table.columns.items() if column != "split"}
        without = found.table.model_copy(update={"columns": columns})
        return _table_suggestion(path, images, settings, replace(found, table=without))
    units: dict[str, set[str]] = defaultdict(set)
    for row in labels.rows:
        if row.name in listed.sources:
            units[row.label].add(row.cluster or row.name)
    rare = sorted({row.label for row in labels.rows if len(units[row.label]) < _MIN_UNITS})
    if len(units.keys() - {*rare}) < 2:
        return None
    options += tuple(option for name in rare for option in ("--ignore", name))
    if any(row.name not in listed.sources for row in labels.rows if row.label not in rare):
        options += ("--skip-bad",)
    purpose = f"to leave out {', '.join(rare)} with few pictures" if rare else ""
    return Suggestion(options, purpose, folder=None if found.folder == path else found.folder)


_MIN_UNITS = 3  # of a class that a suggested command trains on: one for each part


def proposal(path: Path, settings: LabelTable) -> Suggestion:
    """How a training reads a folder, which it then names.

    Raises:
        DataError: For one that it does not read.
    """
    known, suggestion = other_format(path), Suggestion()
    if known is not None and known.recipe:
        return Suggestion(folder=path, recipe=known.recipe)
    data = DataSettings(kind="imagefolder", **settings.model_dump(exclude_defaults=True))
    try:
        images = decoded_images(path / settings.images)
        with suggesting_options(path, images, settings):
            labels = read_labels(path, images, settings)
            check_layout(labels, data)
        if labels.table is None:
            suggestion = _grouping_table(labels, images, settings) or suggestion
    except UnreadDataError as error:
        suggestion = error.suggestion
    return replace(suggestion, folder=suggestion.folder or path)


def _grouping_table(
    labels: Labels, images: DecodedImages, settings: LabelTable
) -> Suggestion | None:
    """Reads a table that states the labels of the class folders, and their groups."""
    path, of_folders = labels.folder, {(row.name, row.label) for row in labels.rows}
    for found in unread_tables(path, images.names, settings):
        if found.groups is None or not found.has_labels or found.folder != path:
            continue
        with suppress(DataError):
            stated = read_labels(path, images, found.table)
            if of_folders <= {(row.name, row.label) for row in stated.rows}:
                return _table_suggestion(path, images, settings, found)
    return None


def check_layout(labels: Labels, settings: DataSettings) -> None:
    """Refuses folders that are no classes; with stated classes, they may have any name."""
    if not labels.rows:
        expected_rows = "rows" if labels.table else "images in a folder for each class"
        raise DataError(f"{labels.path}: expected {expected_rows}, got none{_notes(labels)}")
    _check_names(labels)
    if not settings.classes and labels.table is None:
        _check_class_names(labels, settings)
        _check_likely_parts(labels)
    check_several(labels, settings)
    if not settings.classes and labels.table is None:
        _check_empty_folders(labels, settings)


def check_several(labels: Labels, settings: DataSettings) -> None:
    """Refuses a single class, and none."""
    classes = {*settings.classes} or {row.label for row in labels.rows}
    if not classes:
        raise DataError(f"{labels.path}: expected pictures of a class, got none{_notes(labels)}")
    if len(classes) < 2:
        unit = f"the label of all {len(labels.rows):,} rows"
        if labels.table is None:
            unit = f"the folder of all {len(labels.rows):,} images"
        raise DataError(
            f"{labels.path}: expected two classes or more, got only {classes.pop()!r}, {unit}"
            f"{_notes(labels)}"
        )


def _notes(labels: Labels) -> str:
    return "".join(f"; {note}" for note in labels.notes)


def _check_class_names(labels: Labels, settings: DataSettings) -> None:
    """Refuses folders whose names say that they are no classes, such as parts and patients."""
    names = {row.label for row in labels.rows}
    pictures = [row.name for row in labels.rows]
    masks = mask_classes(pictures, {row.place for row in labels.rows})
    masks = sorted(
        {folder_label(PurePosixPath(place).name) for place in masks} - {*settings.ignored}
    )
    if masks and len(names) > len(masks) + 1:
        raise UnreadDataError(
            f"{labels.path}: expected a folder for each class, got {', '.join(masks)} with "
            "pictures of the names of the others, which are likely to be their masks",
            Suggestion(tuple(option for name in masks for option in ("--ignore", name)),
                       "to leave them out"),
        )  # fmt: skip
    found = unlike_classes(names)
    without_word = unlike_classes(names, with_table=True)
    if without_word and any(unread_tables(labels.folder, pictures, LabelTable())):
        found = without_word
    known = other_format(labels.folder)
    if known is not None and known.recipe and (folders := picture_folders(names)):
        found = f"folders of pictures ({', '.join(folders)})"
    if found is not None:
        raise _not_classes(labels, found)


def _not_classes(labels: Labels, found: str) -> DataError:
    """The error for folders that are likely to be no classes, which a recipe may state."""
    message = f"{labels.path}: expected a folder for each class, got {found}"
    names = sorted({row.label for row in labels.rows})
    if len(names) > _MAX_STATED:
        return DataError(message)
    strings = [json.dumps(name, ensure_ascii=False) for name in names]
    stated = f"data.classes={{{', '.join(f'{name} = {name}' for name in strings)}}}"
    return UnreadDataError(
        message, Suggestion(("--set", stated), condition="if they are the classes")
    )


_MAX_STATED = 20  # classes on a command line


def _check_likely_parts(labels: Labels) -> None:
    """Refuses class folders that are likely to be parts, or to contain them."""
    classes = sorted({row.label for row in labels.rows})
    if any(row.part for row in labels.rows) or len(classes) < 2:
        return
    inner: dict[str, set[str]] = {name: set() for name in classes}
    for row in labels.rows:
        below = PurePosixPath(row.name).parts[PurePosixPath(row.name).parts.index(row.place) + 1 :]
        inner[row.label].update(below[:1] if len(below) > 1 else ())
    shared = inner[classes[0]]
    names, folders = ", ".join(classes), ", ".join(sorted(shared))
    if len({part for name in classes if (part := part_of(name))}) > 1:
        found = f"the pictures of {names} in no folder of a class"
    elif len(shared) > 1 and all(other == shared for other in inner.values()):
        found = f"the same folders {folders} in each of {names}"
    elif outer := [
        name for name in classes if {*map(folder_label, inner[name])} & {*classes} - {name}
    ]:
        found = f"folders of classes in {', '.join(outer)} and beside it"
    else:
        return
    raise _not_classes(labels, found)


def _check_names(labels: Labels) -> None:
    """Refuses a folder that names no class: of blanks, or not in UTF-8 as from a ZIP of Windows."""
    for row in labels.rows:
        if row.label != row.label.encode(errors="ignore").decode() or not row.label:
            folder = printable(str(labels.folder / row.place))
            raise DataError(
                f"{folder}: expected the name of a class in UTF-8, got "
                f"{printable(row.label) or 'blanks'}; rename the folder"
            )


_SPELLING = re.compile(r"[\s\u200b\ufeff]|(?<=\d)\.0+(?=\s*$)")
"""What does not tell classes apart: spaces, and the decimals of a spreadsheet."""


def check_spelling(labels: Labels) -> None:
    spellings: dict[str, ImageLabel] = {}
    for row in labels.rows:
        key = _SPELLING.sub("", row.label).casefold()
        other = spellings.setdefault(key, row)
        if other.label != row.label:
            raise DataError(
                f"{labels.path}: expected one spelling of each class, got {other.label!r} "
                f"({other.place}, {other.name}) and {row.label!r} ({row.place}, {row.name}), "
                "which differ only in case, spaces or a final .0"
            )


def _check_empty_folders(labels: Labels, settings: DataSettings) -> None:
    """Refuses a class folder without images, which would not become a class."""
    for folder in empty_folders(labels):
        if folder_label(folder.name) not in settings.ignored:
            raise UnreadDataError(
                f"{folder}: expected images of the class {folder.name}, got none",
                Suggestion(("--ignore", folder.name), "to leave the class out"),
            )
