"""Tables of labels: CSV files, and the pictures that their cells name."""

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from unicodedata import normalize

from eulerlora_contract.errors import DataError
from training.data.dataset import Column

LIKELY_NAMES: Mapping[Column, Sequence[str]] = {
    "path": (
        "file", "filename", "file_name", "image", "image_id", "img_id", "image_name", "name",
        "picture",
    ),
    "label": (
        "class", "diagnosis", "dx", "diagnostic", "target", "category", "class_name", "classname",
        "pathology", "benign_malignant", "condition", "species",
    ),
    "group": ("patient", "patient_id", "subject", "subject_id", "case", "case_id", "person"),
    "lesion": ("lesion_id", "lesion_number", "mole"),
    "split": ("part", "partition", "set", "subset", "fold"),
}  # fmt: skip
"""Names that other tables have for the columns."""
SEPARATORS: Mapping[str, str] = {",": "commas", ";": "semicolons", "\t": "tabs"}


@dataclass(frozen=True)
class Table:
    """Cells without surrounding spaces.

    Attributes:
        header: Names of the columns in lower case.
        lines: Number of the line in the file, and a cell for each column.
    """

    path: Path
    header: Sequence[str]
    lines: Sequence[tuple[int, Sequence[str]]]
    separator: str = ","

    def column(self, name: str) -> list[str]:
        at = self.header.index(name)
        return [cells[at] for _, cells in self.lines]

    def joined(self, other: "Table", key: str) -> "Table":
        """This table with the further columns of another one, by the cells of the column `key`.

        Cells are empty in a row that the other table has not.
        """
        added = [at for at, name in enumerate(other.header) if name not in self.header]
        rows = dict(zip(other.column(key), (cells for _, cells in other.lines), strict=True))
        at, none = self.header.index(key), [""] * len(other.header)
        lines = [
            (number, [*cells, *(rows.get(cells[at], none)[index] for index in added)])
            for number, cells in self.lines
        ]
        header = [*self.header, *(other.header[index] for index in added)]
        return Table(self.path, header, lines, self.separator)


def read_csv_table(path: Path) -> Table:
    """The table in a file.

    Raises:
        DataError: With the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        separator = max(SEPARATORS, key=text.partition("\n")[0].count)
        reader = csv.reader(io.StringIO(text), delimiter=separator)
        header = [name.strip().lower() for name in next(reader, [])]
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a CSV table in UTF-8 ({error})") from error
    for number, cells in lines:
        if len(cells) != len(header):
            raise DataError(f"{path} line {number}: expected a cell for each column, as in line 1")
    return Table(path, header, lines, separator)


def read_tables(paths: Sequence[Path], key: str) -> Table:
    """The first table with the further columns of the others; `key` is the column of pictures.

    Raises:
        DataError: As in `read_csv_table`, and for a table without the column.
    """
    first, *others = map(read_csv_table, paths)
    for table in (first, *others) if others else ():
        if key not in table.header:
            raise DataError(
                f"{table.path} line 1: expected the column {key} in each table, got "
                f"{', '.join(table.header)}"
            )
    for other in others:
        first = first.joined(other, key)
    return first


def reader_of_pictures(
    folder: Path, names: Collection[str], masks: Collection[str] = ()
) -> Callable[[str], str]:
    """A function that turns the cell of a path into the name of a picture in a folder.

    Backslashes are read as slashes, and absolute paths below the folder as relative ones. A name in
    another Unicode form than the file's is that of the file: macOS decomposes letters such as an
    umlaut in the names of files. A picture that `eulerlora convert` made has its original's path.
    Without such a file, the cell is the end of a path, with or without its suffix, if only one
    picture has it, or only one that is no mask.

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
        path = PurePosixPath(cell.replace("\\", "/"))
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
                f"{ends[1]}"
            )
        return ends[0]

    return name_of
