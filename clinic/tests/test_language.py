"""The languages: their catalogues are complete, and one is chosen for a request."""

import re
from datetime import UTC, datetime
from pathlib import Path
from string import Formatter

import pytest
from babel.messages.catalog import Message
from babel.messages.pofile import read_po

from clinic.catalogues import texts, updated
from eulerlora_clinic.language import Language, accepted, languages

FOLDER = Path(__file__).parents[1] / "eulerlora_clinic" / "languages"
FILES = {file.stem: file.read_text("utf-8") for file in sorted(FOLDER.glob("*.po"))}


def forms_of(text: object) -> tuple[str, ...]:
    return tuple(text) if isinstance(text, tuple | list) else (str(text),)


def fields_of(text: object) -> set[str]:
    return {name for form in forms_of(text) for _, name, _, _ in Formatter().parse(form) if name}


def translated(code: str) -> list[Message]:
    return [entry for entry in read_po(FILES[code].splitlines(), code) if entry.id]


@pytest.mark.parametrize("code", FILES)
def test_a_catalogue_is_what_the_program_that_updates_it_writes(code: str) -> None:
    assert updated(code, FILES[code]) == FILES[code]


@pytest.mark.parametrize("code", FILES)
def test_every_text_is_translated_with_the_same_placeholders_and_all_plural_forms(
    code: str,
) -> None:
    catalog = read_po(FILES[code].splitlines(), code)
    entries = translated(code)
    assert len(entries) == len([entry for entry in texts() if entry.id])
    for entry in entries:
        translations = forms_of(entry.string)
        assert all(translations) and not entry.fuzzy, entry.id
        assert len(translations) == (catalog.num_plurals if entry.pluralizable else 1), entry.id
        assert fields_of(entry.string) == fields_of(entry.id), entry.id


@pytest.mark.parametrize("code", FILES)
def test_a_translation_ends_as_its_text(code: str) -> None:
    for entry in translated(code):
        for text, translation in zip(forms_of(entry.id), forms_of(entry.string), strict=True):
            ends = [re.search(r"[.:?]?$", one) for one in (text, translation)]
            assert len({end and end[0] for end in ends}) == 1, text


def test_french_has_narrow_spaces_inside_quotes_and_before_double_punctuation() -> None:
    narrow = "\N{NARROW NO-BREAK SPACE}"
    texts = [text for entry in translated("fr") for text in forms_of(entry.string)]
    assert [t for t in texts if re.search(f"[^{narrow}][;:!?»%]|«[^{narrow}]", t)] == []


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("de", "de"), ("de-CH, en;q=0.9", "de"), ("en-US,en;q=0.9,de;q=0.8", "en"),
        ("it, fr;q=0.5", "fr"), ("fr;q=0.4, de;q=0.6", "de"), ("de;q=0, fr;q=0.1", "fr"),
        ("it", "en"), ("*", "en"), ("", "en"), ("de;q=x, ;;,", "en"),
    ],
)  # fmt: skip
def test_the_accepted_language_with_the_highest_weight_is_chosen(header: str, code: str) -> None:
    assert accepted(header) == code


def test_numbers_shares_and_dates_are_written_by_locale() -> None:
    time = datetime(2026, 3, 1, 13, 5, tzinfo=UTC)
    for code, number, share, moment in (
        ("en", "1,234.50", "1.2 %", "1 March 2026, 13:05"),
        ("de", "1.234,50", "1,2 %", "1. März 2026, 13:05"),
    ):
        t = languages()[code]
        assert t.number(1234.5, 2) == number
        assert t.percent(0.0123) == share.replace(" ", "\N{NO-BREAK SPACE}")
        assert t.moment(time) == moment


def test_a_language_needs_only_a_file_and_counts_with_its_own_plural_forms() -> None:
    polish = Language.of(
        "pl",
        'msgid ""\nmsgstr ""\n"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && '
        '(n%100<10 || n%100>=20) ? 1 : 2);\\n"\n\nmsgid "{n} image"\nmsgid_plural "{n} images"\n'
        'msgstr[0] "{n} obraz"\nmsgstr[1] "{n} obrazy"\nmsgstr[2] "{n} obrazów"\n',
    )
    counts = [polish.plural(n, "{n} image", "{n} images") for n in (1, 3, 5, 22)]
    assert counts == ["1 obraz", "3 obrazy", "5 obrazów", "22 obrazy"]
    assert polish("Results") == "Results"
