"""A language whose texts have no letter but é, so that a text outside the catalogue stands out."""

import re
from collections.abc import Iterable, Iterator

from babel import Locale

from clinic.catalogues import texts
from eulerlora_clinic.language import Language

_VERBATIM = re.compile(
    r"sha256:\w+|\b(?:HAM10000|PH2|PAD-UFES-20|SCC|II+|IV|VI|ham10000|"
    r"mel|nv|bkl|df|vasc|bcc|akiec|det|stoch|float32|bfloat16|MiB|UTC|EulerLoRA)\b"
)
"""Names and codes, which are the same in all languages."""
_PLACEHOLDER = re.compile(r"(\{\w+\})")
_WORD = re.compile(r"[A-Za-z]{2,}")


def pseudo_language() -> Language:
    return Language(Locale("el"), dict(_messages()))


def outside(shown: Iterable[str]) -> list[str]:
    """Those of the shown texts that have words from outside the catalogue."""
    return [text for text in shown if _WORD.search(_PLACEHOLDER.sub("", _VERBATIM.sub("", text)))]


def _messages() -> Iterator[tuple[str, str | dict[str, str]]]:
    for entry in texts():
        if isinstance(entry.id, str):
            yield entry.id, _changed(entry.id)
        else:
            yield entry.id[0], dict(zip(("one", "other"), map(_changed, entry.id), strict=True))


def _changed(text: str) -> str:
    return "".join(
        part if part.startswith("{") else re.sub("[A-Za-z]", "é", part)
        for part in _PLACEHOLDER.split(text)
    )
