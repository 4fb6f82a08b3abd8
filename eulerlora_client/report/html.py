"""The report of a triage run: one HTML file that holds all it shows and fetches nothing."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from eulerlora.atomic_files import whole_file
from eulerlora.settings import AUTO
from eulerlora_client.contract.models import ClassName
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.policy import wording
from eulerlora_client.policy.policy import Policy
from eulerlora_client.report.charts import class_bars, entropy_split
from eulerlora_client.report.rows import Question, name_ranks_of, questions_of, sort_keys
from eulerlora_client.report.thumbnails import thumbnail_of
from eulerlora_client.triage.printable import NO_BREAK, printable
from eulerlora_client.triage.ranking import KIND_TITLES, counts_of, results_of
from eulerlora_client.triage.run import TriageRow

PACKAGE, FOLDER = "eulerlora_client.report", "parts"
TEMPLATE, STYLE, SCRIPT = "report.html.j2", "report.css", "report.js"


@dataclass(frozen=True)
class Inline:
    """A style or script that stands in the page, and the hash by which its policy admits it."""

    text: Markup
    source: str


def write_report(
    path: Path,
    rows: Sequence[TriageRow],
    policy: Policy,
    made_at: datetime,
    classes: Sequence[ClassName] = (),
) -> None:
    """Writes the rows to a self-contained HTML file, which appears whole or not at all.

    The most urgent come first. Pictures are read again from the rows' paths, one at a time; one
    that cannot be read leaves its place empty. policy: what decided the rows. made_at: when, with
    its time zone. classes: what their names stand for, where that is known. Raises StorageError for
    a full disk.
    """
    results = results_of(rows, policy)
    pieces = (
        _environment()
        .get_template(TEMPLATE)
        .generate(
            results=results,
            counts=counts_of(results),
            name_ranks=name_ranks_of(results),
            questions=questions_of(results),
            policy=policy,
            classes=classes,
            made_at=made_at.astimezone(UTC),
            style=_inline(STYLE),
            script=_inline(SCRIPT),
        )
    )
    with (
        whole_file(path, private=True) as partial,
        partial.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(pieces)


def percent(share: float) -> str:
    """A share in [0, 1] as a person reads it, with a space that does not break."""
    if 0 < share < 0.001:
        return f"<0.1{NO_BREAK}%"
    digits = 1 if share < 0.0995 else 0
    return f"{100 * share:.{digits}f}{NO_BREAK}%"


def asked_for(question: Question | Prediction) -> str:
    """What a model was asked: "stoch, 4 samples, 8 passes"."""
    if question.samples == AUTO:
        return f"{question.mode}, as many samples as each picture took"
    samples = () if question.samples is None else (counted(question.samples, "sample"),)
    passes = counted(question.trajectories, "pass", "passes")
    return ", ".join((question.mode, *samples, passes))


def counted(count: int, one: str, more: str = "") -> str:
    """A number with its noun, whose plural is told where it does not end in s alone."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE, FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, nats="{:.3f}".format)
    environment.globals.update(
        KIND_TITLES=KIND_TITLES,
        asked_for=asked_for,
        counted=counted,
        wording=wording,
        class_bars=class_bars,
        entropy_split=entropy_split,
        sort_keys=sort_keys,
        thumbnail_of=thumbnail_of,
    )
    return environment


def _shown(value: object) -> object:
    """A value as the template prints it; only text of our own may hold lines."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _inline(name: str) -> Inline:
    text = files(PACKAGE).joinpath(FOLDER, name).read_text(encoding="utf-8")
    digest = b64encode(sha256(text.encode()).digest()).decode()
    return Inline(Markup(text), f"'sha256-{digest}'")
