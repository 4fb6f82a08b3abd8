"""Report, CSV, JSON and print of the page in a browser."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.service.page.browser import expect
from tests.service.page.lesions import EVEN, broken, lesion

pytestmark = pytest.mark.browser

FILES = ("lesion.jpg", "dark.jpg", "broken.jpg")


@pytest.fixture
def three(go: Any) -> Any:
    """A visit with two results and a problem."""
    with go() as visit:
        visit.add(lesion("lesion.jpg"), lesion("dark.jpg", EVEN), broken("broken.jpg"))
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


def test_the_report_is_that_of_the_command_line_and_works_offline(three, browser, tmp_path) -> None:
    file = download(three, "Save report", tmp_path)
    assert file.name == "triage.html"
    context = browser.new_context(offline=True)
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", name="Triage report")).to_be_visible()
    for name in FILES:
        expect(page.get_by_text(name)).to_be_visible()
    for answer in three.answers():
        expect(page.get_by_text(answer["prediction"]["request_id"])).to_have_count(1)
    expect(page.locator("img.thumbnail")).to_have_count(2)
    assert not [url for url in requests if url.startswith("http")]
    context.close()


def test_the_csv_has_a_row_for_every_image_in_the_order_of_the_list(three, tmp_path) -> None:
    file = download(three, "CSV", tmp_path)
    assert file.name == "triage.csv"
    rows = list(csv.DictReader(file.open(newline="", encoding="utf-8-sig")))
    assert [row["file"] for row in rows] == three.page.locator(".row-name").all_inner_texts()
    problems = [row for row in rows if row["problem"]]
    assert [(row["file"], row["problem"]) for row in problems] == [("broken.jpg", "unusable_image")]
    seeds = {str(answer["prediction"]["seed"]) for answer in three.answers()}
    assert {row["seed"] for row in rows if row["seed"]} == seeds


@pytest.mark.parametrize(("button", "name"), [("Save report", "html"), ("CSV", "csv")])
def test_names_identifiers_and_notes_are_in_the_report_and_never_sent(
    three, tmp_path, button, name
) -> None:
    values = {"Identifier": "=Jane", "Note": '<b>"left"</b> \u202earm', "Lesion": "<i>mole</i>"}
    three.row("lesion.jpg").click()
    for label, value in values.items():
        three.card("lesion.jpg").get_by_label(label, exact=True).fill(value)
    sent: list[bytes] = []
    three.page.on("request", lambda request: sent.append(request.post_data_buffer or b""))
    content = download(three, button, tmp_path).read_text(encoding="utf-8")
    private = (b"Jane", b"left", b"mole", b"lesion.jpg")
    assert all(word not in body for body in sent for word in private)
    if name == "csv":
        lines = content.removeprefix("\ufeff").splitlines()
        assert lines[0] in content[1:]  # after a byte order mark
        (row,) = (row for row in csv.DictReader(lines) if row["file"] == "lesion.jpg")
        assert (row["identifier"], row["note"]) == ("'=Jane", '<b>"left"</b> \\u202earm')
        assert (row["lesion"], bool(row["lesion_disposition"])) == ("<i>mole</i>", True)
    else:
        assert "Lesion <bdi>&lt;i&gt;mole&lt;/i&gt;</bdi>, 1 image: " in content
        assert '<span class="identifier">=Jane</span>' in content
        assert '<span class="remark">&lt;b&gt;"left"&lt;/b&gt; \\u202earm</span>' in content
    assert "image-000" not in content


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
        visit.add(lesion("one.jpg"), lesion("two.jpg", EVEN))
        expect(page.locator("article[aria-busy=false]")).to_have_count(1)
        file = download(visit, "CSV", tmp_path)
        rows = csv.DictReader(file.open(newline="", encoding="utf-8-sig"))
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


def test_a_failed_report_is_explained_beside_the_button(three) -> None:
    body = json.dumps({"code": "overloaded", "title": "The server is busy", "detail": "one report"})
    three.page.route("**/triage/report?*", lambda route: route.fulfill(status=503, body=body))
    three.page.get_by_role("button", name="Save report").click()
    expect(three.page.get_by_text("The server is busy: One report.")).to_be_visible()


@pytest.mark.parametrize("button", ["Save report", "CSV"])
def test_a_key_that_is_no_longer_accepted_is_asked_for(three, button) -> None:
    body = json.dumps({"code": "not_authenticated", "title": "An API key is required"})
    three.page.route("**/triage/report?*", lambda route: route.fulfill(status=401, body=body))
    three.page.get_by_role("button", name=button, exact=True).click()
    expect(three.page.get_by_label("This server requires an API key")).to_be_focused()


def test_the_print_has_all_rows_their_reasons_and_origin_but_no_controls(three) -> None:
    page = three.page
    page.evaluate("window.print = () => dispatchEvent(new Event('beforeprint'))")
    page.get_by_role("button", name="Print").click()
    page.emulate_media(media="print")
    for name in FILES:
        expect(three.row(name)).to_be_visible()
    expect(page.get_by_text("For demonstration and research only; not a")).to_be_visible()
    revision = three.answers()[0]["prediction"]["revision"]
    expect(page.locator("#printed")).to_contain_text(revision)
    expect(page.locator("#printed")).to_contain_text("policy version")
    for selector in ("#intake", "#tools", "#filters", "#about", ".row-arrow"):
        expect(page.locator(selector).first).to_be_hidden()
    assert len(page.pdf()) > 10_000
