"""Untrusted text, such as a file name, in a form that is harmless when printed."""

NO_BREAK = "\N{NO-BREAK SPACE}"


def printable(text: str, encoding: str = "utf-8") -> str:
    """Returns the text with escapes for characters that are invisible or cannot be encoded.

    File names may hold control characters, undecodable bytes and marks that reverse the text.
    encoding: of the output.
    """
    escaped = "".join(
        character
        if character.isprintable() or character == NO_BREAK
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
    return escaped.encode(encoding, "backslashreplace").decode(encoding)
