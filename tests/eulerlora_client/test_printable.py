"""Untrusted text is escaped."""

import os

import pytest

from eulerlora_client.printable import NO_BREAK, printable


@pytest.mark.parametrize(
    ("name", "encoding", "expected"),
    [
        ("ü.png", "utf-8", "ü.png"),
        ("ü.png", "ascii", "\\xfc.png"),
        ("🙂 é.png", "utf-8", "🙂 é.png"),
        (f"8.9{NO_BREAK}%", "utf-8", f"8.9{NO_BREAK}%"),
        ("\x1b[2J\n.png", "utf-8", "\\x1b[2J\\n.png"),
        ("a\r\n\t\x00\x7f\u2028\ud800b", "utf-8", "a\\r\\n\\t\\x00\\x7f\\u2028\\ud800b"),
        ("gpj.\u202egnp", "utf-8", "gpj.\\u202egnp"),
        (os.fsdecode(b"caf\xe9.png"), "utf-8", "caf\\udce9.png"),
    ],
)
def test_invisible_and_unencodable_characters_are_escaped(
    name: str, encoding: str, expected: str
) -> None:
    assert printable(name, encoding) == expected
