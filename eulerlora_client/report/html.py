"""The HTML report of a triage run: one self-contained file without external resources."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.sampling import AUTO
from eulerlora_client.output_files import atomic_text_file
from eulerlora_client.policy import wording
from eulerlora_client.policy.performance import EXPLANATION, UNKNOWN, performance
from eulerlora_client.policy.policy import Policy
from eulerlora_client.printable import NO_BREAK, printable
from eulerlora_client.report.charts import class_bars, entropy_split, relative_distance
from eulerlora_client.report.rows import (
    ModelSettings,
    counts_by_settings,
    names_of_classes,
    ranks_by_name,
    sort_keys,
)
from eulerlora_client.report.thumbnails import Thumbnail, thumbnail_of
from eulerlora_client.triage.ranking import STATUS_TITLES, counts_by_status, ranked
from eulerlora_client.triage.result import TriageRow

PACKAGE, FOLDER = "eulerlora_client.report", "parts"
TEMPLATE, STYLE, SCRIPT = "report.html.j2", "report.css", "report.js"


@dataclass(frozen=True)
class InlineResource:
    """An inline style or script, and its hash for the page's Content-Security-Policy."""

    text: Markup
    csp_source: str


def write_report(
    path: Path, rows: Sequence[TriageRow], policy: Policy, created_at: datetime
) -> None:
    """Writes the rows to a self-contained HTML file, as `report_html`.

    Images are read from the rows' paths, one at a time. Raises StorageError for a full disk.
    """
    pieces = report_html(rows, policy, created_at, lambda row: thumbnail_of(row.path))
    with atomic_text_file(path) as file:
        file.writelines(pieces)


def report_html(
    rows: Sequence[TriageRow],
    policy: Policy,
    created_at: datetime,
    thumbnail_of_row: Callable[[TriageRow], Thumbnail | None],
) -> Iterator[str]:
    """Yields the parts of a self-contained HTML page with the rows, the most urgent first.

    policy: the policy that decided. created_at: with a time zone. thumbnail_of_row: called once
    for each row, in order; None for a row without a picture.
    """
    ranked_rows = ranked(rows)
    names = names_of_classes(ranked_rows)
    short_names = {code: name.partition(" (")[0] for code, name in names.items()}
    return (
        _environment()
        .get_template(TEMPLATE)
        .generate(
            rows=ranked_rows,
            counts=counts_by_status(ranked_rows),
            name_ranks=ranks_by_name(ranked_rows),
            settings_counts=counts_by_settings(ranked_rows),
            policy=policy,
            performance=performance(policy, short_names),
            class_names=names,
            short_names=short_names,
            thumbnail_of=thumbnail_of_row,
            created_at=created_at.astimezone(UTC),
            style=_inline(STYLE),
            script=_inline(SCRIPT),
        )
    )


def percent(share: float) -> str:
    """Returns a share in [0, 1] as a percentage with a non-breaking space."""
    if 0 < share < 0.001:
        return f"<0.1{NO_BREAK}%"
    digits = 1 if share < 0.0995 else 0
    return f"{100 * share:.{digits}f}{NO_BREAK}%"


def describe_settings(settings: ModelSettings | Prediction) -> str:
    """Returns the options of predictions, such as "stoch, 4 samples, 8 passes"."""
    if settings.samples == AUTO:
        return f"{settings.mode}, as many samples as each image needed"
    if isinstance(settings, Prediction) and settings.sampled is False:
        samples: tuple[str, ...] = ("not sampled",)
    else:
        samples = () if settings.mode == "det" else (counted(settings.samples, "sample"),)
    passes = counted(settings.trajectories, "pass", "passes")
    return ", ".join((settings.mode, *samples, passes))


def counted(count: int, singular: str, plural: str = "") -> str:
    """Returns a number with its noun. plural: by default the singular with an s."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE, FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=percent,
        nats="{:.3f}".format,
        class_name=lambda code, names: names.get(code, code),
        name_in=lambda code, result: result.name_of(code),
    )
    environment.globals.update(
        STATUS_TITLES=STATUS_TITLES,
        describe_settings=describe_settings,
        counted=counted,
        wording=wording,
        EXPLANATION=EXPLANATION,
        UNKNOWN=UNKNOWN,
        class_bars=class_bars,
        entropy_split=entropy_split,
        relative_distance=relative_distance,
        sort_keys=sort_keys,
    )
    return environment


def _printable_value(value: object) -> object:
    """Returns a value as the template prints it: text from elsewhere without control characters."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _inline(name: str) -> InlineResource:
    text = files(PACKAGE).joinpath(FOLDER, name).read_text(encoding="utf-8")
    digest = b64encode(sha256(text.encode()).digest()).decode()
    return InlineResource(Markup(text), f"'sha256-{digest}'")
