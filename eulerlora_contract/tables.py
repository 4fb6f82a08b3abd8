"""Tables that people edit, as spreadsheets write them."""

import csv
import io
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from pathlib import Path

SEPARATORS: Mapping[str, str] = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""Their names. Spreadsheets write semicolons where the comma is the decimal mark."""


def encoding_of(content: bytes) -> str:
    """UTF-16 for its byte order mark; otherwise UTF-8, with or without one."""
    return "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"


def separator_of(text: str) -> str:
    """The most frequent separator of the first line."""
    return max(SEPARATORS, key=text.partition("\n")[0].count)


def read_rows(path: Path) -> "csv.DictReader[str]":
    """The rows of a table by column, in the encoding and with the separator that it shows.

    Bytes that are not UTF-8 are surrogates, as in names of files.

    Raises:
        OSError: If it cannot be read.
        csv.Error: For broken UTF-16; the iteration raises it too.
    """
    content = path.read_bytes()
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding, "strict" if encoding == "utf-16" else "surrogateescape")
    except UnicodeDecodeError as error:
        raise csv.Error(str(error)) from error
    return csv.DictReader(io.StringIO(text, newline=""), delimiter=separator_of(text))
