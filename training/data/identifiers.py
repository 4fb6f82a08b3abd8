"""Identifiers of patients or lesions as people write them: missing values and spellings of one."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unicodedata import normalize

MISSING = {"", "nan", "na", "n/a", "#n/a", "<na>", "nat", "null"}
"""Cells without a value, in lower case, as libraries write them."""
_UNKNOWN = MISSING | {
    "none", "unknown", "unk", "missing", "undefined", "not available", "not recorded", "not known",
    "anonymous", "anon", "tbd", "unbekannt", "keine angabe", "inconnu", "inconnue", "desconocido",
    "sconosciuto", "onbekend", "?", "??", "-", "--", ".",
}  # fmt: skip
_NEGATIVE = re.compile(r"-\d+(\.0+)?")
_PLACEHOLDER = re.compile(r"(0+|9{2,})(\.0+)?|\D*")
"""Numbers that stand for a missing one, and text without a number."""
_FREQUENT = 0.1
"""Share of the rows from which on a placeholder is no identifier, if all others are rarer."""
_SHOWN = 3


@dataclass(frozen=True)
class Identifiers:
    """The identifiers in a column.

    Attributes:
        by_cell: For every cell; None for a missing one.
    """

    by_cell: Mapping[str, str | None]
    notes: Sequence[str] = ()


def read_identifiers(column: str, cells: Sequence[str], numbered: bool = False) -> Identifiers:
    """The identifiers in a column, with notes on missing ones and on spellings that are united.

    Missing are cells such as `unknown` or `-1`; and `0`, `999` or text without a number, if a tenth
    of the rows have it, and no other value half as many. Spellings that differ only in case,
    spaces, separators or leading zeros are one identifier.

    Args:
        column: Name of what the column identifies.
        cells: Of all rows.
        numbered: The identifiers count within another one, so that any may be frequent.
    """
    counts = Counter(cells)
    missing = {cell for cell in counts if _is_unknown(cell)}
    if not numbered:
        missing |= _placeholders({cell: counts[cell] for cell in counts if cell not in missing})
    spellings: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for cell in counts:
        if cell not in missing:
            spellings[_key(cell)].append(cell)
    by_cell: dict[str, str | None] = dict.fromkeys(missing)
    for same in spellings.values():
        usual = normalize("NFC", max(same, key=lambda cell: counts[cell]))
        by_cell |= dict.fromkeys(same, usual)
    notes = []
    if missing and (spellings or any(missing)):
        listed = ", ".join(f"{cell or 'empty'}: {counts[cell]:,}" for cell in sorted(missing))
        rows = sum(counts[cell] for cell in missing)
        notes.append(f"{rows:,} rows have no {column} ({listed}); each is one by itself")
    united = [same for same in spellings.values() if len({normalize("NFC", c) for c in same}) > 1]
    if united:
        listed = ", ".join(" = ".join(map(repr, same)) for same in united[:_SHOWN])
        more = ", ..." if len(united) > _SHOWN else ""
        notes.append(f"spellings of one {column} are united: {listed}{more}")
    return Identifiers(by_cell, notes)


def _is_unknown(cell: str) -> bool:
    return cell.casefold() in _UNKNOWN or _NEGATIVE.fullmatch(cell) is not None


def _placeholders(counts: Mapping[str, int]) -> set[str]:
    if len(counts) < 2:
        return set()
    (first, most), (_, second) = Counter(counts).most_common(2)
    others = [cell for cell in counts if cell != first]
    numbers = sum(any(letter.isdigit() for letter in cell) for cell in others)
    frequent = most > 2 * second and most >= _FREQUENT * sum(counts.values())
    return (
        {first}
        if frequent and _PLACEHOLDER.fullmatch(first) and 2 * numbers > len(others)
        else set()
    )


def _key(cell: str) -> tuple[str, ...]:
    """Equal for spellings of one identifier: its runs of letters and of digits."""
    text = re.sub(r"(?<=\d)\.0+$", "", normalize("NFKC", cell).casefold())
    runs = re.findall(r"\d+|[^\W\d_]+", text)
    return tuple(run.lstrip("0") or "0" if run.isdigit() else run for run in runs) or (cell,)
