"""The list of many images in a browser: order, groups, filter, progress."""

import re
from collections import Counter
from typing import Any

import pytest

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import broken, fractal, lesion, lesion_file, upload
from tests.browser import TIMEOUT_MS

pytestmark = pytest.mark.browser

DISPOSITIONS = ("routine", "refer", "retake", "unfamiliar", "urgent")
STATES = "[...document.querySelectorAll('.group:not([hidden])')].map((one) => one.dataset.state)"


def decided(dispositions: list[str]) -> Any:
    """Changes answers to these dispositions."""

    def change(answer: dict[str, Any]) -> None:
        name = answer["disposition"] = dispositions.pop()
        answer["title"] = name.capitalize()
        answer["target"]["probability"] = 0.9 if name == "urgent" else 0.001

    return change


def test_images_are_grouped_by_disposition_in_order_of_urgency(go) -> None:
    with go() as visit:
        page = visit.page
        visit.change_answers(decided(list(DISPOSITIONS)))
        visit.add(*(lesion(f"{number}.jpg") for number in range(5)), broken("broken.jpg"))
        visit.wait(6)
        assert page.evaluate(STATES) == [
            "urgent", "unfamiliar", "refer", "retake", "problem", "routine",
        ]  # fmt: skip
        groups = page.locator(".group:visible")
        expect(groups.nth(0)).to_contain_text("Urgent 1")
        expect(groups.nth(1)).to_contain_text("does not know such images")
        expect(groups.nth(4)).to_contain_text("broken.jpg")
        expect(page.locator("#summary")).to_have_text(
            "6 images: 1 urgent, 1 unfamiliar, 1 refer, 1 retake, 1 routine, 1 not assessed"
        )


def test_a_row_has_image_disposition_probability_quality_and_name(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"), lesion("dark.jpg", "even"), fractal())
        visit.wait(3)
        by_seed = Counter(answer["disposition"] for answer in visit.answers())
        for state, number in by_seed.items():
            rows = visit.page.locator(f"article[data-state={state}] .row")
            expect(rows).to_have_count(number)
            for row in rows.all():
                expect(row.locator("img")).to_have_count(1)
                expect(row.locator(".pill")).to_have_text(state.capitalize())
                if row.locator(".label").count():  # an unfamiliar image has no figures
                    expect(row.locator(".label")).to_contain_text("looks like")
                    expect(row.locator(".target")).to_contain_text("malignant, ")
                    expect(row).to_contain_text(re.compile("(routine|urgent) line"))
                    expect(row).to_contain_text("passes")
        fractals = visit.row("fractal.png")
        expect(fractals).not_to_contain_text("%")
        text, row = (
            part.bounding_box()["width"] for part in (fractals.locator(".row-text"), fractals)
        )
        assert text > row / 2  # no room for figures


def test_a_list_notes_few_pixels_and_repeated_files_and_warns_and_is_announced_once(go) -> None:
    small = upload("small.jpg", lesion_file(width=200, height=150))
    with go() as visit:
        visit.add(lesion("first.jpg"), small, lesion("other.jpg", "even"), lesion("again.jpg"))
        visit.wait(4)
        expect(visit.row("small.jpg")).to_contain_text("few pixels quality")
        expect(visit.card("small.jpg")).to_contain_text("the shorter side has fewer than 300")
        expect(visit.row("first.jpg")).not_to_contain_text("quality")
        words = "The same file as first.jpg."
        expect(visit.row("again.jpg")).to_contain_text(words)
        expect(visit.page.locator(".row-note", has_text=words)).to_have_count(1)
        announced = visit.page.locator("#announcements p")
        expect(announced).to_have_count(1, timeout=TIMEOUT_MS)
        expect(announced).to_contain_text("4 images: ")
        visit.page.get_by_role("button", name="Open all").click()
        warnings = visit.page.get_by_text("For demonstration and research only; not a medical")
        expect(warnings).to_have_count(1)
        expect(warnings).to_be_visible()


def test_a_picture_can_be_enlarged(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        visit.page.get_by_role("button", name="Enlarge lesion.jpg").click()
        picture = visit.page.get_by_role("dialog").get_by_role("img")
        width = "element => element.complete && element.naturalWidth"
        expect(picture).to_be_visible()
        assert picture.evaluate("element => element.decode()") is None
        assert picture.evaluate(width) == 400  # the file, not the preview
        visit.page.get_by_role("button", name="Full size").click()
        expect(picture).to_have_class("full")
        visit.page.keyboard.press("Escape")
        expect(picture).to_have_count(0)
        expect(visit.page.get_by_role("button", name="Enlarge lesion.jpg")).to_be_focused()
        assert visit.page.evaluate("livingBlobUrls()") == 0


def test_a_new_result_is_scrolled_into_view_on_a_narrow_screen(go) -> None:
    with go(width=390) as visit:
        visit.page.locator("[data-example='example-even.jpg']").click()
        visit.wait(1)
        expect(visit.row("example-even.jpg")).to_be_in_viewport()


def test_cards_are_closed_in_a_list_and_open_from_it(go) -> None:
    with go() as visit:
        visit.add(lesion("one.jpg"))
        visit.wait(1)
        expect(visit.card("one.jpg").locator(".statements")).to_be_visible()  # alone: open
        visit.add(lesion("two.jpg", "even"))
        visit.wait(2)
        expect(visit.card("one.jpg").locator(".statements")).to_be_hidden()
        visit.row("two.jpg").click()
        expect(visit.row("two.jpg")).to_have_attribute("aria-expanded", "true")
        expect(visit.card("two.jpg").locator(".statements")).to_be_visible()
        visit.add(lesion("three.jpg", "even, turned"))
        visit.wait(3)
        expect(visit.card("two.jpg").locator(".statements")).to_be_visible()  # stays as chosen
        visit.page.get_by_role("button", name="Open all").click()
        expect(visit.page.locator(".card:visible")).to_have_count(3)
        visit.page.get_by_role("button", name="Open all").click()
        expect(visit.page.locator(".card:visible")).to_have_count(0)


def test_a_filter_shows_one_disposition(go) -> None:
    with go() as visit:
        page = visit.page
        visit.change_answers(decided(["routine", "urgent", "urgent"]))
        visit.add(*(lesion(f"{number}.jpg") for number in range(3)), broken("broken.jpg"))
        visit.wait(4)
        page.get_by_role("radio", name="Urgent 2").check()
        expect(page.locator("article:visible")).to_have_count(2)
        page.get_by_role("radio", name="Urgent 2").press("ArrowRight")
        expect(page.get_by_role("radio", name="Routine 1")).to_be_checked()
        expect(page.locator("article:visible")).to_have_count(1)
        page.get_by_role("radio", name="All 4").check()
        expect(page.locator("article:visible")).to_have_count(4)


def test_the_progress_is_counted(go) -> None:
    held: list[Any] = []
    free: list[Any] = []

    def hold(route: Any) -> None:
        if free:
            free.pop()
            route.continue_()
        else:
            held.append(route)

    with go() as visit:
        page = visit.page
        progress = page.locator("#progress")
        free += [True] * 3
        page.route("**/triage?*", hold)
        visit.add(*(lesion(f"{number}.jpg") for number in range(6)))
        expect(progress).to_contain_text("3 of 6 images done")
        expect(progress.get_by_role("progressbar")).to_have_attribute("value", "3")
        expect(page.locator(".row-note", has_text="Analysing")).to_have_count(2)
        expect(page.locator(".row-note", has_text="Waiting")).to_have_count(1)
        assert len(held) == 2
        free += [True] * 6
        for route in held:
            route.continue_()
        visit.wait(6)
        expect(progress).to_be_hidden()


def test_images_can_be_removed_one_by_one_and_all(go) -> None:
    with go() as visit:
        page = visit.page
        visit.change_answers(decided(["routine", "refer", "urgent"]))
        visit.add(lesion("a.jpg"), lesion("b.jpg", "even"), lesion("c.jpg", "even, turned"))
        visit.wait(3)
        first, second = (page.locator("article .row-name").nth(n).inner_text() for n in (0, 1))
        visit.row(first).click()
        page.get_by_role("button", name=f"Remove {first}").click()
        expect(visit.card(first)).to_have_count(0)
        expect(visit.row(second)).to_be_focused()
        expect(page.locator("#summary")).to_contain_text("2 images: ")
        visit.row(second).click()
        visit.card(second).get_by_label("Identifier").fill("Patient 7")
        names = page.locator(".row-name").all_inner_texts()
        page.get_by_role("button", name="Remove all").click()
        expect(page.locator("article")).to_have_count(0)
        expect(page.get_by_text("2 images removed.")).to_be_visible()
        expect(page.get_by_role("button", name="Undo")).to_be_focused()
        page.keyboard.press("Enter")
        visit.wait(2)
        assert page.locator(".row-name").all_inner_texts() == names
        expect(visit.row(second)).to_contain_text("Patient 7")
        expect(page.get_by_role("button", name="Undo")).to_be_hidden()


def test_a_row_keeps_the_focus_when_the_list_is_sorted_again(go) -> None:
    with go() as visit:
        page = visit.page
        visit.change_answers(decided(["urgent", "urgent", "routine"]))
        visit.add(lesion("first.jpg"))
        visit.wait(1)
        visit.row("first.jpg").focus()
        visit.add(lesion("a.jpg", "even"), lesion("b.jpg", "even, turned"))
        visit.wait(3)
        expect(page.locator("article").last).to_contain_text("first.jpg")
        expect(visit.row("first.jpg")).to_be_focused()


def test_a_lesion_with_an_image_in_progress_is_not_routine(go) -> None:
    held: list[Any] = []

    def hold_first(route: Any) -> None:
        if held:
            route.fallback()
        else:
            held.append(route)

    with go() as visit:
        page = visit.page
        visit.change_answers(decided(["routine", "routine"]))
        page.route("**/triage?*", hold_first)
        page.locator("#one-lesion").check()
        visit.add(lesion("a.jpg"), lesion("b.jpg", "even"))
        expect(page.locator("article[aria-busy=false]")).to_have_count(1)
        expect(page.locator("#summary")).to_have_text("2 images of 1 lesion: 1 in progress")
        assert page.evaluate(STATES) == ["pending"]
        held[0].fallback()
        visit.wait(2)
        expect(page.locator("#summary")).to_have_text("2 images of 1 lesion: 1 routine")


@pytest.mark.parametrize("name", ["b.jpg", "c.jpg"], ids=["of another image", "of the same image"])
def test_a_lesion_can_be_typed_while_a_result_arrives(go, name) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    with go() as visit:
        page = visit.page
        visit.change_answers(decided(["routine"] * 3))
        visit.add(lesion("a.jpg"), lesion("b.jpg", "even"))
        visit.wait(2)
        visit.row("a.jpg").click()
        visit.card("a.jpg").get_by_label("Lesion").fill("L1")
        page.keyboard.press("Tab")
        page.route("**/triage?*", hold)
        visit.add(lesion("c.jpg", "even, turned"))
        visit.row(name).click()
        field = visit.card(name).get_by_label("Lesion")
        field.click()
        page.keyboard.type("L1")
        while not held:
            page.wait_for_timeout(100)
        held[0].fallback()
        visit.wait(3)
        page.keyboard.type("2")
        page.keyboard.press("Tab")
        expect(field).to_have_value("L12")
        expect(page.locator("#summary")).to_have_text("3 images: 3 routine")


def test_images_that_undo_brings_back_are_of_another_lesion_than_new_ones(go) -> None:
    with go() as visit:
        page = visit.page
        page.locator("#one-lesion").check()
        visit.add(lesion("a.jpg"), lesion("b.jpg", "even"))
        visit.wait(2)
        page.get_by_role("button", name="Remove all").click()
        visit.add(lesion("c.jpg"), lesion("d.jpg", "even"))
        visit.wait(2)
        page.get_by_role("button", name="Undo").click()
        visit.wait(4)
        expect(page.locator("#summary")).to_contain_text("4 images of 2 lesions: ")


def test_images_of_a_lesion_are_one_row_with_the_most_urgent_of_them(go) -> None:
    with go() as visit:
        page = visit.page
        summary, together = page.locator("#summary"), page.locator("#one-lesion")
        visit.change_answers(decided(["routine", "routine", "routine", "urgent", "routine"]))
        together.check()
        visit.add(lesion("a.jpg"), lesion("b.jpg", "even"), lesion("c.jpg", "even, turned"))
        visit.wait(3)
        expect(summary).to_have_text("3 images of 1 lesion: 1 urgent")
        assert page.evaluate(STATES) == ["urgent"]
        expect(page.get_by_text("2 more images of lesion L1: 2 routine")).to_be_visible()
        expect(page.locator("details.lesion:not([hidden])")).to_have_count(1)
        expect(page.locator("article:visible")).to_have_count(1)
        together.uncheck()
        visit.add(lesion("alone.jpg"))
        visit.wait(4)
        expect(summary).to_have_text("4 images of 2 lesions: 1 urgent, 1 routine")
        visit.row("alone.jpg").click()
        field = visit.card("alone.jpg").get_by_label("Lesion")
        field.fill("L1")
        field.press("Tab")
        expect(summary).to_have_text("4 images of 1 lesion: 1 urgent")
        together.check()
        visit.add(lesion("d.jpg"), broken("broken.jpg"))
        visit.wait(6)
        expect(summary).to_have_text("6 images of 2 lesions: 1 urgent, 1 not assessed")
        expect(page.get_by_text("1 more image of lesion L2: 1 routine")).to_be_visible()
