"""Tables of labels: files of CSV or JSON lines, and the pictures that their cells name."""

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote

from eulerlora_contract.errors import DataError
from eulerlora_contract.tables import encoding_of, separator_of
from training.data.dataset import Column

LIKELY_NAMES: Mapping[Column, Sequence[str]] = {
    "path": (
        "file", "filename", "file_name", "image", "image_id", "img_id", "image_name", "name",
        "picture",
    ),
    "label": (
        "class", "diagnosis", "dx", "diagnostic", "target", "category", "class_name", "classname",
        "pathology", "benign_malignant", "condition", "species", "choice",
    ),
    "group": ("patient", "patient_id", "subject", "subject_id", "case", "case_id", "person"),
    "lesion": ("lesion_id", "lesion_number", "mole"),
    "split": ("part", "partition", "set", "subset", "fold", "is_valid", "is_test"),
}  # fmt: skip
"""Names that other tables have for the columns."""


_JSON_LINES = ".jsonl"
WINDOWS = "cp1252"
"""The encoding of text that programs of Windows write without a byte order mark."""


class EncodingError(DataError):
    """A table is in another encoding than the expected one."""


@dataclass(frozen=True)
class TableLine:
    """A row of a table.

    Attributes:
        place: The file, relative to the folder of the table, and the line.
        cells: For each column, without surrounding spaces.
        folder: That paths are relative to, relative to the folder of the table.
    """

    place: str
    cells: Sequence[str]
    folder: str = ""

    def path(self, column: int) -> str:
        """The cell of a path, relative to the folder of the table or absolute."""
        cell = self.cells[column]
        return f"{self.folder}/{cell}" if self.folder and not cell.startswith("/") else cell


@dataclass(frozen=True)
class Table:
    """A table of one file, or of several with the same columns.

    Attributes:
        path: Of the file; of several, which are in folders of one folder, the common name in that.
        names: Of the columns.
        encoding: With which it was read, if not by a byte order mark or as UTF-8.
    """

    path: Path
    names: Sequence[str]
    lines: Sequence[TableLine]
    separator: str = ","
    encoding: str | None = None

    @property
    def header(self) -> list[str]:
        """The names of the columns in lower case."""
        return [name.lower() for name in self.names]

    def column(self, name: str) -> list[str]:
        at = self.header.index(name)
        return [line.cells[at] for line in self.lines]

    def error(self, line: TableLine, message: str) -> DataError:
        return DataError(f"{self.path.parent / line.place}: {message}")

    def joined(self, other: "Table", key: str) -> "Table":
        """This table with the further columns of another one, by the cells of the column `key`.

        Cells are empty in a row that the other table has not.
        """
        added = [at for at, name in enumerate(other.header) if name not in self.header]
        at, of_other = self.header.index(key), other.header.index(key)
        by_path = {line.path(of_other): line.cells for line in other.lines}
        none = [""] * len(other.names)
        lines = []
        for line in self.lines:
            cells = by_path.get(line.path(at), none)
            lines.append(replace(line, cells=[*line.cells, *(cells[index] for index in added)]))
        names = [*self.names, *(other.names[index] for index in added)]
        return replace(self, names=names, lines=lines)

    @property
    def one_hot(self) -> tuple[str, ...]:
        """The columns of numbers of which one is 1 in every row, and the others 0; or none."""
        numbers = {
            at: [float(line.cells[at]) for line in self.lines]
            for at in range(len(self.names))
            if {line.cells[at] for line in self.lines} <= {"0", "1", "0.0", "1.0"}
        }
        names = tuple(self.names[at] for at in numbers)
        whole = all(sum(row) == 1 for row in zip(*numbers.values(), strict=True))
        return names if whole and 1 < len({*names}) == len(names) else ()


def read_label_table(path: Path, encoding: str | None = None) -> Table:
    """The table in a file: one JSON object a line in `.jsonl`, comma-separated values in others.

    Nested values of JSON are cells with their text.

    Args:
        path: Of the file.
        encoding: By Python's name; None for that of a byte order mark, or UTF-8.

    Raises:
        EncodingError: For another encoding.
        DataError: With the line.
    """
    text = _text(path, encoding)
    if path.suffix.lower() == _JSON_LINES:
        return _of_json_lines(path, text, encoding)
    separator = separator_of(text)
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    try:
        names = [name.strip() for name in next(reader, [])]
        lines = [
            TableLine(f"{path.name} line {reader.line_num}", [cell.strip() for cell in cells])
            for cells in reader
            if cells
        ]
    except csv.Error as error:
        raise DataError(f"{path}: expected a table of separated values ({error})") from error
    table = Table(path, names, lines, separator, encoding)
    for line in lines:
        if len(line.cells) != len(names):
            raise table.error(line, "expected a cell for each column, as in line 1")
    return table


def _text(path: Path, encoding: str | None) -> str:
    try:
        content = path.read_bytes()
        return content.decode(encoding or encoding_of(content))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except LookupError as error:
        raise DataError(
            f"expected the name of an encoding, such as {WINDOWS}, got {encoding}"
        ) from (error)
    except UnicodeDecodeError as error:
        raise EncodingError(
            f"{path}: expected a table in {encoding or 'UTF-8'}, or another --encoding ({error})"
        ) from error


def _of_json_lines(path: Path, text: str, encoding: str | None) -> Table:
    objects: dict[str, dict[str, str]] = {}  # by place
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{path.name} line {number}"
            try:
                cells = {str(key): _cell(value) for key, value in json.loads(line).items()}
                "".join((*cells, *cells.values())).encode()  # refuses halves of surrogate pairs
            except (ValueError, AttributeError, RecursionError) as error:
                raise DataError(f"{path.parent / place}: expected a JSON object") from error
            objects[place] = cells
    names = list(dict.fromkeys(name for cells in objects.values() for name in cells))
    lines = [
        TableLine(place, [cells.get(name, "") for name in names])
        for place, cells in objects.items()
    ]
    return Table(path, [name.strip() for name in names], lines, encoding=encoding)


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "" if value is None else text.strip()


def stacked(folder: Path, tables: Sequence[Table]) -> Table:
    """The rows of tables of one name in different folders below `folder`.

    Raises:
        DataError: For other columns than those of the first one.
    """
    first = tables[0]
    lines: list[TableLine] = []
    for table in tables:
        if table.header != first.header:
            raise DataError(
                f"{table.path}: expected the columns of {first.path}, {', '.join(first.names)}; "
                f"got {', '.join(table.names)}"
            )
        inner = table.path.parent.relative_to(folder).as_posix()
        lines += [replace(one, place=f"{inner}/{one.place}", folder=inner) for one in table.lines]
    return replace(first, path=folder / first.path.name, lines=lines)


def joined(tables: Sequence[Table], key: str) -> Table:
    """The first table with the further columns of the others; `key` is the column of pictures.

    Raises:
        DataError: For a table without the column.
    """
    whole, *others = tables
    for table in tables if others else ():
        if key not in table.header:
            raise DataError(
                f"{table.path} line 1: expected the column {key} in each table, got "
                f"{', '.join(table.names)}"
            )
    for other in others:
        whole = whole.joined(other, key)
    return whole


_OF_LABEL_STUDIO = re.compile(
    r"(https?://[^/]+)?/data/(upload/\d+/(?P<digits>[0-9a-f]{8}-)|local-files/\?d=)(?P<path>.+)"
)
"""An uploaded picture in an export of Label Studio, or one below its folder of local files."""


def reader_of_pictures(
    folder: Path, names: Collection[str], masks: Collection[str], suffix: str
) -> Callable[[str], str]:
    """A function that turns the cell of a path into the name of a picture in a folder.

    Backslashes are read as slashes, and absolute paths below the folder as relative ones. A name in
    another Unicode form than the file's is that of the file: macOS decomposes letters such as an
    umlaut in the names of files. A picture that `eulerlora convert` made has its original's path.
    Without such a file, the cell is the end of a path, with or without its suffix, if only one
    picture has it, or only one that is no mask. The cell of an export of Label Studio is the name
    that the picture has there or had before its upload, or a path from a folder that may be above
    this one. `suffix` is added to cells without it.

    Raises:
        DataError: For the end of several paths.
    """
    roots = (folder.absolute(), folder.resolve())
    by_form = {normalize("NFC", name): name for name in names}
    by_form |= {name: name for name in names}
    by_end: dict[str, list[str]] = {}  # after a slash in lower case
    for name in sorted({*names} - {*masks}):
        path = PurePosixPath(name)
        for form in {path, path.with_suffix(""), path.with_suffix("").with_suffix("")}:
            for start in range(len(form.parts)):
                end = normalize("NFC", "/".join(form.parts[start:]))
                for key in {end, f"/{end.casefold()}"}:
                    by_end.setdefault(key, []).append(name)

    def name_of(cell: str) -> str:
        whole = cell.replace("\\", "/")
        if (exported := _OF_LABEL_STUDIO.fullmatch(whole)) is not None:
            path = PurePosixPath(unquote(exported["path"]))
            whole, stored = str(path), f"{exported['digits'] or ''}{path}"
            below = ("/".join(path.parts[start:]) for start in range(len(path.parts)))
            whole = stored if stored in by_end else next(filter(by_form.get, below), whole)
        path = PurePosixPath(whole if whole.endswith(suffix) else whole + suffix)
        for root in roots:
            path = path.relative_to(root) if path.is_relative_to(root) else path
        name = path.as_posix()
        forms = (name, normalize("NFC", name), normalize("NFC", f"{name}.png"))
        exact = next((by_form[form] for form in forms if form in by_form), None)
        if exact is not None:
            return exact
        end = normalize("NFC", name)
        ends = by_end.get(end) or by_end.get(f"/{end.casefold()}") or [name]
        if len(ends) > 1:
            raise DataError(
                f"expected the path of one picture, got {cell}, which ends those of {ends[0]} and "
                f"{ends[1]}; name a folder with --images or a suffix with --suffix"
            )
        return ends[0]

    return name_of
