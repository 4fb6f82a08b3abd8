"""Untrusted text, such as a file name or a label, in a form that is harmless in an output."""

import csv
from collections.abc import Iterable, Sequence
from typing import TextIO

_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r", "\n")
_NO_BREAK = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"  # of units and of French numbers
_BYTE_ORDER_MARK = "\ufeff"


def printable(text: str, encoding: str = "utf-8") -> str:
    """Escapes characters that are invisible or cannot be encoded.

    File names may hold control characters, marks that reverse the text, and undecodable bytes, for
    which surrogates stand.
    """
    escaped = "".join(
        character
        if character.isprintable() or character in _NO_BREAK
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
    return escaped.encode(encoding, "backslashreplace").decode(encoding)


def _csv_text(text: str) -> str:
    """Makes untrusted text a cell of a CSV file: printable, and no formula of a spreadsheet."""
    quote = "'" if text.startswith(_FORMULA_PREFIXES) else ""
    return quote + printable(text)


def write_csv_rows(file: TextIO, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a header and rows as CSV (RFC 4180) to an open file; None is an empty cell.

    It begins with a byte order mark, without which spreadsheets do not read UTF-8. The first column
    names files. On a terminal there is no mark, and names are escaped like all other text.
    """
    if not file.isatty():
        file.write(_BYTE_ORDER_MARK)
    writer = csv.writer(file)
    writer.writerow(map(_csv_text, columns))
    for name, *cells in rows:
        path = _csv_text(str(name)) if file.isatty() else str(name)
        if path.startswith(_FORMULA_PREFIXES):  # to a spreadsheet; it still names the file
            path = f"./{path}"
        writer.writerow([path, *(_csv_text(c) if isinstance(c, str) else c for c in cells)])


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1
) -> str:
    """A Markdown table with text in the first columns and numbers in the others."""
    separator = "|" + "---|" * text_columns + "---:|" * (len(header) - text_columns)
    return "\n".join([markdown_row(header), separator, *map(markdown_row, rows)])


def markdown_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table; escapes vertical bars."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
