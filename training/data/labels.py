"""Labels of a user's images by class folders or by `labels.csv`, their checks and their parts."""

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import get_args
from unicodedata import normalize

from eulerlora.images.files import EXTENSIONS, is_image_name
from eulerlora_contract.errors import DataError
from eulerlora_contract.image_folders import hidden_name, left_out_notes, list_files
from eulerlora_contract.printable import printable
from training.data.cache import ARCHIVES, DecodedImages, decoded_images
from training.data.dataset import (
    LABELS,
    Column,
    DataSettings,
    LabelTable,
    Suggestion,
    UnreadDataError,
)
from training.data.identifiers import MISSING, Identifiers, read_identifiers
from training.data.images import UNKNOWN
from training.data.layouts import (
    PART_WORDS,
    TABLE_SUFFIXES,
    UnreadTable,
    default_table,
    mask_classes,
    mask_names,
    named_table,
    other_format,
    part_of,
    path_column,
    public_set,
    unlike_classes,
    unread_tables,
)
from training.data.splits import Part, Split, SplitParts, parts_of
from training.data.tables import (
    LIKELY_NAMES,
    SEPARATORS,
    WINDOWS,
    EncodingError,
    Table,
    TableLine,
    joined,
    reader_of_pictures,
)

_COLUMNS: tuple[Column, ...] = get_args(Column)
PATH, _LABEL, _GROUP, _LESION, _SPLIT = _COLUMNS
_SPELLING = re.compile(r"[\s\u200b\ufeff]|(?<=\d)\.0+(?=\s*$)")
"""What does not tell classes apart: spaces, and the decimals of a spreadsheet."""
_INDEX_NAME = re.compile(r"(unnamed: ?[\d.]+(_level_\d+)?)?")
"""Names of the column that pandas writes for the index of a table, in lower case."""


@dataclass(frozen=True)
class ImageLabel:
    """The label of an image.

    Attributes:
        name: Relative to the folder.
        place: What states the label, such as "labels.csv line 3".
        cluster: The group, such as a patient, if known; else the lesion.
        lesion: With its group, which may number its lesions from 1; if known.
        part: If stated.
        attributes: By column of the table.
    """

    name: str
    label: str
    place: str
    cluster: str | None = None
    lesion: str | None = None
    part: Part | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Labels:
    """The labels of the images in a folder or archive.

    Attributes:
        table: The file in the folder that states them; None if folders do.
        notes: Remarks for the user.
        ignored: Number of rows that are left out because of their label.
        masks: Names of pictures that are left out as masks of others.
    """

    folder: Path
    table: Path | None
    rows: Sequence[ImageLabel]
    notes: tuple[str, ...] = ()
    ignored: int = 0
    masks: Collection[str] = ()

    @property
    def path(self) -> Path:
        return self.table or self.folder


def read_labels(path: Path, images: DecodedImages, settings: LabelTable) -> Labels:
    """The labels of the images in a folder or archive, by its table or by its folders.

    Images without a label are left out, with a note, but not those of a part.

    Raises:
        DataError: With file and line; for an archive with a table, which is read in a folder only.
    """
    if settings.tables and not path.is_dir():
        raise DataError(
            f"{path}: expected the folder of the table, got an archive; name it with --images"
        )
    pictures, names = path / settings.images, images.names
    tables, notes = _tables(path, settings)
    if LABELS in images.left_out.others and not tables:
        raise DataError(
            f"{pictures}: expected a table {LABELS} in a folder, got one in an archive; unpack it"
        )
    read = Counter(one.path.suffix.lower() for one in tables for _ in {x.folder for x in one.lines})
    notes += tuple(left_out_notes(images.left_out.others - read, images.left_out.hidden))
    if tables:
        labels = Labels(pictures, tables[0].path, (), notes)
        labels = _read_lines(labels, tables, names, settings)
        if labels.rows and not names:
            row = labels.rows[0]
            raise DataError(f"{row.name}: no such file ({row.place}), and no picture in {pictures}")
    else:
        masks = mask_names(names)
        names -= masks
        rows, folder_notes = _folder_labels(pictures, names)
        known = public_set(images.names)
        notes += () if known is None else (f"the files are those of {known.name}: {known.note}",)
        notes += (*mask_notes(masks), *_leakage_notes(path, names, settings))
        labels = Labels(pictures, None, rows, (*notes, *folder_notes), masks=masks)
    unlabelled = sorted(names - {row.name for row in labels.rows})
    if unlabelled:
        where = f"not in {tables[0].path.name}" if tables else "outside of the class folders"
        note = f"{len(unlabelled):,} images are {where} and are left out, such as {unlabelled[0]}"
        labels = replace(labels, notes=(*labels.notes, note))
    return labels


def mask_notes(masks: Collection[str]) -> tuple[str, ...]:
    if not masks:
        return ()
    return (f"{len(masks):,} masks of other pictures are left out, such as {min(masks)}",)


def _leakage_notes(path: Path, names: Collection[str], settings: LabelTable) -> Iterator[str]:
    """Yields a warning for each unread table that has what the pictures of a folder share."""
    for found in unread_tables(path, names, settings):
        if found.groups is not None:
            way = "name it with --group-column in a table for --table"
            if found.table is not None and found.folder == path:
                way = f"add {shlex.join(_options(found.table, settings))}"
            yield (
                f"{found.path} is not read, but its column {found.groups} is likely to say which "
                "pictures belong together: parts may share a patient or lesion, which makes the "
                f"figures too good; {way}"
            )


def with_classes(labels: Labels, settings: LabelTable) -> Labels:
    """The labels with classes for local ones, and without those that are ignored.

    Raises:
        DataError: For one that no image has.
    """
    present = {row.label for row in labels.rows}
    present |= {_label(folder.name) for folder in _empty_folders(labels)}
    for label in (*settings.renamed, *settings.ignored):
        if label not in present:
            raise DataError(
                f"{labels.path}: expected pictures labelled {label}, got "
                f"{', '.join(sorted(present)) or 'none'}"
            )
    rows = [
        replace(row, label=settings.renamed.get(row.label, row.label))
        for row in labels.rows
        if row.label not in settings.ignored
    ]
    ignored = len(labels.rows) - len(rows)
    listed = ", ".join(settings.ignored)
    notes = (f"{ignored:,} images with the label {listed} are ignored",) if ignored else ()
    return replace(labels, rows=rows, ignored=ignored, notes=(*labels.notes, *notes))


def _tables(path: Path, settings: LabelTable) -> tuple[Sequence[Table], tuple[str, ...]]:
    """The tables of labels in a folder, and a note on other tables or on the name."""
    if settings.tables:
        tables = []
        for name in settings.tables:
            table = named_table(path, name, settings.encoding)
            if table is None:
                raise DataError(f"{path / name}: expected a table of labels, got no such file")
            tables.append(table)
        return tables, ()
    table = default_table(path, settings)
    if table is not None:
        name = table.path.name
        is_spelling = name != LABELS and name.lower() == LABELS
        return [table], (f"{name} is read as {LABELS}",) if is_spelling else ()
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else []
    others = [file.name for file in files if file.suffix.lower() in TABLE_SUFFIXES]
    note = f"{', '.join(others)} is not read; --table names a table of labels"
    return (), (note,) if others else ()


def _read_lines(
    labels: Labels, tables: Sequence[Table], names: Collection[str], settings: LabelTable
) -> Labels:
    columns = {name: settings.columns.get(name, name).strip().lower() for name in _COLUMNS}
    columns[PATH] = path_column(tables[0], settings.columns)
    stated = settings.one_hot
    if not stated and _LABEL not in settings.columns and _LABEL not in tables[0].header:
        stated = tables[0].one_hot
    table = joined(tables, columns[PATH])
    path, header, lines = table.path, table.header, table.lines
    index = {at for at, name in enumerate(header) if _INDEX_NAME.fullmatch(name)
             and all(not line.cells[at] or line.cells[at].isdigit() for line in lines)}  # fmt: skip
    notes = [f"the column without a name in {path.name} is ignored"] if index else []
    used = [name for at, name in enumerate(header) if at not in index]
    attributes = {name: name.strip().lower() for name in settings.attributes}
    one_hot = {name: name.strip().lower() for name in stated}
    if one_hot:
        del columns[_LABEL]
    if one_hot and not settings.one_hot:
        notes.append(f"the classes are the columns {', '.join(one_hot)} of {path.name}")
    further = [*attributes.values(), *one_hot.values()]
    notes += _check_columns(path, used, columns, further, settings.ignore_columns)
    at = {column: header.index(name) for column, name in columns.items() if name in header}
    name_of = reader_of_pictures(labels.folder, names, mask_names(names), settings.suffix)
    of_lines = [
        {**{column: line.cells[at[column]] for column in at}, PATH: line.path(at[PATH])}
        for line in lines
    ]
    if one_hot:
        class_at = {name: header.index(column) for name, column in one_hot.items()}
        of_lines = [
            {**cells, _LABEL: _one_hot_label(table, line, class_at)}
            for cells, line in zip(of_lines, lines, strict=True)
        ]
    known, identifier_notes = _with_identifiers(of_lines)
    rows = [
        replace(
            _row(table, line, of_columns, name_of),
            attributes={
                name: UNKNOWN if (cell := line.cells[header.index(column)]).lower() in MISSING
                else cell
                for name, column in attributes.items()
            },
        )
        for line, of_columns in zip(lines, known, strict=True)
    ]  # fmt: skip
    notes += identifier_notes
    if table.separator != ",":
        notes.append(f"{path.name} is read as separated by {SEPARATORS[table.separator]}")
    given = [PurePosixPath(row[PATH].replace("\\", "/")) for row in of_lines]
    if any("\\" in row[PATH] for row in of_lines) and any(len(cell.parts) > 1 for cell in given):
        notes.append(f"backslashes in the paths of {path.name} are read as /")
    ends = [
        (cell, row.name)
        for cell, row in zip(given, rows, strict=True)
        if row.name in names
        and (len(PurePosixPath(row.name).parts) > len(cell.parts) or not is_image_name(cell.name))
    ]
    if ends:
        end, whole = ends[0]
        notes.append(f"{len(ends):,} paths are ends of those of pictures, such as {end} of {whole}")
    _check_rows(path, rows)
    rows, part_notes = _with_parts_of_folders(rows)
    return replace(labels, rows=rows, notes=(*labels.notes, *notes, *part_notes))


def _with_parts_of_folders(rows: Sequence[ImageLabel]) -> tuple[list[ImageLabel], list[str]]:
    """The rows with the parts that their first folders name, and a note.

    Rows stay as they are if they state parts, or if the folders are no whole set of parts: a folder
    is none, a part lacks a class, or a group is in several.
    """
    folders = {row.name: PurePosixPath(row.name).parts[0] for row in rows if "/" in row.name}
    parts = {folder: part_of(folder) for folder in {*folders.values()}}
    given = [replace(row, part=parts.get(folders.get(row.name, ""))) for row in rows]
    present, classes = {row.part for row in given}, {row.label for row in given}
    groups = {(row.cluster, row.part) for row in given if row.cluster is not None}
    whole = (
        "train" in present
        and None not in present
        and len(present) > 1
        and len({(row.part, row.label) for row in given}) == len(present) * len(classes)
        and len(groups) == len({group for group, _ in groups})
    )
    if not whole or any(row.part for row in rows):
        return [*rows], []
    named = ", ".join(f"{name} is {part}" for name, part in sorted(parts.items()))
    return given, [f"parts: {named}"]


def _one_hot_label(table: Table, line: TableLine, columns: Mapping[str, int]) -> str:
    """The class whose column, by class, has a 1."""
    with suppress(ValueError):
        values = {name: float(line.cells[at]) for name, at in columns.items()}
        if sorted(values.values()) == [*[0.0] * (len(values) - 1), 1.0]:
            return max(values, key=values.__getitem__)
    got = ", ".join(f"{name} {line.cells[at]}" for name, at in columns.items())
    raise table.error(line, f"expected a 1 for one class and 0 for the others, got {got}")


def _check_columns(
    path: Path,
    header: Sequence[str],
    columns: Mapping[Column, str],
    attributes: Sequence[str],
    ignored: bool,
) -> Iterator[str]:
    """Yields a note on ignored columns."""
    names = [*columns.values(), *attributes]
    unknown = [_with_likely_name(name, header, columns) for name in header if name not in names]
    place = f"{path} line 1"
    for name in attributes:
        if name not in header or name in columns.values():
            raise DataError(f"{place}: expected a further column {name}, got {', '.join(header)}")
    required = [name for key, name in columns.items() if key in (PATH, _LABEL) or name != key]
    optional = [name for name in columns.values() if name not in required]
    repeated = any(header.count(name) > 1 for name in (*names, *([] if ignored else header)))
    missing = {*required} - {*header}
    if repeated or missing:
        hint = "".join(
            f", or use --{key}-column {key} if the table has no {key}"
            for key in (_GROUP, _LESION, _SPLIT)
            if columns[key] in missing
        )
        raise DataError(
            f"{place}: expected the columns {', '.join(required)}"
            f"{' and optionally ' if optional else ''}{' and '.join(optional)}, each once, "
            f"separated by {', '.join(SEPARATORS.values())}; got "
            f"{', '.join(_with_likely_name(name, header, columns) for name in header) or 'none'}; "
            f"rename them or name yours, as with --path-column{hint}"
        )
    if unknown and not ignored:
        raise DataError(
            f"{place}: expected no columns but {', '.join(names)}, got {', '.join(unknown)}; "
            "rename or delete them, name yours, as with --group-column, or use --ignore-columns"
        )
    if unknown:
        yield f"ignored columns of {path.name}: {', '.join(unknown)}"


def _with_likely_name(name: str, header: Collection[str], columns: Mapping[Column, str]) -> str:
    """The name of a column, with the option by which it is the missing column that it may be."""
    for known, others in LIKELY_NAMES.items():
        column = columns.get(known, known)
        likely = get_close_matches(name, (column, *others), n=1, cutoff=0.8)
        if column not in header and likely:
            return f"{name} (did you mean --{known}-column {name}?)"
    return name or "one without a name"


def _with_identifiers(
    rows: Sequence[Mapping[Column, str]],
) -> tuple[list[Mapping[Column, str]], list[str]]:
    """The cells with one spelling of each group and lesion, empty if missing; and notes.

    A number that lesions of several groups have is missing where the group is.
    """
    read: dict[Column, Identifiers] = {
        column: read_identifiers(
            column, [row[column] for row in rows], column == _LESION and _GROUP in rows[0]
        )
        for column in (_GROUP, _LESION)
        if rows and column in rows[0]
    }
    known: list[Mapping[Column, str]] = [
        {**row, **{column: found.by_cell[row[column]] or "" for column, found in read.items()}}
        for row in rows
    ]
    groups_of = defaultdict(set)
    for row in known:
        if row.get(_GROUP):
            groups_of[row.get(_LESION)].add(row[_GROUP])
    if any(lesion and len(groups) > 1 for lesion, groups in groups_of.items()):
        known = [
            row if row[_GROUP] or row[_LESION] not in groups_of else {**row, _LESION: ""}
            for row in known
        ]
    return known, [note for found in read.values() for note in found.notes]


def _row(
    table: Table, line: TableLine, cells: Mapping[Column, str], name_of: Callable[[str], str]
) -> ImageLabel:
    label, split = (cells.get(column, "") for column in (_LABEL, _SPLIT))
    if not cells[PATH] or label.lower() in MISSING:
        message = f"expected a {PATH} and a {_LABEL}, got an empty or missing value"
        raise table.error(line, message)
    part = part_of(split)
    if part is None and split.lower() not in MISSING:
        raise table.error(line, f"expected a {_SPLIT} of train, val or test, got {split!r}")
    group, lesion = (cells.get(column) or None for column in (_GROUP, _LESION))
    try:
        name = name_of(cells[PATH])
    except DataError as error:
        raise table.error(line, str(error)) from error
    return ImageLabel(
        name=name,
        label=normalize("NFC", label),
        place=line.place,
        cluster=group or lesion,
        lesion=lesion if group is None or lesion is None else f"{group}/{lesion}",
        part=part,
    )


def _check_rows(path: Path, rows: Sequence[ImageLabel]) -> None:
    first: dict[str, ImageLabel] = {}
    for row in rows:
        earlier = first.setdefault(row.name, row)
        if earlier is not row:
            raise DataError(
                f"{path}: expected one row for each picture, got two for {row.name}: "
                f"{earlier.place} ({earlier.label}) and {row.place} ({row.label})"
            )
    without = next((row for row in rows if row.part is None), None)
    if without is not None and any(row.part is not None for row in rows):
        raise DataError(
            f"{path}: expected a {_SPLIT} in every row or in none, got an empty one in "
            f"{without.place} ({without.name})"
        )


def _folder_labels(path: Path, names: Collection[str]) -> tuple[list[ImageLabel], list[str]]:
    """The labels of images, given by relative name, and a note on the names of parts.

    Layouts: `train/CLASS/`, `val/CLASS/` and `test/CLASS/`, with any names that `part_of` knows and
    with other folders ignored, or `CLASS/`. A part for training alone has a plain name such as
    `Train`. A part may have one folder for all its classes, such as `seg_train/seg_train/CLASS/`. A
    class folder may have sub-folders. Images of no class are left out. The outer folder of an
    archive, if all images share one, is no class.

    Raises:
        DataError: A folder beside the parts is likely to be one.
    """
    folders = {name: PurePosixPath(name).parts[:-1] for name in sorted(names)}
    top_of_all = {parts[:1] for parts in folders.values()}
    has_outer = len(top_of_all) == 1 and all(len(parts) > 1 for parts in folders.values())
    outer = int(has_outer and not path.is_dir())
    inner = {name: parts[outer:] for name, parts in folders.items()}
    parts = {top[0]: part for top in inner.values() if len(top) > 1 and (part := part_of(top[0]))}
    several, top_folders = len({*parts.values()}) > 1, {top[0] for top in inner.values() if top}
    train = parts.keys() if "train" in parts.values() else set()
    if not several and not any(
        top_folders == {name} or name.lower() in PART_WORDS for name in train
    ):
        return [ImageLabel(name, _label(top[0]), top[0]) for name, top in inner.items() if top], []
    wrapped = _wrapped_parts([top for top in inner.values() if top and top[0] in parts])
    rows = [
        ImageLabel(name, _label(top[at]), "/".join(top[: at + 1]), part=parts[top[0]])
        for name, top in inner.items()
        if len(top) > 1 and top[0] in parts
        for at in [2 if top[0] in wrapped else 1]
    ]
    classes = {row.label for row in rows}
    for name, top in inner.items():
        if not top or top[0] in parts:
            continue
        if part_of(top[0]) or (len(top) > 1 and _label(top[1]) in classes):
            raise DataError(
                f"{path / top[0]}: expected parts named such as train, val and test with a folder "
                f"for each class, got {', '.join(sorted(parts))}, and this one, which would be "
                f"left out ({name})"
            )
    usual = all(name in ("train", "val", "test") for name in parts)
    named = ", ".join(f"{name} is {part}" for name, part in sorted(parts.items()))
    return rows, [] if usual else [f"parts: {named}"]


def _wrapped_parts(folders: Sequence[tuple[str, ...]]) -> set[str]:
    """The parts whose only folder is none of a class of another part, but has folders itself."""
    inner: dict[str, set[str]] = defaultdict(set)
    for part, *below in folders:
        inner[part].update(below[:1])
    deep = {part for part in inner if all(len(top) > 2 for top in folders if top[0] == part)}
    lone = {part for part in deep if len(inner[part]) == 1}
    elsewhere = set().union(*(names for part, names in inner.items() if part not in lone))
    return {part for part in lone if not inner[part] & elsewhere}


def _label(folder: str) -> str:
    return normalize("NFC", folder.strip())


def _check_layout(labels: Labels, settings: DataSettings) -> None:
    """Refuses folders that are no classes; with stated classes, they may have any name."""
    if not labels.rows:
        expected_rows = "rows" if labels.table else "images in a folder for each class"
        raise DataError(f"{labels.path}: expected {expected_rows}, got none{_notes(labels)}")
    _check_names(labels)
    if not settings.classes and labels.table is None:
        _check_class_names(labels, settings)
        _check_likely_parts(labels)
    _check_several(labels, settings)
    if not settings.classes and labels.table is None:
        _check_empty_folders(labels, settings)


def _check_class_names(labels: Labels, settings: DataSettings) -> None:
    """Refuses folders whose names say that they are no classes, such as parts and patients."""
    names = {row.label for row in labels.rows}
    pictures = [row.name for row in labels.rows]
    masks = mask_classes(pictures, {row.place for row in labels.rows})
    masks = sorted({_label(PurePosixPath(place).name) for place in masks} - {*settings.ignored})
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
        place = path if suggestion is None or suggestion.folder is None else suggestion.folder
        known = other_format(place)
        if known is not None and suggestion is None:
            message += f"; the files are those of {known.name}{known.way}"
        if known is not None and known.recipe is not None:
            suggestion = replace(suggestion or Suggestion(), recipe=known.recipe)
        if suggestion is None:
            if known is None:
                raise
            raise DataError(message) from error
        raise UnreadDataError(message, suggestion) from error


def _suggestions(
    path: Path, images: DecodedImages, settings: LabelTable
) -> Iterator[tuple[Suggestion, str]]:
    """Yields what reads a folder, the likely first, with a note on each.

    That are columns of the table that it is read by; or else another table, the folder of the
    classes in it, or its only archive.
    """
    try:
        given = _readable_tables(path, settings)
    except DataError:
        return
    for found in unread_tables(path, images.names, settings, given):
        if (suggestion := _table_suggestion(path, images, settings, found)) is not None:
            yield suggestion, found.note
    folder = None if given else _folder_of_classes(path, images, settings)
    if folder is not None:
        yield Suggestion(folder=folder), ""
    archives = [file for file in path.iterdir() if file.name.lower().endswith(ARCHIVES)]
    if not images.names and len(archives) == 1:
        inner = settings.model_copy(update={"images": archives[0].name})
        with suppress(DataError):
            of_archive = decoded_images(archives[0])
            for found in unread_tables(path, of_archive.names, inner, given):
                suggestion = _table_suggestion(path, of_archive, settings, found)
                if suggestion is not None:
                    yield suggestion, found.note
            _check_layout(read_labels(path, of_archive, inner), DataSettings(kind="imagefolder"))
            yield Suggestion(_options(inner, settings)), ""


def _readable_tables(path: Path, settings: LabelTable) -> Sequence[Table]:
    """As `_tables`; a table that is not in UTF-8 is read as one of Windows."""
    try:
        return _tables(path, settings)[0]
    except EncodingError:
        return _tables(path, settings.model_copy(update={"encoding": WINDOWS}))[0]


def proposal(path: Path, settings: LabelTable) -> Suggestion:
    """How a training reads a folder, which it then names.

    Raises:
        DataError: For one that it does not read.
    """
    known, suggestion = other_format(path), Suggestion()
    if known is not None and known.recipe is not None:
        return Suggestion(folder=path, recipe=known.recipe)
    data = DataSettings(kind="imagefolder", **settings.model_dump(exclude_defaults=True))
    try:
        split_labels(data, path, decoded_images(path / settings.images))
    except UnreadDataError as error:
        suggestion = error.suggestion
    return replace(suggestion, folder=suggestion.folder or path)


def _folder_of_classes(path: Path, images: DecodedImages, settings: LabelTable) -> Path | None:
    """The only folder of a folder, if it is read as it is."""
    tops = {name.split("/")[0] for name in images.names if "/" in name}
    if len(tops) != 1:
        return None
    (top,) = tops
    listed = DecodedImages({name.removeprefix(f"{top}/"): path for name in images.names}, {})
    with suppress(DataError):
        labels = read_labels(path / top, listed, settings)
        _check_layout(labels, DataSettings(kind="imagefolder"))
        return path / top
    return None


def _table_suggestion(
    path: Path, images: DecodedImages, settings: LabelTable, found: UnreadTable
) -> Suggestion | None:
    """The options by which a table is read; None if it states no two classes."""
    if found.table is None:
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
            _check_spelling(labels)
            break
    options = _options(table, settings)
    if labels is None or not options:
        return None
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


def _options(table: LabelTable, given: LabelTable) -> tuple[str, ...]:
    """The options that make a table of the given one."""
    options = []
    for option, values, present in (
        ("--images", [table.images], [given.images]),
        ("--table", table.tables, given.tables),
        ("--encoding", [table.encoding or ""], [given.encoding or ""]),
        ("--suffix", [table.suffix], [given.suffix]),
    ):
        if values != present:
            options += [word for value in values for word in (option, value)]
    for column, name in table.columns.items():
        if given.columns.get(column) != name:
            options += [f"--{column}-column", name]
    if table.ignore_columns and not given.ignore_columns:
        options.append("--ignore-columns")
    return tuple(options)


_MIN_UNITS = 3  # of a class that a suggested command trains on: one for each part


def _check_several(labels: Labels, settings: DataSettings) -> None:
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


def _checked_classes(labels: Labels, expected: Collection[str]) -> list[str]:
    """The sorted classes of the labels, after all checks that need no image.

    Without `expected` classes, there are at least two of any name.
    """
    _check_spelling(labels)
    names = expected or {row.label for row in labels.rows}
    classes = sorted({normalize("NFC", name) for name in names})
    _check_known(labels, classes)
    _check_parts(labels, classes)
    _check_groups(labels)
    return classes


def _notes(labels: Labels) -> str:
    return "".join(f"; {note}" for note in labels.notes)


def without_parts(labels: Labels) -> Labels:
    return replace(labels, rows=[replace(row, part=None) for row in labels.rows])


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
    elif outer := [name for name in classes if {*map(_label, inner[name])} & {*classes} - {name}]:
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


def _check_spelling(labels: Labels) -> None:
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
    for folder in _empty_folders(labels):
        if _label(folder.name) not in settings.ignored:
            raise UnreadDataError(
                f"{folder}: expected images of the class {folder.name}, got none",
                Suggestion(("--ignore", folder.name), "to leave the class out"),
            )


def _empty_folders(labels: Labels) -> Iterator[Path]:
    """Yields the folders beside those of the classes in which there is no image."""
    if labels.folder.is_dir() and labels.table is None:
        places = [PurePosixPath(row.place) for row in labels.rows]
        known = {_label(place.name) for place in places}
        known |= {
            _label(folder) for name in labels.masks for folder in PurePosixPath(name).parts[:-1]
        }
        for parent in sorted({place.parent for place in places}):
            for folder in sorted((labels.folder / parent).glob("*/")):
                if hidden_name([folder.name]) is None and _label(folder.name) not in known:
                    yield folder


def _check_known(labels: Labels, classes: Sequence[str]) -> None:
    for row in labels.rows:
        if row.label not in classes:
            place = row.place if labels.table else str(labels.folder / row.place)
            raise DataError(
                f"{place}: expected one of the classes {', '.join(classes)}, got {row.label} "
                f"({row.name})"
            )


def _check_parts(labels: Labels, classes: Sequence[str]) -> None:
    present = defaultdict(set)
    for row in labels.rows:
        present[row.part].add(row.label)
    if not present.keys() & {None, "train"}:
        raise DataError(f"{labels.path}: expected a part train, got {', '.join(map(str, present))}")
    order = (None, "train", "validation", "test")
    for part, names in sorted(present.items(), key=lambda item: order.index(item[0])):
        for name in classes:
            if name in names:
                continue
            if labels.table:
                where = f"{labels.path}: expected pictures of class {name}"
                raise DataError(where + (f" with the split {part}, got none" if part else ""))
            (folder, *_) = next(row.place for row in labels.rows if row.part == part).split("/")
            path = labels.folder / (folder if part else ".") / name
            raise DataError(f"{path}: expected a folder with images of this class")


def _check_groups(labels: Labels) -> None:
    first: dict[str, ImageLabel] = {}
    for row in labels.rows:
        if row.cluster is None:
            continue
        other = first.setdefault(row.cluster, row)
        if other.part != row.part:
            raise DataError(
                f"{labels.path}: expected each group in one part, got group {row.cluster} in "
                f"{other.part} ({other.place}, {other.name}, {other.label}) and in {row.part} "
                f"({row.place}, {row.name}, {row.label})"
            )


_PARTS_OF_TRAINING: Mapping[Split, Sequence[str]] = {
    "paper": ("train",),
    "lesion": ("train", "calibration"),
    "lesion-validation": ("train", "calibration", "validation"),
    "lesion-best-epoch": ("train", "calibration", "validation"),
}
"""The parts that a split makes of the training images, if the data set has a test part."""


def _with_test_part(labels: Labels) -> Labels:
    """The labels with a stated test part, or without any part.

    A stated validation part is the test part if none is stated.
    """
    stated = {row.part for row in labels.rows}
    if stated == {None} or "test" in stated:
        return labels
    if stated == {"train"}:
        note = "all images are in train; a fifth of them becomes the test part"
        rows = without_parts(labels).rows
    else:
        note = "val is the test part, because no test part is given"
        rows = [
            replace(row, part="test" if row.part == "validation" else row.part)
            for row in labels.rows
        ]
    return replace(labels, rows=rows, notes=(*labels.notes, note))


@dataclass(frozen=True)
class _SplitLabels:
    labels: Labels
    classes: Sequence[str]
    parts: SplitParts[ImageLabel]


def split_labels(settings: DataSettings, path: Path, images: DecodedImages) -> _SplitLabels:
    """The labels of a folder or archive of images, checked and split.

    Copies of a class are one group.

    Raises:
        DataError: With class and file.
    """
    with suggesting_options(path, images, settings):
        labels = read_labels(path, images, settings)
        _check_layout(labels, settings)
    labels = with_classes(labels, settings)
    _check_several(labels, settings)
    classes = _checked_classes(labels, settings.classes.keys())
    labels = with_grouped_copies(_with_test_part(labels), images.digests)
    by_part: dict[str, list[ImageLabel]] = {}
    for row in sorted(labels.rows, key=lambda row: row.name):
        by_part.setdefault(row.part or "all", []).append(row)
    parts = _PARTS_OF_TRAINING[settings.split]
    if "validation" in by_part:
        given = {"calibration"} if settings.split == "lesion" else {"validation"}
        parts = [part for part in parts if part not in given]
    if "all" in by_part:
        parts = [*parts, "test"]
    _check_sizes(labels, classes, parts)
    return _SplitLabels(labels, classes, parts_of(by_part, settings.split))


def with_grouped_copies(
    labels: Labels, digests: Mapping[str, int], class_of: Callable[[str], object] = str
) -> Labels:
    """Puts copies of one class in one group and one lesion, with a note.

    Copies have equal pixels, also turned or mirrored. A group or lesion of such an image is united
    with those of its copies; without any group, it has the name of one of them. Images in two
    stated parts are not grouped, because a group is never in two parts. `digests` are those of all
    orientations, by name; `class_of` gives the class of a label, by default the label itself.
    """
    copies: dict[tuple[object, ...], list[ImageLabel]] = defaultdict(list)
    for row in sorted(labels.rows, key=lambda row: row.name):
        if row.name in digests:
            copies[digests[row.name], class_of(row.label), row.part].append(row)
    repeated = [rows for rows in copies.values() if len(rows) > 1]
    if not repeated:
        return labels
    groups = _united([[row.cluster or row.name for row in rows] for rows in repeated])
    lesions = _united([[row.lesion or row.name for row in rows] for rows in repeated])
    by_lesion = any(row.lesion for row in labels.rows)
    rows = [
        replace(
            row,
            cluster=groups.get(row.cluster or row.name, row.cluster),
            lesion=lesions.get(row.lesion or row.name, row.lesion) if by_lesion else None,
        )
        for row in labels.rows
    ]
    count = sum(len(rows) - 1 for rows in repeated)
    note = (
        f"{count:,} copies (equal pixels, also turned or mirrored) are in the group of the picture "
        "that they repeat"
    )
    return replace(labels, rows=rows, notes=(*labels.notes, note))


def _united(sets: Iterable[Sequence[str]]) -> dict[str, str]:
    """For every name, that of all names that are connected to it by sets: of the first one."""
    names: dict[str, str] = {}  # by name: one that it is united with, or itself

    def united(name: str) -> str:
        while names.setdefault(name, name) != name:
            name = names[name]
        return name

    for first, *others in sets:
        kept = united(first)
        for name in others:
            names[united(name)] = kept
    return {name: united(name) for name in [*names]}


def _check_sizes(labels: Labels, classes: Sequence[str], parts: Sequence[str]) -> None:
    rows = [row for row in labels.rows if row.part in (None, "train")]
    units: dict[str, set[str]] = {name: set() for name in classes}
    for row in rows:
        units[row.label].add(row.name if row.cluster is None else f"group {row.cluster}")
    unit = "groups" if any(row.cluster is not None for row in rows) else "images"
    for name in classes:
        if len(units[name]) < len(parts):
            examples = ", ".join(sorted(units[name])[:3])
            raise DataError(
                f"{labels.path}: expected at least {len(parts)} {unit} of class {name}, one for "
                f"each of {', '.join(parts)}, got {len(units[name])} ({examples}); "
                f"{_advice(labels)}"
            )


def check_every_class(
    split: _SplitLabels, counts: Mapping[str, Mapping[int, int]], faults: Sequence[str]
) -> None:
    """Refuses a class without usable images in a part.

    `counts` has the number of usable images by class index, by part; `faults` are those of the
    others.

    Raises:
        DataError: With class, part and the first fault.
    """
    for part, by_class in counts.items():
        for index, name in enumerate(split.classes):
            if not by_class.get(index):
                unusable = f"{len(faults):,} are unusable, such as {faults[0]}; " if faults else ""
                raise DataError(
                    f"{split.labels.path}: expected usable {part} images of class {name}, got "
                    f"none; {unusable}{_advice(split.labels)}"
                )


def _advice(labels: Labels) -> str:
    if labels.table:
        return "add pictures of it, leave the class out, or state the parts in a column split"
    return "add pictures of it or leave the class out"
