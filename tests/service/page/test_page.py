"""The triage page in a browser: a person's typical actions."""

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from eulerlora.checkpoint import DEFAULT_CHECKPOINT, read_config
from eulerlora_client.policy.performance import performance
from eulerlora_client.policy.policy import default_policy
from eulerlora_client.policy.wording import WARNING
from tests.browser import TIMEOUT_MS, assert_accessible
from tests.service.page.browser import expect, screenshot
from tests.service.page.lesions import DARK, SMALL, broken, lesion, upload

pytestmark = pytest.mark.browser

CONFIG = read_config(DEFAULT_CHECKPOINT)
POINTS = len(CONFIG.classes) * CONFIG.adapters.settings.adapters  # per sample
CLASSES = "Class probabilities"
SUMMARY_LABELS = {
    "urgent": "to prioritise",
    "unfamiliar": "unfamiliar",
    "refer": "to refer for review",
    "retake": "to retake",
    "routine": "routine",
}


def test_a_result_shows_the_disposition_before_the_evidence(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"))
        card = visit.card("lesion.jpg")
        expect(card.locator("circle.point")).to_have_count(4 * POINTS)
        (answer,) = visit.answers()
        text = card.inner_text()
        reasons = [reason["words"] for reason in answer["reasons"]]
        parts = [
            answer["title"],
            answer["pathway"],
            *reasons,
            CLASSES,
            "Uncertainty",
            "Familiarity",
        ]
        assert [text.index(part) for part in parts] == sorted(map(text.index, parts))
        assert f"Expected entropy {answer['prediction']['expected_entropy']:.2f}" in text
        assert f"Mutual information {answer['prediction']['mutual_information']:.2f}" in text
        expect(card.get_by_text(WARNING)).to_be_visible()
        log = visit.page.locator("#announcements")
        expect(log).to_contain_text(f"lesion.jpg: {answer['title']}.")
        assert visit.page.evaluate("livingBlobUrls()") == 0


def test_the_known_weakness_is_shown_before_any_image(go) -> None:
    measured = performance(default_policy())
    assert measured is not None
    with go() as visit:
        section = visit.page.get_by_role("region", name="Known weakness")
        for row in measured.summary.rows:
            expect(section.get_by_role("row", name=row[0]).first).to_be_visible()
            expect(section.get_by_text(row[-1], exact=True)).to_be_visible()
        frame = section.get_by_role("group").first
        assert frame.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
        expect(section.get_by_text(measured.origin)).to_be_hidden()
        section.get_by_text("Details of these figures").click()
        expect(section.get_by_text(measured.origin)).to_be_visible()


def test_the_warning_stays_visible_in_every_part_of_a_card(go) -> None:
    with go(width=390) as visit:
        visit.add(lesion("lesion.jpg"))
        card = visit.card("lesion.jpg")
        expect(card.locator("circle.point")).to_have_count(4 * POINTS)
        warning = card.get_by_text(WARNING)
        for selector in (".verdict-title", ".class-chart", ".scales", ".origin"):
            card.locator(selector).evaluate("element => element.scrollIntoView({block: 'center'})")
            expect(warning).to_be_in_viewport(ratio=1)


def test_three_images_are_summarised_and_can_be_removed(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"), lesion("dark.jpg", DARK), lesion("small.jpg", SMALL))
        summary = visit.page.locator("#summary")
        expect(visit.page.get_by_text(CLASSES)).to_have_count(3)
        number = Counter(answer["disposition"] for answer in visit.answers())
        counts = [
            f"{number[name]} {label}" for name, label in SUMMARY_LABELS.items() if number[name]
        ]
        expect(summary).to_have_text(f"3 images: {', '.join(counts)}")
        visit.page.get_by_role("button", name="Remove dark.jpg").click()
        expect(summary).to_contain_text("2 images: ")
        expect(visit.page.get_by_role("heading", name="small.jpg")).to_be_focused()


def test_several_images_are_listed_in_order_of_urgency(go) -> None:
    dispositions = ["routine", "refer", "retake", "unfamiliar", "urgent"]

    def decide(route: Any) -> None:
        response = route.fetch()
        if not response.ok:
            route.fulfill(response=response)
            return
        answer = response.json()
        answer["disposition"] = dispositions.pop()
        answer["malignant"]["probability"] = float(answer["disposition"] == "retake")
        route.fulfill(response=response, json=answer)

    with go() as visit:
        visit.page.route("**/triage?*", decide)
        order = visit.page.get_by_role("navigation", name="In order of urgency")
        visit.add(lesion("1.jpg"))
        expect(visit.card("1.jpg")).to_contain_text(CLASSES)
        expect(order).to_be_hidden()
        visit.add(*(lesion(f"{number}.jpg") for number in (2, 3, 4, 5)), broken("broken.jpg"))
        links = order.get_by_role("link")
        expect(links).to_have_count(6)
        states = [link.get_attribute("data-state") for link in links.all()]
        assert states == ["urgent", "retake", "unfamiliar", "refer", "problem", "routine"]
        expect(links.nth(4)).to_have_text("Not assessed broken.jpg")
        links.nth(4).press("Enter")
        expect(visit.page.get_by_role("heading", name="broken.jpg")).to_be_focused()


def test_a_broken_file_shows_the_reason_and_affects_no_other(go, images) -> None:
    text = upload("notes.jpg", b"not an image")
    with go() as visit:
        visit.add(broken("broken.jpg"), text, lesion("good.jpg"))
        expect(visit.card("broken.jpg")).to_contain_text("The JPEG data is broken or truncated.")
        expect(visit.card("notes.jpg")).to_contain_text("JPEG, PNG or WebP image")
        expect(visit.card("notes.jpg")).to_contain_text("No preview")
        expect(visit.card("good.jpg")).to_contain_text(CLASSES)
        assert WARNING not in visit.card("broken.jpg").inner_text()
        screenshot(visit.page, images / "page-problems.png", last="li:nth-child(3) .verdict")
        retry = visit.page.get_by_role("button", name="Retry all 2 without a result")
        retry.click()
        expect(retry).to_be_visible()  # the files are still broken


def test_a_change_of_options_repeats_the_request(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"))
        card = visit.card("lesion.jpg")
        expect(card.locator("circle.point")).to_have_count(4 * POINTS)
        visit.page.get_by_label("Samples per adapter").select_option("2")
        expect(card.locator("circle.point")).to_have_count(2 * POINTS)
        visit.page.get_by_role("radio", name="Fixed").check()
        expect(card.locator("circle.point")).to_have_count(POINTS)
        expect(visit.page.get_by_label("Samples per adapter")).to_be_hidden()
        queries = [url.partition("?")[2] for url in visit.requests if "/triage" in url]
        assert queries == [
            "mode=stoch&model=ham10000&samples=4",
            "mode=stoch&model=ham10000&samples=2",
            "mode=det&model=ham10000",
        ]


def file_chooser(page: Any) -> Any:
    """Opens the file chooser with the space bar, which Chromium may ignore on a slow machine."""
    from playwright.sync_api import TimeoutError as TooSlow  # noqa: PLC0415 - may be missing

    for _ in range(3):
        with suppress(TooSlow), page.expect_file_chooser(timeout=TIMEOUT_MS) as choosing:
            page.keyboard.press("Space")
            return choosing.value
    pytest.fail("the space bar opens no file chooser")


def test_the_page_works_with_the_keyboard_alone(go) -> None:
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
        expect(page.get_by_role("button", name="Choose images")).to_be_focused()
        chooser = file_chooser(page)
        chooser.set_files([lesion("lesion.jpg")])
        card = visit.card("lesion.jpg")
        expect(card.locator("circle.point")).to_have_count(4 * POINTS)
        keyboard.press("Tab")
        expect(page.get_by_role("radio", name="Sampled")).to_be_focused()
        keyboard.press("ArrowRight")
        expect(card.locator("circle.point")).to_have_count(POINTS)
        for _ in range(4):  # skips the choice of a model, the known weakness and its details
            keyboard.press("Tab")
        expect(page.get_by_role("button", name="Remove lesion.jpg")).to_be_focused()
        keyboard.press("Tab")
        keyboard.press("Enter")
        expect(card.get_by_role("table")).to_be_visible()
        keyboard.press("Shift+Tab")
        keyboard.press("Space")
        expect(page.locator(".card")).to_have_count(0)
        expect(page.get_by_role("button", name="Choose images")).to_be_focused()


def test_an_image_can_be_pasted(go) -> None:
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


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_page_is_accessible_and_does_not_overflow(go, width, scheme, images) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with go(width=width, scheme=scheme) as visit:
        assert_accessible(axe, visit.page)
        visit.add(lesion("lesion-1.jpg"), lesion("lesion-2.jpg", SMALL), broken("broken.jpg"))
        expect(visit.page.get_by_text(CLASSES)).to_have_count(2)
        expect(visit.page.locator("#summary")).to_contain_text("1 without a result")
        first = ".card .class-chart" if scheme == "dark" else "body"
        screenshot(visit.page, images / f"page-{width}-{scheme}.png", first=first)
        if width == 390:
            visit.page.emulate_media(color_scheme="light")
            screenshot(visit.page, images / "page-390-light.png")
            visit.page.emulate_media(color_scheme=scheme)
        for summary in visit.page.locator("summary").all():
            summary.click()
        assert_accessible(axe, visit.page)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
        visit.page.get_by_role("button", name="About the model").click()
        expect(visit.page.get_by_role("dialog")).to_be_visible()
        assert_accessible(axe, visit.page)
