"""Untrusted text, such as a file name or a label, in a form that is harmless in an output.

The client has the same functions: neither package imports the other, and a test compares the two.
"""

FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r", "\n")
NO_BREAK = "\N{NO-BREAK SPACE}"


def printable(text: str, encoding: str = "utf-8") -> str:
    """Returns the text with escapes for characters that are invisible or cannot be encoded.

    encoding: of the output.
    """
    escaped = "".join(
        character
        if character.isprintable() or character == NO_BREAK
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
    return escaped.encode(encoding, "backslashreplace").decode(encoding)


def csv_text(text: str) -> str:
    """Returns untrusted text as a cell of a CSV file: printable, and no formula of a spreadsheet.

    A text that begins as a formula is quoted by an apostrophe.
    """
    quote = "'" if text.startswith(FORMULA_PREFIXES) else ""
    return quote + printable(text)


def csv_path(path: str) -> str:
    """Returns a path as a cell of a CSV file, which names the same file.

    ./ is put in front if a spreadsheet would read the path as a formula.
    """
    return f"./{path}" if path.startswith(FORMULA_PREFIXES) else path
