"""Tables that people edit, as spreadsheets write them."""

import csv
import io
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path

_SEPARATORS = ",;\t"
"""Spreadsheets write semicolons where the comma is the decimal mark."""


def read_rows(path: Path) -> "csv.DictReader[str]":
    """The rows of a table by column: with commas, semicolons or tabs; in UTF-8, or in UTF-16 with a
    byte order mark.

    Bytes that are not UTF-8 are surrogates, as in names of files.

    Raises:
        OSError: If it cannot be read.
        csv.Error: For broken UTF-16; the iteration raises it too.
    """
    content = path.read_bytes()
    try:
        if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            text = content.decode("utf-16")
        else:
            text = content.decode("utf-8-sig", "surrogateescape")
    except UnicodeDecodeError as error:
        raise csv.Error(str(error)) from error
    separator = max(_SEPARATORS, key=text.partition("\n")[0].count)
    return csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
