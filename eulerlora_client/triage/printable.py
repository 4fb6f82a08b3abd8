"""Text from elsewhere, such as a file's name, in a form that cannot deceive or do harm."""

NO_BREAK = "\N{NO-BREAK SPACE}"


def printable(text: str, encoding: str = "utf-8") -> str:
    """The text with escapes for what cannot be seen, steers a terminal, or cannot be encoded.

    File names may hold control characters, undecodable bytes and marks that reverse the text.
    encoding: of the place where the text will stand.
    """
    seen = "".join(
        each
        if each.isprintable() or each == NO_BREAK
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
    return seen.encode(encoding, "backslashreplace").decode(encoding)
