"""Extension of Griffe: the parameters in a docstring become a list.

Docstrings describe parameters and attributes in running text, `name: text` or `name, other: text`,
which is dense on a page of the site.
"""

import re
from itertools import pairwise
from typing import Any

import griffe

DESCRIPTION = re.compile(r"(?:^|(?<=\. ))((?:\w+, )*\w+): ")
RESULT = re.compile(r"(?<=\. )(?=Raises |Returns )")


class ParameterLists(griffe.Extension):
    """Changes the docstrings of functions and classes."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Lists the parameters of a function."""
        _change(func, {parameter.name for parameter in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Lists the attributes of a class, and the parameters of its constructor."""
        _change(cls, {*cls.all_members, *(parameter.name for parameter in cls.parameters)})


def _change(documented: griffe.Function | griffe.Class, names: set[str]) -> None:
    if documented.docstring:
        paragraphs = documented.docstring.value.split("\n\n")
        documented.docstring.value = "\n\n".join(listed(text, names) for text in paragraphs)


def listed(paragraph: str, names: set[str]) -> str:
    """Returns a paragraph with a list of the parts that describe `names`, in Markdown."""
    if re.search(r"^(\s|- |\||```)", paragraph, re.MULTILINE):
        return paragraph
    text = " ".join(paragraph.split("\n"))
    matches = [m for m in DESCRIPTION.finditer(text) if set(m[1].split(", ")) <= names]
    starts = [match.start() for match in matches]
    before, *items = (text[a:b].strip() for a, b in pairwise([0, *starts, len(text)]))
    if not items:
        return paragraph
    items[-1], *after = RESULT.split(items[-1], maxsplit=1)
    described = [DESCRIPTION.sub(r"- **\1**: ", item, count=1) for item in items]
    return "\n\n".join(part for part in (before, "\n".join(described).rstrip(), *after) if part)
