"""The page in a browser, before a running server: what a person does with it."""

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from eulerlora.checkpoint import read_config
from eulerlora_client.policy.wording import WARNING
from service.commands import EMBEDDED
from tests.browser import serious
from tests.service.page.browser import expect, screenshot
from tests.service.page.lesions import DARK, SMALL, broken, lesion, upload

pytestmark = pytest.mark.browser

CONFIG = read_config(EMBEDDED)
POINTS = len(CONFIG.classes) * CONFIG.adapters.settings.adapters  # of one sample
BARS = "What it resembles"
COUNTED = {
    "urgent": "to prioritise",
    "refer": "to refer for review",
    "retake": "to take again",
    "routine": "routine",
}


def test_one_picture_gets_a_disposition_first_and_then_what_it_rests_on(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"))
        card = visit.card("lesion.jpg")
        expect(card.locator("circle.point")).to_have_count(4 * POINTS)
        (answer,) = visit.answers()
        words = card.inner_text()
        reasons = [each["words"] for each in answer["reasons"]]
        shown = [answer["title"], answer["pathway"], *reasons, BARS, "How unsure", "How familiar"]
        assert [words.index(each) for each in shown] == sorted(map(words.index, shown))
        assert f"Expected entropy {answer['prediction']['expected_entropy']:.2f}" in words
        assert f"Mutual information {answer['prediction']['mutual_information']:.2f}" in words
        expect(card.get_by_text(WARNING)).to_be_visible()
        log = visit.page.locator("#announcements")
        expect(log).to_contain_text(f"lesion.jpg: {answer['title']}.")
        assert visit.page.evaluate("livingBlobUrls()") == 0


def test_the_warning_stays_in_sight_wherever_one_is_in_a_card(go) -> None:
    with go(width=390) as visit:
        visit.add(lesion("lesion.jpg"))
        card = visit.card("lesion.jpg")
        expect(card.locator("circle.point")).to_have_count(4 * POINTS)
        warning = card.get_by_text(WARNING)
        for place in (".verdict-title", ".class-chart", ".scales", ".origin"):
            card.locator(place).evaluate("each => each.scrollIntoView({block: 'center'})")
            expect(warning).to_be_in_viewport(ratio=1)


def test_three_pictures_are_summed_up_and_can_be_removed(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"), lesion("dark.jpg", DARK), lesion("small.jpg", SMALL))
        summary = visit.page.locator("#summary")
        expect(visit.page.get_by_text(BARS)).to_have_count(3)
        found = Counter(each["disposition"] for each in visit.answers())
        counts = [f"{found[name]} {words}" for name, words in COUNTED.items() if found[name]]
        expect(summary).to_have_text(f"3 pictures: {', '.join(counts)}")
        visit.page.get_by_role("button", name="Remove dark.jpg").click()
        expect(summary).to_contain_text("2 pictures: ")
        expect(visit.page.get_by_role("heading", name="small.jpg")).to_be_focused()


def test_several_pictures_are_listed_in_the_order_of_their_urgency(go) -> None:
    left = ["routine", "refer", "retake", "urgent"]

    def decide(route: Any) -> None:
        response = route.fetch()
        if not response.ok:
            route.fulfill(response=response)
            return
        answer = response.json()
        answer["disposition"] = left.pop()
        answer["malignant"]["probability"] = float(answer["disposition"] == "retake")
        route.fulfill(response=response, json=answer)

    with go() as visit:
        visit.page.route("**/triage?*", decide)
        order = visit.page.get_by_role("navigation", name="In the order of their urgency")
        visit.add(lesion("1.jpg"))
        expect(visit.card("1.jpg")).to_contain_text(BARS)
        expect(order).to_be_hidden()
        visit.add(*(lesion(f"{number}.jpg") for number in (2, 3, 4)), broken("broken.jpg"))
        links = order.get_by_role("link")
        expect(links).to_have_count(5)
        states = [link.get_attribute("data-state") for link in links.all()]
        assert states == ["urgent", "retake", "refer", "problem", "routine"]
        expect(links.nth(3)).to_have_text("Not assessed broken.jpg")
        links.nth(3).press("Enter")
        expect(visit.page.get_by_role("heading", name="broken.jpg")).to_be_focused()


def test_a_broken_file_says_why_and_hurts_no_other(go, images) -> None:
    text = upload("notes.jpg", b"not a picture at all")
    with go() as visit:
        visit.add(broken("broken.jpg"), text, lesion("good.jpg"))
        expect(visit.card("broken.jpg")).to_contain_text("The JPEG data is broken or truncated.")
        expect(visit.card("notes.jpg")).to_contain_text(
            "wanted a JPEG, PNG or WebP", ignore_case=True
        )
        expect(visit.card("notes.jpg")).to_contain_text("No preview")
        expect(visit.card("good.jpg")).to_contain_text(BARS)
        assert WARNING not in visit.card("broken.jpg").inner_text()
        screenshot(visit.page, images / "page-problems.png", last="li:nth-child(3) .verdict")
        retry = visit.page.get_by_role("button", name="Retry all 2 without an answer")
        retry.click()
        expect(retry).to_be_visible()  # asked again, they are as broken as before


def test_the_switch_asks_again_about_the_same_picture(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"))
        card = visit.card("lesion.jpg")
        expect(card.locator("circle.point")).to_have_count(4 * POINTS)
        visit.page.get_by_label("Samples per adapter").select_option("2")
        expect(card.locator("circle.point")).to_have_count(2 * POINTS)
        visit.page.get_by_role("radio", name="Fixed").check()
        expect(card.locator("circle.point")).to_have_count(POINTS)
        expect(visit.page.get_by_label("Samples per adapter")).to_be_hidden()
        asked = [url.partition("?")[2] for url in visit.requests if "/triage" in url]
        assert asked == [
            "mode=stoch&model=ham10000&samples=4",
            "mode=stoch&model=ham10000&samples=2",
            "mode=det&model=ham10000",
        ]


def file_chooser(page: Any) -> Any:
    """What a press of the space bar opens; Chromium forgets one that the page is slow to follow."""
    from playwright.sync_api import TimeoutError as TooSlow  # noqa: PLC0415 - may be missing

    for _ in range(5):
        with suppress(TooSlow), page.expect_file_chooser(timeout=10_000) as choosing:
            page.keyboard.press("Space")
            return choosing.value
    pytest.fail("the space bar opens no file chooser")


def test_everything_can_be_done_with_the_keyboard_alone(go) -> None:
    with go() as visit:
        keyboard, page = visit.page.keyboard, visit.page
        expect(page.locator("#samples option")).to_have_count(8)
        keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the results")).to_be_focused()
        keyboard.press("Tab")
        expect(page.get_by_role("button", name="About the model")).to_be_focused()
        keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Intended use")
        expect(dialog).to_contain_text("melanocytic nevus")
        keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(page.get_by_role("button", name="About the model")).to_be_focused()
        keyboard.press("Tab")
        expect(page.get_by_role("button", name="Choose pictures")).to_be_focused()
        chooser = file_chooser(page)
        chooser.set_files([lesion("lesion.jpg")])
        card = visit.card("lesion.jpg")
        expect(card.locator("circle.point")).to_have_count(4 * POINTS)
        keyboard.press("Tab")
        expect(page.get_by_role("radio", name="Sampled")).to_be_focused()
        keyboard.press("ArrowRight")
        expect(card.locator("circle.point")).to_have_count(POINTS)
        for _ in range(2):  # past the choice of a model
            keyboard.press("Tab")
        expect(page.get_by_role("button", name="Remove lesion.jpg")).to_be_focused()
        keyboard.press("Tab")
        keyboard.press("Enter")
        expect(card.get_by_role("table")).to_be_visible()
        keyboard.press("Shift+Tab")
        keyboard.press("Space")
        expect(page.locator(".card")).to_have_count(0)
        expect(page.get_by_role("button", name="Choose pictures")).to_be_focused()


def test_a_picture_can_be_pasted(go) -> None:
    with go() as visit:
        visit.page.evaluate(
            """async () => {
                const canvas = new OffscreenCanvas(300, 200);
                const paint = canvas.getContext("2d");
                paint.fillStyle = "peachpuff";
                paint.fillRect(0, 0, 300, 200);
                paint.fillStyle = "sienna";
                paint.fillRect(120, 60, 60, 60);
                const blob = await canvas.convertToBlob({type: "image/png"});
                await navigator.clipboard.write([new ClipboardItem({"image/png": blob})]);
            }"""
        )
        visit.page.keyboard.press("Control+V")
        expect(visit.card("image.png")).to_contain_text("300 \N{MULTIPLICATION SIGN} 200 pixels")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        pytest.param(390, "light", marks=pytest.mark.slow),
        pytest.param(1280, "dark", marks=pytest.mark.slow),
        pytest.param(1280, "light", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_serious_and_nothing_overflows(go, width, scheme, images) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with go(width=width, scheme=scheme) as visit:
        serious(axe, visit.page)
        visit.add(lesion("lesion-1.jpg"), lesion("lesion-2.jpg", SMALL), broken("broken.jpg"))
        expect(visit.page.get_by_text(BARS)).to_have_count(2)
        expect(visit.page.locator("#summary")).to_contain_text("1 without an answer")
        within = ".card .class-chart" if scheme == "dark" else "body"
        if (width, scheme) != (1280, "dark"):  # the documents have enough of them
            screenshot(visit.page, images / f"page-{width}-{scheme}.png", first=within)
        for summary in visit.page.locator("summary").all():
            summary.click()
        serious(axe, visit.page)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
        visit.page.get_by_role("button", name="About the model").click()
        expect(visit.page.get_by_role("dialog")).to_be_visible()
        serious(axe, visit.page)
