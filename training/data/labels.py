"""Labels of a user's images by class folders or by a table."""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import get_args
from unicodedata import normalize

from eulerlora.images.files import is_image_name
from eulerlora_contract.errors import DataError
from eulerlora_contract.image_folders import hidden_name, left_out_notes
from eulerlora_contract.tables import SEPARATORS
from training.data.cache import DecodedImages
from training.data.dataset import LABELS, Column, LabelTable
from training.data.identifiers import MISSING, Identifiers, read_identifiers
from training.data.images import UNKNOWN
from training.data.layouts import (
    PART_WORDS,
    TABLE_SUFFIXES,
    default_table,
    mask_names,
    named_table,
    part_in_column,
    part_of,
    path_column,
    public_set,
    unread_tables,
)
from training.data.splits import Part
from training.data.tables import (
    LIKELY_NAMES,
    Table,
    TableLine,
    joined,
    reader_of_pictures,
)

_COLUMNS: tuple[Column, ...] = get_args(Column)
PATH, _LABEL, _GROUP, _LESION, _SPLIT = _COLUMNS
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
    tables, notes = label_tables(path, settings)
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
            if found.has_labels and found.folder == path:
                way = f"add {shlex.join(found.table.options(settings))}"
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
    present |= {folder_label(folder.name) for folder in empty_folders(labels)}
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


def label_tables(path: Path, settings: LabelTable) -> tuple[Sequence[Table], tuple[str, ...]]:
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
            _row(table, line, of_columns, name_of, columns[_SPLIT]),
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
    if any(row.part for row in rows) or not states_parts(given):
        return [*rows], []
    named = ", ".join(f"{name} is {part}" for name, part in sorted(parts.items()))
    return given, [f"parts: {named}"]


def states_parts(rows: Sequence[ImageLabel]) -> bool:
    """True if every row has one of several parts that all have every class and share no group."""
    present, classes = {row.part for row in rows}, {row.label for row in rows}
    groups = {(row.cluster, row.part) for row in rows if row.cluster is not None}
    return (
        "train" in present
        and None not in present
        and len(present) > 1
        and len({(row.part, row.label) for row in rows}) == len(present) * len(classes)
        and len(groups) == len({group for group, _ in groups})
    )


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
    table: Table,
    line: TableLine,
    cells: Mapping[Column, str],
    name_of: Callable[[str], str],
    split_column: str,
) -> ImageLabel:
    label, split = (cells.get(column, "") for column in (_LABEL, _SPLIT))
    if not cells[PATH] or label.lower() in MISSING:
        message = f"expected a {PATH} and a {_LABEL}, got an empty or missing value"
        raise table.error(line, message)
    part = part_in_column(split_column, split)
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
        return [
            ImageLabel(name, folder_label(top[0]), top[0]) for name, top in inner.items() if top
        ], []
    wrapped = _wrapped_parts([top for top in inner.values() if top and top[0] in parts])
    rows = [
        ImageLabel(name, folder_label(top[at]), "/".join(top[: at + 1]), part=parts[top[0]])
        for name, top in inner.items()
        if len(top) > 1 and top[0] in parts
        for at in [2 if top[0] in wrapped else 1]
    ]
    classes = {row.label for row in rows}
    for name, top in inner.items():
        if not top or top[0] in parts:
            continue
        if part_of(top[0]) or (len(top) > 1 and folder_label(top[1]) in classes):
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


def folder_label(folder: str) -> str:
    return normalize("NFC", folder.strip())


def without_parts(labels: Labels) -> Labels:
    return replace(labels, rows=[replace(row, part=None) for row in labels.rows])


def empty_folders(labels: Labels) -> Iterator[Path]:
    """Yields the folders beside those of the classes in which there is no image."""
    if labels.folder.is_dir() and labels.table is None:
        places = [PurePosixPath(row.place) for row in labels.rows]
        known = {folder_label(place.name) for place in places}
        known |= {
            folder_label(folder)
            for name in labels.masks
            for folder in PurePosixPath(name).parts[:-1]
        }
        for parent in sorted({place.parent for place in places}):
            for folder in sorted((labels.folder / parent).glob("*/")):
                if hidden_name([folder.name]) is None and folder_label(folder.name) not in known:
                    yield folder
