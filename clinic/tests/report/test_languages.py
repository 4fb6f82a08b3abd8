"""The report in other languages: no text is outside the catalogue."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from io import StringIO
from pathlib import Path

import pytest

from clinic.tests.pseudo_language import outside, pseudo_language
from clinic.tests.triage_rows import failed
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from eulerlora_clinic.language import Language, languages
from eulerlora_clinic.policy.policy import Policy, default_policy
from eulerlora_clinic.policy.results import TITLES, WARNING
from eulerlora_clinic.report.html import write_html_report
from eulerlora_clinic.report.ranking import TriageRow
from eulerlora_clinic.report.terminal import print_table
from eulerlora_contract.answers import Disposition

HEIC = failed(
    Path("phone.heic"),
    "unsupported_media",
    "expected a JPEG, PNG or WebP image; this is a HEIC photograph: on an iPhone choose Settings > "
    "Camera > Formats > Most Compatible, or export it as JPEG",
)
_SKIPPED = re.compile(
    r'<(style|script)\b.*?</\1>|<(\w+)\b[^>]*\btranslate="no"[^>]*>.*?</\2>', re.DOTALL
)
_ATTRIBUTE = re.compile(r'\b(?:aria-label|alt|title|data-(?:text|ascending|descending))="([^"]*)"')


def written(path: Path, rows: Sequence[TriageRow], policy: Policy, t: Language) -> str:
    write_html_report(path, rows, policy, datetime(2026, 3, 1, tzinfo=UTC), t)
    return path.read_text(encoding="utf-8")


def shown(html: str) -> Iterator[str]:
    """Yields texts and attributes that people read or hear."""
    translated = _SKIPPED.sub("", html)
    yield from map(unescape, re.split(r"<[^>]*>", translated))
    yield from map(unescape, _ATTRIBUTE.findall(translated))


@pytest.mark.parametrize("packaged", [False, True])
def test_every_text_of_report_and_table_is_in_the_catalogue(
    tmp_path: Path, rows: list[TriageRow], policy: Policy, packaged: bool
) -> None:
    policy = default_policy() if packaged else policy
    classes = {entry.name: entry.description for entry in read_config(DEFAULT_CHECKPOINT).classes}
    known = [
        row
        if row.result is None
        else replace(row, result=row.result.model_copy(update={"class_names": classes}))
        for row in rows
        if row.result is None or not row.result.prediction.warnings
    ]
    known.append(replace(HEIC, path=known[0].path.with_name("phone.heic")))
    html = written(tmp_path / "report.html", known, policy, pseudo_language())
    assert outside(shown(html)) == []
    table = StringIO()
    print_table(known, policy, table, pseudo_language())
    names = "|".join(re.escape(row.path.name) for row in known)
    assert outside([re.sub(names, "", table.getvalue())]) == []


def test_a_french_table_names_dispositions_data_and_reasons_in_french(
    rows: list[TriageRow], policy: Policy
) -> None:
    table = StringIO()
    print_table(rows, policy, table, languages()["fr"])
    words = " ".join(table.getvalue().split())
    for text in (WARNING, TITLES[Disposition.REFER], "disposition", "high entropy"):
        assert " ".join(languages()["fr"](text).split()) in words


def test_a_german_report_has_german_texts_and_numbers(
    tmp_path: Path, rows: list[TriageRow], policy: Policy
) -> None:
    german = languages()["de"]
    html = written(tmp_path / "report.html", [*rows, HEIC], policy, german)
    assert "dies ist ein HEIC-Foto: " in html and "auf einem iPhone" in html
    assert '<html lang="de">' in html and "1. März 2026, 00:00 UTC" in html
    for text in (WARNING, TITLES[Disposition.URGENT], TITLES[Disposition.REFER]):
        assert german(text) != text
        assert german(text) in unescape(html)
