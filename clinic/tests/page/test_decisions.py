"""The page of a service with an audit log: accept, override with a reason, undo."""

import csv
from pathlib import Path

import pytest

from clinic.tests.audit_entries import verified
from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import fractal, lesion
from tests.browser import assert_accessible

pytestmark = pytest.mark.browser


def test_a_decision_is_recorded_and_undone_by_keyboard(go, audited, log: Path) -> None:
    with go(audited.url) as visit:
        visit.add(lesion("one.jpg"))
        visit.wait(1)
        (answer,) = visit.answers()
        title = answer["title"]
        visit.action(f"Accept {title}", "one.jpg").press("Enter")
        expect(visit.card("one.jpg").get_by_role("status")).to_have_text(f"Accepted: {title}.")
        expect(visit.action("Undo", "one.jpg")).to_be_focused()
        visit.page.keyboard.press("Enter")
        expect(visit.action("Accept", "one.jpg")).to_be_focused()
        visit.page.keyboard.press("Tab")
        visit.page.keyboard.press("Enter")
        expect(visit.page.get_by_label("Decide")).to_be_focused()
        visit.page.keyboard.press("Escape")
        expect(visit.action("Override", "one.jpg")).to_be_focused()
        visit.page.keyboard.press("Enter")
        _, *choice = visit.page.get_by_label("Decide").locator("option").all_inner_texts()
        assert title not in choice and "Unfamiliar" not in choice
        visit.page.keyboard.press("Tab")
        visit.page.keyboard.type("seen")
        visit.page.keyboard.press("Enter")  # without a choice
        expect(visit.page.get_by_label("Decide")).to_be_focused()
        expect(visit.page.get_by_label("Decide")).to_have_value("")
        visit.page.keyboard.press("ArrowDown")
        visit.page.get_by_label("Reason").fill("")
        visit.page.get_by_label("Reason").press("Enter")  # without a reason
        expect(visit.page.get_by_label("Reason")).to_be_focused()
        visit.page.keyboard.type(" ")
        visit.page.keyboard.press("Enter")
        expect(visit.page.get_by_label("Reason")).to_be_focused()
        visit.page.keyboard.insert_text("seen\nbefore")
        expect(visit.page.get_by_label("Reason")).to_have_value("seen\nbefore")
        visit.page.keyboard.press("Enter")
        words = f"Overridden: {choice[0]} instead of {title}. Seen before."
        expect(visit.card("one.jpg").get_by_role("status")).to_have_text(words)
        expect(visit.page.locator(".fault:not(:empty)")).to_have_count(0)
        written = verified(log)
    header, *records = written
    assert header["retention_months"] == 24
    made = [one["decision"] for one in records if one["kind"] == "decision"]
    assert made == [answer["disposition"], "undo", choice[0].lower()]
    assert records[-1]["reason"] == "seen before"


def test_an_overridden_image_is_listed_and_saved_with_what_a_person_chose(
    go, audited, tmp_path: Path
) -> None:
    with go(audited.url) as visit:
        page, summary = visit.page, visit.page.locator("#summary")
        visit.add(lesion("one.jpg"), lesion("other.jpg", "even"))
        visit.wait(2)
        suggested = {answer["title"] for answer in visit.answers()}
        assert len(suggested) == 2 and "Retake" not in suggested
        chosen = page.locator(".group[data-status=retake]")
        first, *_ = page.locator(".row-name").all_inner_texts()
        title = visit.row(first).locator(".pill").inner_text()
        page.get_by_role("radio", name=title).check()
        visit.action("Override", first).click()
        visit.card(first).get_by_label("Decide").select_option("retake")
        visit.card(first).get_by_label("Reason").fill("blurred")
        visit.card(first).get_by_label("Reason").press("Enter")
        expect(summary).to_contain_text("1 retake")
        expect(summary).not_to_contain_text(title.lower())
        expect(page.get_by_role("radio", name="Retake 1")).to_be_visible()
        expect(chosen.locator(".row-name")).to_have_text(first)
        expect(visit.row(first).locator(".pill")).to_have_text(title)
        expect(visit.action("Undo", first)).to_be_focused()
        with page.expect_download() as downloading:
            page.locator("#save-csv").click()
        downloading.value.save_as(tmp_path / "triage.csv")
        lines = (tmp_path / "triage.csv").read_text("utf-8-sig").splitlines()
        rows = {row["file"]: row for row in csv.DictReader(lines)}
        decided = {name: (row["decision"], row["reason"]) for name, row in rows.items()}
        assert decided == {first: ("retake", "blurred"), ({*rows} - {first}).pop(): ("", "")}
        assert rows[first]["disposition"] == title.lower()
        for name in rows:  # one lesion: its most urgent image is decided on
            visit.row(name).click()
            visit.card(name).get_by_label("Lesion").fill("L")
        page.keyboard.press("Tab")
        expect(summary).to_have_text("2 images of 1 lesion: 1 retake")
        visit.action("Undo", first).click()
        expect(summary).to_have_text(f"2 images of 1 lesion: 1 {title.lower()}")


def test_a_closed_row_can_be_decided_and_another_analysis_begins_anew(go, audited) -> None:
    with go(audited.url, width=390) as visit:
        visit.add(lesion("one.jpg"), lesion("two.jpg", "even"), fractal())
        visit.wait(3)
        visit.action("Accept", "fractal.png").click()
        expect(visit.card("fractal.png")).to_contain_text("Accepted: Unfamiliar.")
        expect(visit.row("fractal.png")).to_have_attribute("aria-expanded", "false")
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
        visit.page.get_by_text("Advanced: passes").click()
        visit.page.get_by_label("Allow settings without a threshold").check()
        visit.page.get_by_label("Passes of the model").select_option(index=1)
        visit.wait(3)
        expect(visit.action("Accept", "fractal.png")).to_be_visible()


def test_a_refused_decision_says_why(go, audited) -> None:
    problem = {
        "code": "audit_unavailable",
        "title": "The audit log cannot be written",
        "detail": "x",
    }
    with go(audited.url) as visit:
        visit.page.route("**/decisions", lambda route: route.fulfill(status=503, json=problem))
        visit.add(lesion("one.jpg"))
        visit.wait(1)
        visit.action("Accept", "one.jpg").click()
        expect(visit.card("one.jpg").get_by_role("alert")).to_have_text(
            "The audit log cannot be written: X."
        )
        expect(visit.action("Accept", "one.jpg")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_form_of_an_override_is_accessible(go, audited, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with go(audited.url, width=width) as visit:
        visit.add(lesion("one.jpg"))
        visit.wait(1)
        visit.action("Override", "one.jpg").click()
        assert_accessible(axe, visit.page)


def test_a_service_without_an_audit_log_offers_no_decisions(go) -> None:
    with go() as visit:
        visit.add(lesion("one.jpg"))
        visit.wait(1)
        expect(visit.page.get_by_role("button", name="Accept")).to_have_count(0)
