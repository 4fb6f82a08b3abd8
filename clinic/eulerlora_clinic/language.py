"""The languages of what people read: catalogues of texts, and numbers and dates by locale.

English texts are in the code, where `t("... {name} ...", name=value)` looks them up. A file of GNU
gettext in the folder `languages`, such as `de.po`, is a language; the script of the page has the
same catalogue. `python -m clinic.catalogues` writes new texts into all files.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from gettext import c2py
from importlib.resources import files
from pathlib import PurePath
from typing import Self

from babel import Locale
from babel.dates import format_date, format_time
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from babel.numbers import format_decimal

_RANGE = re.compile(r"([A-Za-z]+)[A-Za-z0-9-]*\s*(?:;\s*q=([01](?:\.\d{0,3})?))?\s*(?:,|$)")
"""A language of `Accept-Language`, and its weight."""
_COUNTS = range(200)
"""Numbers with all plural forms that a count takes."""

_Messages = Mapping[str, str | Mapping[str, str]]
"""The translations by the English text; of a text with a number, by the plural category of CLDR."""


def message(text: str) -> str:
    """Marks a text that is looked up elsewhere, for the catalogue."""
    return text


def messages(one: str, other: str) -> tuple[str, str]:
    """Marks the forms of a text with a number, likewise."""
    return one, other


def one_line(text: str) -> str:
    """A text that a template breaks into lines."""
    return re.sub(r"[ \n]+", " ", text)


@dataclass(frozen=True)
class Language:
    """A language with its catalogue: `t("{n} of {all}", n=1, all=2)`, where `t` is the language.

    Whole numbers among the values are written by locale; `number` and `percent` write others.

    Attributes:
        messages: A text without an entry is shown in English.
    """

    locale: Locale
    messages: _Messages = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, code: str, catalogue: str) -> Self:
        """The language of a file, by its name and content."""
        locale = Locale.parse(code)
        return cls(locale, dict(_messages_of(read_po(catalogue.splitlines(), locale), locale)))

    @property
    def tag(self) -> str:
        """For HTML and HTTP (BCP 47)."""
        return str(self.locale).replace("_", "-")

    @property
    def name(self) -> str:
        """In the language itself."""
        name = self.locale.get_language_name() or self.tag
        return name[:1].upper() + name[1:]

    def with_messages(self, messages: _Messages) -> Self:
        """The language with more translations."""
        return replace(self, messages={**messages, **self.messages})

    def __call__(self, text: str, **values: object) -> str:
        translated = self.messages.get(text, text)
        assert isinstance(translated, str)  # else it has plural forms
        return self._filled(translated, values)

    def template_text(self, text: str, **values: object) -> str:
        """The same for a text that a template breaks into lines."""
        return self(one_line(text), **values)

    def plural(self, n: int, one: str, other: str, **values: object) -> str:
        """The form for the number `n`, such as "{n} image" or "{n} images"."""
        category = self.locale.plural_form(n)
        forms = self.messages.get(one, {"one": one})
        assert not isinstance(forms, str)
        return self._filled(forms.get(category, forms.get("other", other)), {"n": n, **values})

    def number(self, value: float, digits: int | None = None) -> str:
        """With this many digits after the point, or as many as it has, at most six."""
        decimals = "######" if digits is None else "0" * digits
        rounded = round(value, len(decimals))  # by its exact value, as Python's formats
        return format_decimal(rounded, f"#,##0.{decimals}".rstrip("."), self.locale)

    def percent(self, share: float, digits: int | None = None) -> str:
        """A share in [0, 1]. digits: by default one below 10%."""
        if 0 < share < 0.001:
            return self("<{number}\N{NO-BREAK SPACE}%", number=self.number(0.1))
        if digits is None:
            digits = 1 if share < 0.0995 else 0
        return self("{number}\N{NO-BREAK SPACE}%", number=self.number(100 * share, digits))

    def moment(self, time: datetime) -> str:
        """Date and time."""
        clock = format_time(time, "short", locale=self.locale)
        return f"{format_date(time, 'long', self.locale)}, {clock}"

    def _filled(self, text: str, values: Mapping[str, object]) -> str:
        if not values:
            return text
        return text.format(
            **{
                name: self.number(value) if isinstance(value, int) else value
                for name, value in values.items()
            }
        )


ENGLISH = Language(Locale("en", "GB"))


@cache
def languages() -> Mapping[str, Language]:
    """All languages by their code, English first."""
    folder = files("eulerlora_clinic").joinpath("languages")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".po"))
    codes = {PurePath(name).stem: folder.joinpath(name).read_text("utf-8") for name in names}
    return {"en": ENGLISH} | {code: Language.of(code, text) for code, text in codes.items()}


def accepted(header: str) -> str:
    """The code of the language that a client prefers; "en" without a catalogue that it accepts.

    Args:
        header: `Accept-Language` (RFC 9110, 12.5.4); the region of a language does not matter.
    """
    weights = {code.lower(): float(weight or 1) for code, weight in _RANGE.findall(header)}
    by_language = {language.locale.language: code for code, language in languages().items()}
    known = [code for code in weights if weights[code] > 0 and code in by_language]
    return by_language[max(known, key=weights.__getitem__, default="en")]


def _messages_of(catalog: Catalog, locale: Locale) -> Iterator[tuple[str, str | Mapping[str, str]]]:
    """Yields the translated messages; the header has the empty id."""
    index = c2py(catalog.plural_expr)
    for entry in catalog:
        if not entry.id or entry.fuzzy or not entry.string or not all(entry.string):
            continue
        if isinstance(entry.id, str):
            yield entry.id, str(entry.string)
        else:
            forms = {locale.plural_form(n): entry.string[index(n)] for n in _COUNTS}
            yield entry.id[0], forms
