"""The HTML report of a triage run: one self-contained file without external resources."""

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from warnings import catch_warnings

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from eulerlora_clinic.language import ENGLISH, Language
from eulerlora_clinic.policy import results
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.policy.results import performance
from eulerlora_clinic.report.ranking import (
    STATUS_TITLES,
    TriageRow,
    counts_by_status,
    first_of_lesions,
    ranked,
)
from eulerlora_contract.answers import OodScore, Prediction, TriageResult
from eulerlora_contract.errors import ImageError
from eulerlora_contract.images import rgb_image
from eulerlora_contract.output_files import open_output
from eulerlora_contract.printable import printable
from eulerlora_contract.sampling import AUTO, Auto, Options

_PACKAGE, _FOLDER = "eulerlora_clinic.report", "parts"
STYLE, SCRIPT = "report/parts/report.css", "report/parts/report.js"
_TOKENS = "service/page/tokens.css"


@dataclass(frozen=True)
class _ModelSettings:
    """The model and options of a prediction; most reports hold one combination.

    Attributes:
        trajectories: 0 for samples="auto", where the number differs between images.
    """

    model: str
    revision: str
    options: Options
    trajectories: int


_MAX_SIDE_PX = 320  # of a thumbnail, as the limits below
_MAX_THUMBNAIL_BYTES = (
    15_000  # a report with a thousand thumbnails can still be opened by a browser
)
_QUALITIES = (82, 70, 55, 40, 25, 10)
_DECODED_SIDE_PX = 2 * _MAX_SIDE_PX  # lets the JPEG decoder downscale; resizing stays smooth


@dataclass(frozen=True)
class _Thumbnail:
    """A JPEG with its size in pixels."""

    width: int
    height: int
    content: bytes

    @property
    def uri(self) -> str:
        return f"data:image/jpeg;base64,{b64encode(self.content).decode()}"


def write_html_report(
    path: Path,
    rows: Sequence[TriageRow],
    policy: Policy,
    created_at: datetime,
    t: Language = ENGLISH,
) -> None:
    """Writes the report in a language; images are read from the rows' paths, one at a time."""
    pieces = _report_html(rows, policy, created_at, t)
    with open_output(path, private=True) as file:
        file.writelines(pieces)


def _report_html(
    rows: Sequence[TriageRow], policy: Policy, created_at: datetime, t: Language
) -> Iterator[str]:
    """Yields the parts of a self-contained HTML page with the rows, the most urgent first."""
    t = t.with_messages(results.answer_texts(policy, t))
    ranked_rows = ranked(rows)
    first_rows, names = first_of_lesions(ranked_rows), dict[str, str]()
    for row in ranked_rows:
        if row.result is not None:
            names |= {code: t(name) for code, name in row.result.class_names.items()}
    short_names = {code: name.partition(" (")[0] for code, name in names.items()}
    by_name = sorted({row.name for row in ranked_rows}, key=lambda name: (name.casefold(), name))
    settings_counts = _counts_by_settings(ranked_rows)
    precision = next((settings.options.precision for settings in settings_counts), None)
    return (
        _environment(t)
        .get_template("report.html.j2")
        .generate(
            rows=ranked_rows,
            counts=counts_by_status(first_rows),
            lesions=len(first_rows),
            name_ranks={name: rank for rank, name in enumerate(by_name)},
            settings_counts=settings_counts,
            policy=policy,
            performance=performance(policy, policy.evidence_in(precision), t),
            notices=_notices_of(ranked_rows, policy, t),
            class_names=names,
            short_names=short_names,
            thumbnail_of=lambda row: _thumbnail_of(row.path),
            created_at=created_at.astimezone(UTC),
            style=_inline(_TOKENS, STYLE),
            script=_inline(SCRIPT),
        )
    )


def _describe_options(t: Language, options: Options, samples: int | Auto, passes: int) -> str:
    """Such as "stoch, 4 samples, balanced, 8 views, 8 passes, float32".

    `samples`: of the answer, or `auto` for answers with different numbers.
    """
    drawn = (
        t("as many samples as each image needed")
        if samples == AUTO
        else t.plural(samples, "{n} sample", "{n} samples")
    )
    parts = [
        options.mode,
        drawn if options.mode == "stoch" else "",
        t("balanced") if options.sampler == "balanced" else "",
        t.plural(options.views, "{n} view", "{n} views") if options.views > 1 else "",
        "" if samples == AUTO else t.plural(passes, "{n} pass", "{n} passes"),
        options.precision,
    ]
    return ", ".join(part for part in parts if part)


def _images_of_lesions(t: Language, images: int, lesions: int) -> str:
    """Such as "3 images", or "3 images of 2 lesions"."""
    shown = t.plural(images, "{n} image", "{n} images")
    if lesions == images:
        return shown
    return t.plural(lesions, "{images} of {n} lesion", "{images} of {n} lesions", images=shown)


def _environment(t: Language) -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE, _FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: (
            printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=t.percent,
        nats=lambda value: t.number(value, 3),
        capitalised=lambda text: text[:1].upper() + text[1:],
        class_name=lambda code, names: names.get(code, code),
        name_in=lambda code, result: t(result.name_of(code)),
    )
    environment.globals.update(
        STATUS_TITLES=STATUS_TITLES,
        describe_options=partial(_describe_options, t),
        of_lesions=partial(_images_of_lesions, t),
        images=lambda n: t.plural(n, "{n} image", "{n} images"),
        language=t,
        number=t.number,
        t=t.template_text,
        warnings=results.warning_texts(t),
        texts=results,
        class_bars=partial(_class_bars, t),
        entropy_split=_entropy_split,
        relative_distance=_relative_distance,
        sort_keys=_sort_keys,
    )
    return environment


def _inline(*names: str) -> dict[str, str]:
    """An inline style or script, and its hash for the page's Content-Security-Policy."""
    package = files("eulerlora_clinic")
    text = "".join(package.joinpath(name).read_text(encoding="utf-8") for name in names)
    digest = b64encode(sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "csp_source": f"'sha256-{digest}'"}


def _sort_keys(row: TriageRow, name_ranks: Mapping[str, int]) -> dict[str, float | None]:
    """The value that each column sorts a row by; None for a missing value."""
    figures = row.shown.figures
    return {
        "name": name_ranks[row.name],
        "urgency": row.urgency,
        "target": row.shown.target,
        "entropy": None if figures is None else figures.entropy,
        "mutual": None if figures is None else figures.mutual_information,
    }


def _counts_by_settings(rows: Sequence[TriageRow]) -> dict[_ModelSettings, int]:
    """The number of predictions per model and options, the most frequent first."""
    predictions = (row.result.prediction for row in rows if row.result is not None)
    counts = Counter(
        _ModelSettings(
            model=prediction.model,
            revision=prediction.revision,
            options=prediction.options,
            trajectories=0 if prediction.is_auto else prediction.trajectories,
        )
        for prediction in predictions
    )
    return dict(counts.most_common())


def _notices_of(rows: Sequence[TriageRow], policy: Policy, t: Language) -> list[str]:
    """Every notice of the rows once; without rows, what is not known about the policy."""
    if not rows:
        notice = results.not_established(policy, policy.evidence_in(), t=t)
        return [] if notice is None else [notice]
    return list(dict.fromkeys(notice for row in rows for notice in row.notices(t)))


_FULL = 100.0
_TOP, _SPREAD = 20.0, 60.0  # vertical range of points, so that none is cut off
_GOLDEN_RATIO = 0.618  # spreads points over their row, deterministically


@dataclass(frozen=True)
class _ClassBar:
    """One class: its probability as a bar, the probability of each trajectory as a point.

    Attributes:
        lowest: Over trajectories; None without them.
        highest: Likewise.
        points: SVG path data.
    """

    name: str
    in_target: bool
    probability: float
    lowest: float | None
    highest: float | None
    points: str

    @property
    def length(self) -> float:
        return round(_FULL * self.probability, 2)


@dataclass(frozen=True)
class _EntropySplit:
    """The entropy of the trajectories, relative to the maximum; at most 100 in sum.

    Attributes:
        expected: Within trajectories.
        mutual: Between trajectories.
    """

    expected: float
    mutual: float


def _class_bars(t: Language, result: TriageResult) -> tuple[_ClassBar, ...]:
    """A bar per class, the most probable first; ties are in the model's order."""
    prediction, target = result.prediction, result.target.classes
    trajectories = prediction.trajectory_probabilities or ()
    bars = []
    for index, (code, probability) in enumerate(prediction.probabilities.items()):
        values = [row[index] for row in trajectories]
        bar = _ClassBar(
            name=t(result.name_of(code)),
            in_target=code in target,
            probability=probability,
            lowest=min(values, default=None),
            highest=max(values, default=None),
            points=_points_path(values),
        )
        bars.append(bar)
    return tuple(sorted(bars, key=lambda bar: -bar.probability))


def _entropy_split(prediction: Prediction) -> _EntropySplit:
    """The two parts of the entropy of a prediction; 0 for a model of one class."""
    maximum = math.log(len(prediction.probabilities))
    if maximum == 0:
        return _EntropySplit(0.0, 0.0)
    expected = _percent(prediction.expected_entropy / maximum)
    mutual = min(_percent(prediction.mutual_information / maximum), _FULL - expected)
    return _EntropySplit(expected, round(mutual, 2))


def _relative_distance(distance: OodScore) -> float:
    """A score of at least 0 as a share of twice its threshold, at most 1."""
    if not distance.threshold:
        return 1.0
    return min(max(distance.value, 0.0) / (2 * distance.threshold), 1.0)


def _points_path(values: Sequence[float]) -> str:
    """SVG path data with one dot per value in [0, 1], to be stroked with round caps.

    The dots have different heights, so that dots of equal values do not overlap.
    """
    return "".join(
        f"M{_percent(value):g} {_TOP + _SPREAD * (_GOLDEN_RATIO * (index + 0.5) % 1):.4g}h0"
        for index, value in enumerate(values)
    )


def _percent(share: float) -> float:
    """In per cent, clamped: rounding may move a sum slightly out of [0, 1]."""
    return round(_FULL * min(max(share, 0.0), 1.0), 2)


def _thumbnail_of(path: Path) -> _Thumbnail | None:
    """An upright thumbnail in sRGB without metadata, at most 320 pixels per side and 15 kB.

    None for a file that cannot be decoded, for one outside the default limits of the service, and
    for anything that is not a regular file.
    """
    if not path.is_file():
        return None
    try:
        with catch_warnings(action="ignore"):
            small = rgb_image(path.read_bytes(), _DECODED_SIDE_PX)
            small.thumbnail((_MAX_SIDE_PX, _MAX_SIDE_PX), Image.Resampling.LANCZOS)
    except (ImageError, OSError):
        return None
    return _Thumbnail(small.width, small.height, _jpeg(small))


def _jpeg(image: Image.Image) -> bytes:
    """The highest quality that is small enough; noise needs the lowest."""
    content = b""
    for quality in _QUALITIES:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality, optimize=True)
        content = file.getvalue()
        if len(content) <= _MAX_THUMBNAIL_BYTES:
            break
    return content
