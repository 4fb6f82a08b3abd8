"""CSV, JSON and print of the page in a browser."""

import csv
import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import broken, lesion
from eulerlora_clinic.policy.policy import default_policy
from eulerlora_clinic.report.exports import Outputs
from eulerlora_clinic.report.ranking import RowProblem, TriageRow
from eulerlora_contract.answers import TriageResult

pytestmark = pytest.mark.browser

FILES = ("lesion.jpg", "dark.jpg", "broken.jpg")


@pytest.fixture
def three(go: Any) -> Any:
    """A visit with two results and a problem."""
    with go() as visit:
        visit.add(lesion("lesion.jpg"), lesion("dark.jpg", "even"), broken("broken.jpg"))
        visit.wait(3)
        yield visit


def download(visit: Any, button: str, folder: Path) -> Path:
    with visit.page.expect_download() as downloading:
        visit.page.get_by_role("button", name=button, exact=True).click()
    file = folder / downloading.value.suggested_filename
    downloading.value.save_as(file)
    return file


def problems_copied(page: Any) -> list[str]:
    """The codes of the problems in the copied JSON; "" for a result."""
    page.evaluate("navigator.clipboard.writeText('')")
    page.locator("#copy-json").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()) !== ''")
    entries = json.loads(page.evaluate("navigator.clipboard.readText()"))
    return [one["problem"]["code"] if one["problem"] else "" for one in entries]


def test_the_csv_has_a_row_for_every_image_in_the_order_of_the_list(three, tmp_path) -> None:
    file = download(three, "CSV", tmp_path)
    assert file.name == "triage.csv"
    rows = read(file)
    assert [row["file"] for row in rows] == three.page.locator(".row-name").all_inner_texts()
    problems = [row for row in rows if row["problem"]]
    assert [(row["file"], row["problem"]) for row in problems] == [("broken.jpg", "unusable_image")]
    seeds = {str(answer["prediction"]["seed"]) for answer in three.answers()}
    assert {row["seed"] for row in rows if row["seed"]} == seeds


def test_the_csv_is_that_of_the_command_line(go, tmp_path) -> None:
    def dispose(answer: dict[str, Any]) -> None:
        answer["prediction"]["unfamiliar"] = len(answers) == 1
        answer["disposition"] = ("urgent", "unfamiliar", "routine")[len(answers)]
        answer["prediction"] |= {"ood": None, "ood_threshold": None}
        answers.append(answer)

    answers: list[dict[str, Any]] = []
    names = ("a.jpg", "b.jpg", "=c.jpg", "d.jpg")
    with go() as visit:
        visit.change_answers(dispose)
        for number, name in enumerate(names[:3], 1):
            visit.add(lesion(name, "even" if number == 2 else "irregular"))
            visit.wait(number)
        visit.add(broken("d.jpg"))
        visit.wait(4)
        for name in names[2:]:
            visit.row(name).click()
            visit.card(name).get_by_label("Lesion", exact=True).fill("left arm")
        file = download(visit, "CSV", tmp_path)
        (refused,) = (one.json() for one in visit.responses if one.status == 422)
    problem = RowProblem(refused["code"], f"{refused['title']}: {refused['detail']}")
    results = [TriageResult(**answer) for answer in answers]
    rows = [TriageRow(Path(name), result) for name, result in zip(names, results, strict=False)]
    rows.append(TriageRow(Path("d.jpg"), problem=problem))
    rows[2:] = [replace(row, lesion="left arm") for row in rows[2:]]
    Outputs(tmp_path / "rows.csv", None, None).write(rows, default_policy())
    expected, written = read(tmp_path / "rows.csv"), read(file)
    of_page = ["identifier", "note", "decision", "reason"]
    assert [*written[0]] == ["file", *of_page, *[*expected[0]][1:]]
    for row in expected:
        (same,) = (one for one in written if one["file"] == row["file"])
        for column, text in row.items():
            assert same[column] == text or float(same[column]) == float(text), column


def read(file: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(file.open(newline="", encoding="utf-8-sig"))]


def test_names_identifiers_and_notes_are_in_the_csv_and_nothing_is_sent(three, tmp_path) -> None:
    values = {"Identifier": "=Jane", "Note": '<b>"left"</b> \u202earm', "Lesion": "<i>mole</i>"}
    three.row("lesion.jpg").click()
    for label, value in values.items():
        three.card("lesion.jpg").get_by_label(label, exact=True).fill(value)
    sent: list[str] = []
    three.page.on("request", lambda request: sent.append(request.url))
    file = download(three, "CSV", tmp_path)
    assert not [url for url in sent if url.startswith("http")]
    assert file.read_text(encoding="utf-8").startswith("\ufefffile,identifier,note,decision,")
    (row,) = (row for row in read(file) if row["file"] == "lesion.jpg")
    assert (row["identifier"], row["note"]) == ("'=Jane", '<b>"left"</b> \\u202earm')
    assert (row["lesion"], bool(row["lesion_disposition"])) == ("<i>mole</i>", True)


def test_the_json_is_the_answer_of_the_service_with_the_file_name(three) -> None:
    three.page.get_by_role("button", name="Copy as JSON").click()
    expect(three.page.get_by_role("button", name="Copied")).to_be_visible()
    copied = json.loads(three.page.evaluate("navigator.clipboard.readText()"))
    added = ("file", "identifier", "note", "lesion", "problem")
    answers = [{key: one[key] for key in one if key not in added} for one in copied]
    assert sorted(one["file"] for one in copied) == sorted(FILES)
    for answer in three.answers():
        assert answer in answers
    (problem,) = (one["problem"] for one in copied if one["problem"])
    assert problem["code"] == "unusable_image"


def test_an_image_without_its_result_yet_is_not_assessed_in_what_is_saved(go, tmp_path) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    def hold_first(route: Any) -> None:
        if held:
            route.fallback()
        else:
            hold(route)

    with go() as visit:
        page = visit.page
        routine = {"disposition": "routine", "title": "Routine", "reasons": []}
        visit.change_answers(lambda answer: answer.update(routine))
        page.route("**/triage?*", hold_first)
        page.get_by_label("Images that are added together").check()
        visit.add(lesion("one.jpg"), lesion("two.jpg", "even"))
        expect(page.locator("article[aria-busy=false]")).to_have_count(1)
        file = download(visit, "CSV", tmp_path)
        rows = read(file)
        keys = ("problem", "disposition", "lesion_disposition")
        expected = [("", "routine", ""), ("not_asked", "", "")]
        assert sorted(tuple(row[key] for key in keys) for row in rows) == expected
        assert sorted(problems_copied(page)) == ["", "not_asked"]
        held[0].fallback()
        visit.wait(2)
        assert problems_copied(page) == ["", ""]
        page.route("**/triage?*", hold)
        page.locator("#passes").dispatch_event("change")
        expect(page.locator("article[aria-busy=true]")).to_have_count(2)
        assert problems_copied(page) == ["not_asked"] * 2
        for route in held[1:]:
            route.fallback()
        visit.wait(2)


def test_the_print_has_all_rows_their_reasons_and_origin_but_no_controls(three) -> None:
    page = three.page
    for name in FILES:
        three.row(name).click()
        three.card(name).get_by_label("Note", exact=True).fill(f"written on {name}")
    three.row("broken.jpg").click()  # its card is closed
    for name in FILES[:2]:
        three.card(name).get_by_label("Lesion", exact=True).fill("left arm")
    page.keyboard.press("Tab")
    expect(page.get_by_text("1 more image of lesion left arm")).to_be_visible()
    page.evaluate("window.print = () => dispatchEvent(new Event('beforeprint'))")
    page.get_by_role("button", name="Print").click()
    page.emulate_media(media="print")
    for name in FILES:
        expect(three.row(name)).to_be_visible()
        expect(three.card(name).get_by_text(f"Note: written on {name}")).to_be_visible()
    expect(page.get_by_text("For demonstration and research only; not a")).to_be_visible()
    revision = three.answers()[0]["prediction"]["revision"]
    expect(page.locator("#printed")).to_contain_text(revision)
    expect(page.locator("#printed")).to_contain_text("policy version")
    for name in FILES[:2]:
        picture = three.card(name).locator("img:visible")
        assert picture.evaluate("one => one.getBoundingClientRect().width") >= 60 / 25.4 * 96
    for selector in ("#intake", "#tools", "#filters", "#about", ".row-arrow"):
        expect(page.locator(selector).first).to_be_hidden()
    pypdf = pytest.importorskip("pypdf")
    pages = pypdf.PdfReader(BytesIO(page.pdf())).pages
    printed = " ".join(part.extract_text() for part in pages)
    assert [name for name in FILES if f"written on {name}" not in printed] == []
