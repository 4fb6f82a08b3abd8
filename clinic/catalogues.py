"""Updates the catalogues of the clinic: `python -m clinic.catalogues`.

Adds the texts of code, page and report to every `.po` file, and removes those that are gone. A new
language begins as an empty file with its code as the name, such as `it.po`.
"""

import re
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from babel import Locale
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from eulerlora_clinic.language import one_line
from eulerlora_clinic.policy.policy import default_policy
from eulerlora_clinic.report.ranking import PROBLEM_TITLES, reason_name
from eulerlora_contract.answers import Reason
from eulerlora_contract.image_formats import KINDS

_CLINIC = Path(__file__).parent / "eulerlora_clinic"
_LANGUAGES = _CLINIC / "languages"
_METHODS = [
    ("**.py", "python"),
    ("**.js", "javascript"),
    ("**.html", "jinja2.ext:babel_extract"),
    ("**.j2", "jinja2.ext:babel_extract"),
]
_OPTIONS = {"**.js": {"parse_template_string": True}}
_KEYWORDS = {"t": None, "message": None, "messages": (1, 2), "plural": (2, 3)}
_FORMAT = "python-brace-format"
_HEADER = """msgid ""
msgstr ""
"Language: {code}\\n"
"Plural-Forms: {forms}\\n"
"Content-Type: text/plain; charset=utf-8\\n"

"""


def texts() -> Catalog:
    """All texts, in the order of files, and the files that have them."""
    catalog = Catalog(project="EulerLoRA", fuzzy=False)
    found = extract_from_dir(_CLINIC, _METHODS, _OPTIONS, _KEYWORDS)
    for name, line, text, _, _ in found:
        ids = tuple(map(one_line, text)) if isinstance(text, tuple) else one_line(text)
        catalog.add(ids, locations=[(name, line)], flags=_flags(ids))
    for text in _texts_of_the_core():
        catalog.add(text)
    return catalog


def updated(code: str, content: str) -> str:
    """A catalogue with all texts."""
    locale = Locale.parse(code)
    catalog = read_po(content.splitlines(), locale) if content else Catalog(locale)
    catalog.update(texts(), no_fuzzy_matching=True)
    file = BytesIO()
    write_po(file, catalog, width=100, ignore_obsolete=True, include_lineno=False, omit_header=True)
    header = _HEADER.format(code=code, forms=catalog.plural_forms)
    return header + file.getvalue().decode().lstrip("\n")


def main() -> None:
    for file in sorted(_LANGUAGES.glob("*.po")):
        file.write_text(updated(file.stem, file.read_text("utf-8")), "utf-8")
        print(file.relative_to(_CLINIC), file=sys.stderr)


def _flags(ids: str | tuple[str, ...]) -> list[str]:
    return [_FORMAT] if re.search(r"\{\w+\}", str(ids)) else []


def _texts_of_the_core() -> Iterator[str]:
    """Yields what the clinic shows of other packages and of the packaged model and policy."""
    yield from sorted(set(PROBLEM_TITLES.values()))
    yield from map(reason_name, Reason)
    for kind in KINDS:
        yield from (kind.name, kind.advice)
    for entry in read_config(DEFAULT_CHECKPOINT).classes:
        yield from (entry.description, re.sub(r"\s*\([^)]*\)", "", entry.description))
    policy = default_policy()
    yield from (policy.target.name, policy.target.critical.name)
    measured = [one for evidence in policy.evidence for one in evidence.measured]
    data = [*(one.data for one in measured), *(one.fit.data for one in policy.evidence)]
    parts = (part for name in data for part in name.split(", ")[1:])
    yield from (part for part in parts if not part.endswith(" split"))
    groups = [group for one in measured for group in one.groups]
    yield from (text for one in groups for text in (one.attribute, one.value) if not text.isupper())


if __name__ == "__main__":
    main()
